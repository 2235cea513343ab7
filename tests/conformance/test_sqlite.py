"""SQLite, gated transaction by transaction: the real one passes, one that checks and then sets is caught and replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from anarchon_conformance import Report, RunOptions, Tier, run
from anarchon_conformance.render import failure_text
from zoo.sqlite import BrokenSQLiteTarget, SQLiteTarget


def test_duels_and_plans_pass_on_the_real_one(tmp_path: Path) -> None:
    report = run(SQLiteTarget(tmp_path / "cron.db"), RunOptions(seed=1), tiers=[Tier.DUELS, Tier.PLANS])
    assert report.passed, [failure_text(failure, report.target) for failure in report.failures]
    assert all(result.marks and not result.vacuous for result in report.tiers)


@pytest.fixture(params=[Tier.DUELS, Tier.PLANS])
def caught(request: pytest.FixtureRequest, tmp_path: Path) -> Report:
    """What one tier found on the broken one."""
    tier: Tier = request.param
    return run(BrokenSQLiteTarget(tmp_path / "broken.db"), RunOptions(seed=1), tiers=[tier])


def test_c01_check_then_set_is_caught_by_duels_and_by_plans(caught: Report) -> None:
    assert not caught.passed
    assert "C1" in {failure.clause for failure in caught.failures}


def test_c01_the_failure_reads_as_clause_story_and_replay(caught: Report) -> None:
    failure = next(failure for failure in caught.failures if failure.clause == "C1")
    head, *story, replay = failure_text(failure, caught.target).splitlines()
    assert head.startswith("C1 single winner: VIOLATED   (")
    assert story[0].startswith("   1  ")
    assert sum("WON attempt 1" in line for line in story) == 2
    assert story[-1].strip() == "two tokens hold attempt 1"
    assert replay.startswith(f"   replay: anarchon-conformance {caught.target} --replay '")


def test_c01_the_replay_string_reproduces_the_failure(caught: Report, tmp_path: Path) -> None:
    failure = next(failure for failure in caught.failures if failure.clause == "C1")
    for number in range(3):
        again = run(BrokenSQLiteTarget(tmp_path / f"again{number}.db"), RunOptions(replay=failure.replay))
        assert "C1" in {item.clause for item in again.failures}
    right = run(SQLiteTarget(tmp_path / "right.db"), RunOptions(replay=failure.replay))
    assert right.passed
