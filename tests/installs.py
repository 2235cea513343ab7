"""Environments and wheels for tests of what a user gets."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

__all__ = ["Environment", "run", "tiny_wheel"]

LIMIT_S = 110


def run(*words: str | Path) -> str:
    """Run a command that must pass and return what it printed."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{words[0]}: {done.stdout}{done.stderr}"
    return done.stdout


def needs(name: str, extra: str) -> list[str]:
    """Return what an installed distribution asks for on this machine, of itself ("") or for an extra."""
    asked = [Requirement(text) for text in metadata.requires(name) or []]
    return [str(each) for each in asked if each.marker is None or each.marker.evaluate({"extra": extra})]


class Environment:
    """A virtual environment of its own, with the real pip outside it and no index."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        run(sys.executable, "-m", "venv", "--without-pip", folder)

    def install(self, *wheels: Path) -> None:
        """Install wheels without their dependencies."""
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", self.python)
        run(*pip, "install", "--no-index", "--no-deps", "--force-reinstall", *wheels)

    def bring(self, names: Iterable[str]) -> None:
        """Copy installed third-party distributions and all that they need, so that no index is asked."""
        wanted, seen = list(names), set[tuple[str, str]]()
        target = Path(run(self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        while wanted:
            requirement = Requirement(wanted.pop())
            for extra in ["", *requirement.extras]:
                if (requirement.name, extra) not in seen:
                    seen.add((requirement.name, extra))
                    wanted += needs(requirement.name, extra)
        for name in sorted({name for name, _ in seen}):
            distribution = metadata.distribution(name)
            for file in distribution.files or []:
                if ".." not in file.parts and "__pycache__" not in file.parts:
                    (target / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(str(distribution.locate_file(file)), target / file)

    def eval(self, code: str) -> str:
        """Run code in the environment, outside the checkout, and return what it printed."""
        return run(self.python, "-I", "-c", code).strip()


def tiny_wheel(folder: Path, name: str, *, module: str, code: str, entry_points: Mapping[str, str]) -> Path:
    """Make a wheel of one module with backend entry points, by hand."""
    stem = name.replace("-", "_")
    points = "".join(f"{scheme} = {value}\n" for scheme, value in entry_points.items())
    files = {
        f"{module}.py": code,
        f"{stem}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{stem}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{stem}-1.0.dist-info/entry_points.txt": f"[anarchon.backends]\n{points}",
    }
    record = f"{stem}-1.0.dist-info/RECORD"
    lines = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(text.encode())}\n")
    wheel = folder / f"{stem}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
        archive.writestr(record, "".join([*lines, f"{record},,\n"]))
    return wheel
