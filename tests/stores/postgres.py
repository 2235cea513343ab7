"""A private PostgreSQL: one account that may do everything, passwords on TCP, every commit written through."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import ClassVar

from stores.server import POLL_S, Server, ServerFailed, halt

__all__ = ["Postgres", "Postgres17", "as_postgres"]

PREPARE_LIMIT_S = 120
CHILDREN_LIMIT_S = 5.0
ACCEPTING = b"R"
SYSTEM_USER = "postgres"

HBA = """\
local all all trust
host all all 127.0.0.1/32 scram-sha-256
"""


def as_postgres(folder: Path) -> list[str]:
    """Return the words that start a program as the user of Debian's packages where we are root: it refuses root.

    The words exec, so that the pid stays that of the server.
    """
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={SYSTEM_USER}", f"--regid={SYSTEM_USER}", "--clear-groups", "env", f"HOME={folder}"]


class Postgres(Server):
    """A PostgreSQL 15 server with one database."""

    name: ClassVar[str] = "PostgreSQL"
    programs: ClassVar[tuple[str, ...]] = ("postgres", "initdb")
    version: ClassVar[int] = 15
    user = "cron"
    password = "cron"
    database = "cron"

    @classmethod
    def folders(cls) -> tuple[str, ...]:
        """Where the programs may be: Debian's folder, or the one that ANARCHON_POSTGRES_<version> names."""
        return (os.environ.get(f"ANARCHON_POSTGRES_{cls.version}", ""), f"/usr/lib/postgresql/{cls.version}/bin")

    @classmethod
    def program(cls, name: str) -> str | None:
        """Return the path of a program of this version, or None."""
        return shutil.which(name, path=os.pathsep.join(filter(None, cls.folders())))

    @classmethod
    def absent(cls) -> str | None:
        gone = [name for name in cls.programs if cls.program(name) is None]
        return f"{cls.name} {cls.version}: {', '.join(gone)} not installed (package postgresql-{cls.version})" if gone else None

    def url(self, scheme: str = "postgresql", database: str | None = None, *, user: str | None = None) -> str:
        """Return the URL of a database; `user` is "name:password" of another account."""
        return f"{scheme}://{user or f'{self.user}:{self.password}'}@{self.host}:{self.port}/{database or self.database}"

    def prepare(self) -> None:
        """Make the cluster, its account and its database."""
        if os.geteuid() == 0:
            shutil.chown(self.folder, SYSTEM_USER, SYSTEM_USER)
        secret = self.folder / "password"
        secret.write_text(self.password)
        secret.chmod(0o644)
        words = ["--no-sync", "--no-instructions", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", f"--pwfile={secret}"]
        self._run([self.program("initdb") or "", "-D", f"{self.folder}/data", "-U", self.user, *words])
        single = [self.program("postgres") or "", "--single", "-D", f"{self.folder}/data", "postgres"]
        self._run(single, f'CREATE DATABASE "{self.database}"\n')
        (self.folder / "data" / "pg_hba.conf").write_text(HBA)

    def command(self) -> list[str]:
        """Return the postmaster itself."""
        options = {
            "listen_addresses": self.host,
            "unix_socket_directories": str(self.folder),
            "max_connections": "120",
            "shared_buffers": "32MB",
            "password_encryption": "scram-sha-256",
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        postgres = self.program("postgres") or ""
        return [*as_postgres(self.folder), postgres, "-D", f"{self.folder}/data", "-p", str(self.port), *words]

    def answers(self) -> bool:
        """Return whether the server asks for a password: while it starts or recovers it answers with an error."""
        fields = f"user\0{self.user}\0database\0{self.database}\0\0".encode()
        with socket.create_connection((self.host, self.port), 2) as connection:
            connection.settimeout(2)
            connection.sendall(struct.pack("!ii", len(fields) + 8, 3 << 16) + fields)
            return connection.recv(1) == ACCEPTING

    def stop(self) -> None:
        """End it cleanly but at once: PostgreSQL takes SIGTERM as "when the last client has gone"."""
        self._end(signal.SIGINT)

    def pids(self) -> list[int]:
        """Return the postmaster and each of its processes: every one has a process group of its own."""
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.pid)], capture_output=True, text=True, check=False)
        return [self.pid, *(int(word) for word in found.stdout.split())]

    def _end(self, how: signal.Signals) -> None:
        """End the postmaster and see every process of it go: while one lives, no new server may start on the data."""
        children: dict[int, str] = {}
        if how is signal.SIGKILL and self.running:
            halt(self.pid)  # so that it makes no further ones
            children = {pid: _born(pid) for pid in self.pids()[1:]}
        super()._end(how)
        deadline = time.monotonic() + CHILDREN_LIMIT_S
        while left := [pid for pid, born in children.items() if born and _born(pid) == born]:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if time.monotonic() > deadline else signal.SIGCONT)
            time.sleep(POLL_S)

    def _run(self, words: list[str], text: str = "") -> None:
        done = subprocess.run(
            [*as_postgres(self.folder), *words],
            cwd=self.folder,
            input=text,
            capture_output=True,
            text=True,
            timeout=PREPARE_LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            msg = f"{words[0]} failed: {done.stdout}{done.stderr}"
            raise ServerFailed(msg)


class Postgres17(Postgres):
    """A PostgreSQL 17 server, where one is installed."""

    version: ClassVar[int] = 17


def _born(pid: int) -> str:
    """Return when a living process was started, so that a number that is used again is not taken for it; "" if it is gone."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in {"Z", "X"} else fields[18]
