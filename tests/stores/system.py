"""Which store servers the tests need, where Debian keeps them, and how they come onto a machine.

Only the standard library: the test command asks this module before anything is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NEEDED", "Missing", "Tool", "find", "install_missing"]

INSTALL_LIMIT_S = 900
POLICY = Path("/usr/sbin/policy-rc.d")
SEARCHED = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(frozen=True, slots=True)
class Missing:
    """A program that is not there, and the Debian package that brings it."""

    program: str
    package: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A program of a store: its Debian package and the folders outside PATH where that package puts it."""

    program: str
    package: str
    folders: tuple[str, ...] = ()

    def path(self) -> str | None:
        """Return where the program is, or None."""
        places = os.pathsep.join([os.environ.get("PATH", ""), *SEARCHED, *self.folders])
        return shutil.which(self.program, path=places)


NEEDED: tuple[Tool, ...] = (
    # The server without the package that runs it as a service.
    Tool("mariadbd", "mariadb-server-core"),
    Tool("mariadb-install-db", "mariadb-server-core"),
    Tool("my_print_defaults", "mariadb-client-core"),  # mariadb-install-db calls it; its package lacks it
    Tool("mariadb", "mariadb-client-core"),
    Tool("postgres", "postgresql-15", ("/usr/lib/postgresql/15/bin",)),
    Tool("initdb", "postgresql-15", ("/usr/lib/postgresql/15/bin",)),
    Tool("pgbouncer", "pgbouncer"),
    Tool("redis-server", "redis-server"),
    Tool("faketime", "faketime"),
    Tool("rabbitmq-server", "rabbitmq-server"),
    Tool("nats-server", "nats-server"),
)
"""What the tests of today start; a new store adds its lines here."""


def find(program: str) -> str | None:
    """Return the path of a program, or None if it is not installed."""
    tool = next((tool for tool in NEEDED if tool.program == program), Tool(program, ""))
    return tool.path()


def install_missing(missing: Sequence[Missing] | None = None) -> bool:
    """Install what is missing (default: of `NEEDED`) with apt, starting no service; return whether all is there.

    Raises:
        OSError: this user or this machine cannot install; the message names the packages.
    """
    if missing is None:
        missing = [Missing(tool.program, tool.package) for tool in NEEDED if tool.path() is None]
    if not missing:
        print("   all there")
        return True
    wanted = sorted({each.package for each in missing})
    programs = ", ".join(sorted({each.program for each in missing}))
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        msg = f"missing: {programs}. As root on Debian: apt-get install --no-install-recommends {' '.join(wanted)}"
        raise OSError(msg)
    print(f"   installing {' '.join(wanted)} for {programs}", flush=True)
    with no_services():
        if not (apt("install", *wanted) or (apt("update") and apt("install", *wanted))):
            msg = f"apt-get could not install {' '.join(wanted)}; the reason stands above"
            raise OSError(msg)
    return True


def apt(verb: str, *names: str) -> bool:
    """Run apt-get without questions; return whether it passed."""
    words = ["apt-get", "-qq", "-o", "Dpkg::Use-Pty=0", "-y", "--no-install-recommends", verb, *names]
    variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            words,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=INSTALL_LIMIT_S,
            check=False,
            text=True,
        )
    except subprocess.TimeoutExpired:
        print(f"   apt-get {verb} was ended after {INSTALL_LIMIT_S} s")
        return False
    if done.returncode != 0:
        print("\n".join(f"   | {line}" for line in done.stdout.splitlines()[-15:]))
    return done.returncode == 0


@contextmanager
def no_services() -> Iterator[None]:
    """Keep Debian's packages from starting a service: ours are private processes, theirs would hold the usual ports."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
