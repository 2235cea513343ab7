"""The command: exit codes, one sentence for what cannot run, reports in three forms, replays and saved histories."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from anarchon.contract import CLAUSES
from anarchon_conformance import cli
from click.testing import CliRunner, Result

GOOD = "memory://kit-cli"
TARGETS = """
from anarchon.memory import MemoryBackend
from anarchon.types import Claim, Outcome
from anarchon.errors import BackendUnavailable
from anarchon_conformance import Target


class Unreachable(MemoryBackend):
    async def open(self):
        raise BackendUnavailable("acme://user:secret@nowhere does not answer")


class Unfinished(MemoryBackend):
    pass


Unfinished.__abstractmethods__ = frozenset({"finish", "history"})


class Greedy(MemoryBackend):
    async def claim(self, request):
        await super().claim(request)
        return Claim(Outcome.WON, 1)


class Gone(Target):
    def make(self, url):
        return Unreachable()


class Half(Target):
    def make(self, url):
        return Unfinished()


class Everybody(Target):
    def __init__(self):
        self.store = Greedy()._store

    def make(self, url):
        return Greedy(self.store)


class Waived(Everybody):
    waivers = {"C1": "known", "C6": "not true"}


class Other:
    pass
"""


@pytest.fixture(autouse=True)
def _targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kit_cli_targets.py").write_text(TARGETS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "kit_cli_targets", raising=False)


def asked(*arguments: str) -> Result:
    return CliRunner().invoke(cli._run, arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["acme://x"], "no backend serves 'acme://'"),
        (["nothing"], "'nothing' is no backend URL (scheme://...) and names no Target class (module:Name)"),
        (["no_such_module:X"], "is no backend URL"),
        (["kit_cli_targets:Missing"], "is no backend URL"),
        (["kit_cli_targets:Other"], "is no subclass of anarchon_conformance.Target"),
        (["kit_cli_targets:Gone"], "the store cannot be used: acme://user:***@nowhere does not answer"),
        (["kit_cli_targets:Half"], "is not complete"),
        ([GOOD, "--contract", "7"], "contract 7 is not known to this kit"),
        ([GOOD, "--replay", "dance:x"], "is no replay string"),
        ([GOOD, "--replay", "duel:x"], "is no duel"),
        ([GOOD, "--replay", "plan:x"], "is no plan"),
        ([f"{GOOD}?colour=red"], "unknown option 'colour'"),
    ],
)
def test_what_cannot_run_is_one_sentence_and_exit_code_two(arguments: list[str], sentence: str) -> None:
    result = asked(*arguments)
    assert result.exit_code == cli.CANNOT, result.output
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_the_incomplete_backend_is_told_which_methods_it_lacks() -> None:
    error = asked("kit_cli_targets:Half").stderr
    assert "finish" in error
    assert "history" in error


def test_a_report_prints_every_clause_in_order() -> None:
    result = asked(GOOD, "--replay", "duel:free/claim/claim/01", "--seed", "5")
    assert result.exit_code == cli.PASSED, result.output
    rows = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("  C")]
    assert rows == [entry.number for entry in CLAUSES if entry.number.startswith("C")]
    assert "seed 5" in result.stdout
    assert "not run" in result.stdout


def test_tier_and_profile_are_chosen_by_name() -> None:
    result = asked(GOOD, "--tier", "plans", "--profile", "default", "--report", "json", "--seed", "9")
    report = json.loads(result.stdout)
    assert [tier["tier"] for tier in report["tiers"]] == ["plans"]
    assert (report["profile"], report["seed"], report["passed"]) == ("default", 9, True)
    assert asked(GOOD, "--tier", "dance").exit_code == cli.CANNOT


def test_the_json_report_reads_back() -> None:
    result = asked(GOOD, "--replay", "duel:expired-run/claim/claim/10", "--report", "json")
    report = json.loads(result.stdout)
    assert (report["passed"], report["kind"], report["contract"]) == (True, "lease", 1)
    assert [row["clause"] for row in report["clauses"]][:3] == ["C1", "C2", "C3"]
    assert report["tiers"][0]["marks"]["takeover"] > 0


def test_the_markdown_report_is_a_table() -> None:
    result = asked(GOOD, "--replay", "plan:A.claim.0/B.claim.0", "--report", "md")
    assert "| C1 | single winner | pass |" in result.stdout


def test_a_violation_is_a_clause_a_story_and_a_replay_and_exit_code_one() -> None:
    result = asked("kit_cli_targets:Everybody", "--replay", "duel:free/claim/claim/01")
    assert result.exit_code == cli.FAILED
    assert "C1 single winner: VIOLATED   (duel free: claim x claim, schedule A B)" in result.stdout
    assert "two tokens hold attempt 1" in result.stdout
    assert "--replay 'duel:free/claim/claim/01'" in result.stdout


def test_a_waiver_is_strict() -> None:
    result = asked("kit_cli_targets:Waived", "--replay", "duel:free/claim/claim/01", "--report", "json")
    rows = {row["clause"]: row for row in json.loads(result.stdout)["clauses"]}
    assert rows["C1"]["verdict"] == "waived"
    assert rows["C6"]["verdict"] == "VIOLATED"
    assert "remove the waiver" in rows["C6"]["detail"]


def test_a_saved_history_can_be_explained_again(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    asked("kit_cli_targets:Everybody", "--replay", "duel:free/claim/claim/01", "--save", str(folder))
    (saved,) = folder.iterdir()
    told = CliRunner().invoke(cli._explain, [str(saved)])
    assert told.exit_code == cli.FAILED
    assert "C1 single winner: VIOLATED" in told.stdout
    assert "two tokens hold attempt 1" in told.stdout


def test_a_file_that_is_no_history_cannot_be_explained(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_text("hello\n", encoding="utf-8")
    result = CliRunner().invoke(cli._explain, [str(path)])
    assert result.exit_code == cli.CANNOT
    assert "this is no history of the kit" in result.stderr


def test_the_command_is_installed() -> None:
    command = [sys.executable, "-c", "from anarchon_conformance.cli import main; main()", "acme://x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == cli.CANNOT
    assert done.stderr.startswith("anarchon-conformance: no backend serves")
