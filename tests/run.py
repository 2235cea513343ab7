"""The test command: a virtual environment of its own, the store servers, lint, types, tests.

    ./tests/run                      everything
    ./tests/run -k lease -x          everything, with these options for pytest
    ./tests/run test|lint|bench ...  one part
    ./tests/run setup                only make the environment and install the servers

Only the standard library, and nothing but Python 3.11: this runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stores.system import Missing, install_missing

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-tests"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements.lock"
STAMP = VENV / "made-from"
PARTS = ("lint", "test", "bench", "setup")
INSTALL_LIMIT_S = 1200
LINT_LIMIT_S = 600
PYTEST_LIMIT_S = 75 * 60
SHARED_OUT = ("-n", "3", "--dist", "loadscope", "--no-loadscope-reorder")
"""Three workers, since much of a test's time is waiting; not more, since the races need the cores. Undone by `-n0`."""
LEFT_OUT = {".git", ".stores", ".venv", ".venv-tests", "build", "dist", "__pycache__", "node_modules"}


class Refused(Exception):
    """The command cannot go on; the message is one sentence for the person who typed it."""


@dataclass(slots=True)
class Report:
    """How long each stage took and which failed."""

    lines: list[tuple[str, float, bool]] = field(default_factory=list)

    def stage(self, name: str, act: Callable[[], bool]) -> bool:
        """Run one stage, time it and remember whether it passed."""
        print(f"== {name}", flush=True)
        began = time.monotonic()
        passed = act()
        self.lines.append((name, time.monotonic() - began, passed))
        return passed

    @property
    def failed(self) -> list[str]:
        """The stages that failed so far."""
        return [name for name, _, passed in self.lines if not passed]

    def show(self) -> None:
        """Print the table of stages and times."""
        print("== times")
        for name, seconds, passed in self.lines:
            print(f"   {name:<22}{seconds:7.1f} s  {'ok' if passed else 'FAILED'}")
        sys.stdout.flush()


def packages() -> list[Path]:
    """Return the folders of the workspace's distributions, the core first."""
    found = [path.parent for pattern in ("anarchon-*", "conformance") for path in ROOT.glob(f"{pattern}/pyproject.toml")]
    return sorted(found, key=lambda path: (path.name != "anarchon-core", path.name))


def call(*command: str | Path, limit_s: float = LINT_LIMIT_S) -> bool:
    """Run a command in the checkout with stdin closed; return whether it passed."""
    words = [str(word) for word in command]
    try:
        return subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, timeout=limit_s, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"tests/run: {words[0]} was ended after {limit_s:g} s", flush=True)
        return False


# --- the environment -------------------------------------------------------------------------------------------------


def fingerprint() -> str:
    """Return what the environment depends on: interpreter, lock, place and the packages' own files."""
    digest = hashlib.sha256(f"{sys.version}\n{os.path.realpath(sys.executable)}\n{VENV}\n".encode())
    for path in [LOCK, *(folder / "pyproject.toml" for folder in packages())]:
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def environment() -> bool:
    """Make the virtual environment from the lock, or keep the one that was made from the same files."""
    wanted = fingerprint()
    if STAMP.is_file() and STAMP.read_text() == wanted and PYTHON.exists():
        print(f"   {VENV.name} is up to date")
        return True
    if not have_venv():
        raise Refused(f"{sys.executable} cannot make virtual environments: apt-get install python3-venv (as root), then again")
    shutil.rmtree(VENV, ignore_errors=True)
    pip = (PYTHON, "-m", "pip", "--disable-pip-version-check", "--no-input")
    made = (
        call(sys.executable, "-m", "venv", VENV, limit_s=INSTALL_LIMIT_S)
        and call(*pip, "install", "-q", "--require-hashes", "--only-binary=:all:", "-r", LOCK, limit_s=INSTALL_LIMIT_S)
        and call(*pip, "install", "-q", "--no-deps", "--no-build-isolation", *editables(), limit_s=INSTALL_LIMIT_S)
        and call(*pip, "check")
    )
    if made:
        STAMP.write_text(wanted)
    return made


def editables() -> Iterator[str]:
    for folder in packages():
        yield from ("-e", str(folder))


def have_venv() -> bool:
    """Return whether this Python can make environments; as root on Debian install what its package leaves out."""
    probe = [sys.executable, "-c", "import venv, ensurepip"]
    if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        return True
    if not os.path.realpath(sys.executable).startswith("/usr/bin/"):
        return False
    try:
        install_missing([Missing("ensurepip", f"python3.{sys.version_info[1]}-venv")])
    except OSError as error:
        print(f"   {error}")
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def servers() -> bool:
    """Install the store servers that the tests need and this machine lacks; without root say so and go on."""
    try:
        return install_missing()
    except OSError as error:
        print(f"   {error}")
        return os.environ.get("CI", "").lower() not in {"1", "true"}


# --- lint and types --------------------------------------------------------------------------------------------------


def python_files() -> list[Path]:
    """Return every Python file of the checkout."""
    return sorted(
        path.relative_to(ROOT)
        for path in ROOT.rglob("*.py")
        if not LEFT_OUT.intersection(path.relative_to(ROOT).parts) and ".egg-info" not in str(path)
    )


def type_groups(files: Iterable[Path]) -> list[list[Path]]:
    """Split files so that no two loose ones (outside packages) in a group share a name: mypy takes one module a name."""
    groups: list[tuple[set[str], list[Path]]] = [(set(), [])]
    by_folder: dict[Path, list[Path]] = {}
    for path in files:
        by_folder.setdefault(path.parent, []).append(path)
    for folder, members in by_folder.items():
        names = set() if (ROOT / folder / "__init__.py").is_file() else {path.name for path in members}
        group = next((g for g in groups if not g[0] & names), None)
        if group is None:
            group = (set(), [])
            groups.append(group)
        group[0].update(names)
        group[1].extend(members)
    return [members for _, members in groups if members]


def types() -> bool:
    """Check every file with mypy --strict, all groups even if one fails."""
    results = [call(PYTHON, "-m", "mypy", "--strict", *group) for group in type_groups(python_files())]
    return all(results)


def lint(report: Report) -> None:
    """Run the checks that need no test; each is told, none stops the next."""
    ruff = VENV / "bin" / "ruff"
    report.stage("ruff check", lambda: call(ruff, "check", "."))
    report.stage("ruff format --check", lambda: call(ruff, "format", "--check", "."))
    report.stage("mypy --strict", types)


# --- tests -----------------------------------------------------------------------------------------------------------


def pytest(arguments: list[str]) -> int:
    """Run pytest; its closing line is the last one printed. Returns its exit code, 1 if it was ended."""
    # Without compiled files each process that a test starts would cost three times as much.
    variables = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}}
    words = [str(PYTHON), "-m", "pytest", "--durations=10", "--durations-min=2", *arguments]
    try:
        return subprocess.run(
            words, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, timeout=PYTEST_LIMIT_S, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"tests/run: pytest was ended after {PYTEST_LIMIT_S} s", flush=True)
        return 1


def main(arguments: list[str]) -> int:
    """Run the asked parts and return the exit code: that of pytest, or 1 if an earlier stage failed."""
    part = arguments.pop(0) if arguments and arguments[0] in PARTS else ""
    report = Report()
    try:
        if not report.stage("environment", environment):
            raise Refused("the environment could not be made; if a dependency changed, refresh the lock (tests/README.md)")
        if part != "lint":
            report.stage("store servers", servers)
    except Refused as refusal:
        print(f"tests/run: {refusal}", file=sys.stderr)
        return 2
    if part in {"", "lint"}:
        lint(report)
    report.show()
    if report.failed:
        print(f"tests/run: failed already: {', '.join(report.failed)} (see above)", flush=True)
    code = 0
    if part in {"", "test"}:
        code = pytest([*SHARED_OUT, *arguments])
    elif part == "bench":
        code = pytest(["-s", "-o", "python_files=bench_*.py", *(arguments or ["tests/bench"])])
    if report.failed:
        print(f"tests/run: FAILED: {', '.join([*report.failed, *(['pytest'] if code else [])])}", flush=True)
    return code or int(bool(report.failed))


if __name__ == "__main__":
    # A background job of a script starts with SIGINT ignored, and the tests that send it would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
