"""The alarm for missed runs: told once a fleet, at once or at the next start, bounded after long gaps (K9, K13)."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest
from anarchon import Run, Scheduler
from anarchon.testing import Fault, FaultKind, Plan, Report, simulate
from anarchon.types import NOTE, RunKey, RunStatus
from rig import START_MS, Grid, Lab, VirtualClock, Work, job_of, passes, virtual

MINUTE_MS = 60_000
START = datetime(2027, 1, 15, 10, 0, tzinfo=UTC)


async def pretend(run: Run) -> None:
    del run


def minute(number: int) -> int:
    return int(START.timestamp() * 1000) + number * MINUTE_MS


def played(*faults: Fault, seconds: float, **options: object) -> Report:
    scheduler = Scheduler("memory://simulated")
    scheduler.add_job(pretend, "* * * * *", name="job", **options)  # type: ignore[arg-type]  # options of a job
    plan = Plan(start=START, duration=timedelta(seconds=seconds), settle=timedelta(seconds=90), faults=faults)
    report = simulate(scheduler, plan=plan)
    report.raise_if_violated()
    return report


def missed(report: Report) -> list[int]:
    """Return the slots of the alarms, in the order in which they were told."""
    return [told.key.slot_ms for told in report.told if told.event == "run_missed"]


def down(at_s: float, for_s: float) -> list[Fault]:
    """Crash three instances at once."""
    return [Fault(int(at_s * 1000), FaultKind.CRASH, n, int(for_s * 1000)) for n in range(3)]


def test_k13_slots_of_a_time_without_instances_are_told_once_by_the_fleet_that_starts() -> None:
    report = played(*down(90, 300), seconds=500)  # down from 10:01:30 to 10:06:30
    assert missed(report) == [minute(n) for n in (2, 3, 4, 5)]  # 10:06 was within max_late and ran
    assert minute(6) in {attempt.key.slot_ms for attempt in report.attempts}
    notes = [record for record in report.history["job"] if record.space == NOTE]
    assert {record.status for record in notes} == {RunStatus.MISSED}
    assert len(notes) == 4


def test_k13_a_fleet_cut_off_beyond_the_late_window_tells_each_slot_once_when_the_store_is_back() -> None:
    cut = [Fault(110_000, FaultKind.PARTITION, n, 200_000) for n in range(3)]
    report = played(*cut, seconds=500, max_late=20)
    told = [slot for slot in missed(report) if slot <= minute(4)]
    assert sorted(set(told)) == [minute(n) for n in (2, 3, 4)]
    recorded = [each for each in report.told if each.event == "run_missed" and "(not recorded)" not in each.reason]
    assert len(recorded) == len({each.key for each in recorded})


def test_k13_one_instance_that_was_away_tells_nothing_that_the_others_ran() -> None:
    report = played(Fault(90_000, FaultKind.PAUSE, 0, 200_000), Fault(90_000, FaultKind.PARTITION, 1, 200_000), seconds=500)
    assert missed(report) == []
    assert {minute(n) for n in range(1, 9)} <= {attempt.key.slot_ms for attempt in report.attempts}


def test_all_catches_up_oldest_first_and_tells_nothing() -> None:
    report = played(*down(90, 300), seconds=500, catch_up="all")
    assert missed(report) == []
    begun = [attempt.key.slot_ms for attempt in report.attempts]
    caught = [slot for slot in begun if minute(2) <= slot <= minute(6)]
    assert caught == sorted(caught) == [minute(n) for n in range(2, 7)]


def test_latest_runs_the_newest_and_tells_of_the_others() -> None:
    report = played(*down(90, 300), seconds=500, catch_up="latest")
    assert missed(report) == [minute(n) for n in (2, 3, 4, 5)]
    assert minute(6) in {attempt.key.slot_ms for attempt in report.attempts}


def test_what_is_beyond_the_limit_of_catch_up_is_told_as_missed() -> None:
    report = played(*down(90, 600), seconds=800, catch_up="all", catch_up_limit=4)
    begun = [attempt.key.slot_ms for attempt in report.attempts]
    assert [slot for slot in begun if minute(2) <= slot <= minute(11)] == [minute(n) for n in (8, 9, 10, 11)]
    assert missed(report) == [minute(n) for n in range(2, 8)]


@virtual
async def test_k9_three_days_without_instances_note_a_bounded_number_and_say_how_many_there_were(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    key = RunKey("job", START_MS)
    lab.finished(key, lab.won(key))
    lab.clock.step(3 * 1_440 * MINUTE_MS)
    work = Work()
    with caplog.at_level(logging.WARNING, "anarchon"):
        for _ in range(3):
            await lab.start(job_of(Grid(MINUTE_MS), work, catch_up_window=7 * 86_400), clock=VirtualClock(lab.clock.offset_ms))
        await passes(10 * MINUTE_MS)
    slots = lab.tape.slots("run_missed")
    assert len(slots) == len(set(slots)) <= 101
    assert slots == sorted(slots)
    assert "slots passed while nobody looked; the newest 100 are dealt with" in caplog.text
    assert sum(len(instance.backend.calls) for instance in lab.instances) < 1_000


@virtual
async def test_k9_three_paused_days_tell_of_nothing(lab: Lab) -> None:
    key = RunKey("job", START_MS)
    lab.finished(key, lab.won(key))
    lab.store.set_paused("job", paused=True)
    lab.clock.step(3 * 1_440 * MINUTE_MS)
    lab.store.set_paused("job", paused=False)
    work = Work()
    instance = await lab.start(job_of(Grid(MINUTE_MS), work, catch_up="all"), clock=VirtualClock(lab.clock.offset_ms))
    await passes(MINUTE_MS)
    assert lab.tape.of("run_missed") == lab.tape.of("slot_skipped") == []
    assert len(work.started) <= 2
    assert len(instance.backend.calls) < 30


@virtual
async def test_k8_nobody_polls_for_missed_runs(lab: Lab) -> None:
    instance = await lab.start(job_of(Grid(3_600_000)))
    await passes(5 * MINUTE_MS)
    calls = len(instance.backend.calls)
    await passes(50 * MINUTE_MS)
    assert len(instance.backend.calls) == calls


@virtual
async def test_a_missed_run_is_a_warning_with_job_and_slot(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    instance = await lab.start(job_of(Grid(MINUTE_MS), max_late=5))
    await passes(61_000)
    with caplog.at_level(logging.INFO, "anarchon"):
        instance.clock.suspend(80_000)
        lab.clock.step(80_000)
        await passes(30_000)
    (line,) = [record for record in caplog.records if record.name == "anarchon.slot" and "missed" in record.getMessage()]
    assert line.levelno == logging.WARNING
    assert line.getMessage() == f"job: slot {START_MS + 2 * MINUTE_MS} was missed: no instance claimed it in time"
