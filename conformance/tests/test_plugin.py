"""The pytest plugin: nine lines in a stranger's repository, and nothing at all in a session without a suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

THIRD_PARTY = """
from anarchon_conformance import LeaseSuite, Target


class AcmeTarget(Target):
    url = "memory://kit-plugin"


class TestAcme(LeaseSuite):
    target = AcmeTarget()
"""

BROKEN = """
from anarchon.memory import MemoryBackend
from anarchon.types import Claim, Outcome
from anarchon_conformance import LeaseSuite, Target


class Greedy(MemoryBackend):
    async def claim(self, request):
        await super().claim(request)
        return Claim(Outcome.WON, 1)


class AcmeTarget(Target):
    store = Greedy()._store

    def make(self, url):
        return Greedy(self.store)


class TestAcme(LeaseSuite):
    target = AcmeTarget()
"""


def session(folder: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_third_party.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, cwd=folder)


def test_nine_lines_run_the_clauses_and_print_every_row(tmp_path: Path) -> None:
    assert len([line for line in THIRD_PARTY.splitlines() if line]) <= 9
    done = session(tmp_path, THIRD_PARTY, "-k", "c01 or c09 or waivers")
    assert done.returncode == 0, done.stdout
    assert "claim contract: memory://kit-plugin" in done.stdout
    assert "  C1   single winner            pass" in done.stdout
    assert "  C25  clock steps" in done.stdout


def test_a_failing_duel_is_a_story_and_no_traceback(tmp_path: Path) -> None:
    done = session(tmp_path, BROKEN, "-k", "duels")
    assert done.returncode == 1
    assert "VIOLATED   (duel " in done.stdout
    assert "replay: anarchon-conformance" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_session_without_a_suite_sees_nothing_of_the_kit(tmp_path: Path) -> None:
    source = "import sys\n\n\ndef test_nothing(request):\n    assert 'anarchon_conformance.suite' not in sys.modules\n"
    done = session(tmp_path, source)
    assert done.returncode == 0, done.stdout
    assert "claim contract" not in done.stdout
