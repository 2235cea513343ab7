"""Answers to "why": every verdict from pure facts, and through real schedulers on two stores (K13)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from anarchon import Cron, Run, Scheduler
from anarchon.types import RunStatus
from anarchon.why import STORY_MAX, Verdict, explain
from reasons import DAY_MS, REASONS, SLOT_MS, Reason, attempt, facts, note
from rig import Grid, Slots, Tape, eventually


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.name)
def test_each_reason_has_its_verdict_and_one_plain_line(reason: Reason) -> None:
    answer = explain(reason.facts)
    assert answer.verdict is reason.verdict
    assert answer.text.endswith(".")
    assert "\n" not in answer.text
    assert len(answer.text) < 600
    assert "None" not in answer.text


def test_a_run_counts_more_than_a_note_of_the_same_slot() -> None:
    both = facts(note(RunStatus.MISSED, "no instance claimed it in time"), attempt(1, RunStatus.SUCCESS, "web-1", took=1))
    assert explain(both).verdict is Verdict.RAN


def test_attempts_are_told_in_order_whatever_order_the_store_gives() -> None:
    runs = [attempt(2, RunStatus.SUCCESS, "web-2", claimed=40, took=1), attempt(1, RunStatus.LOST, "web-1")]
    assert explain(facts(*runs)) == explain(facts(*reversed(runs)))
    assert "attempt 2 on web-2, claimed 1.2 s after its time" in explain(facts(*runs)).text


def test_of_hundreds_of_attempts_the_newest_are_told() -> None:
    runs = [attempt(n, RunStatus.HANDED_OVER, f"web-{n}", claimed=n) for n in range(1, 300)]
    text = explain(facts(*runs, attempt(300, RunStatus.SUCCESS, "web-300", claimed=400, took=1))).text
    assert "296 more before; attempt 297 on web-297" in text
    assert text.count("handed it over") == STORY_MAX


def test_an_overlap_names_the_other_run_by_its_time() -> None:
    answer = explain(facts(note(RunStatus.SKIPPED, f"overlap: the run of slot {SLOT_MS - DAY_MS} of web-1 was still running")))
    assert "the run of slot 2027-01-14 02:00:00 UTC of web-1 was still running" in answer.text


def test_without_a_schedule_nothing_is_said_about_slots_that_it_may_not_have() -> None:
    assert explain(facts(slot_ms=SLOT_MS + 1, schedule=None)).verdict is Verdict.UNACCOUNTED


@pytest.mark.parametrize("own", [False, True])
def test_a_manual_run_is_no_run_of_the_slot(own: bool) -> None:
    record = replace(attempt(1, RunStatus.SUCCESS, "web-1", took=1), space="" if own else "m1")
    assert explain(facts(record)).verdict is (Verdict.RAN if own else Verdict.UNACCOUNTED)


# -- through real schedulers ------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}" if request.param == "memory" else f"sqlite:///{tmp_path}/cron.db"


@pytest.fixture
def tape() -> Tape:
    return Tape()


@pytest.fixture
def scheduler(url: str, tape: Tape) -> Iterator[Scheduler]:
    scheduler = Scheduler(url, plugins=[tape], instance="here", grace=1)
    yield scheduler
    scheduler.shutdown()


def asked(scheduler: Scheduler, name: str, slot_ms: int) -> tuple[Verdict, str]:
    answer = asyncio.run(scheduler.why(name, datetime.fromtimestamp(slot_ms / 1000, UTC)))
    return answer.verdict, answer.text


def test_done_failed_and_never_a_slot(scheduler: Scheduler, tape: Tape) -> None:
    def fails(run: Run) -> None:
        raise ValueError(run.attempt)

    scheduler.add_job(lambda: None, Grid(200), name="fine", jitter=0)
    scheduler.add_job(fails, Grid(200), name="fails", jitter=0)
    scheduler.start_in_thread()
    tape.wait("run_finished", 4)
    by_job = {event.key.job: event.key.slot_ms for event in tape.of("run_finished")}
    verdict, text = asked(scheduler, "fine", by_job["fine"])
    assert (verdict, text.startswith("It ran: attempt 1 on here, claimed 0.")) == (Verdict.RAN, True)
    verdict, text = asked(scheduler, "fails", by_job["fails"])
    assert (verdict, "ValueError: 1" in text) == (Verdict.FAILED, True)
    assert asked(scheduler, "fine", by_job["fine"] + 1)[0] is Verdict.NO_SUCH_SLOT


def test_running_overlap_and_pause(scheduler: Scheduler, tape: Tape) -> None:
    async def long() -> None:
        await asyncio.sleep(30)

    scheduler.add_job(long, Grid(300), name="long", jitter=0, max_late=10)
    scheduler.add_job(lambda: None, Grid(300), name="idle", jitter=0)
    scheduler.start_in_thread()
    running = tape.wait("run_started")[0].key
    scheduler.portal.pause("idle")
    eventually(lambda: {event.key.job for event in tape.of("slot_skipped")} == {"long", "idle"}, "both are skipped")
    long_key = next(event.key for event in tape.of("run_started") if event.key.job == "long")
    assert running.job in {"long", "idle"}
    verdict, text = asked(scheduler, "long", long_key.slot_ms)
    assert (verdict, "its lease holds for" in text) == (Verdict.RUNNING, True)
    skipped = {event.key.job: event.key.slot_ms for event in tape.of("slot_skipped")}
    verdict, text = asked(scheduler, "long", skipped["long"])
    assert (verdict, "of here was still running" in text) == (Verdict.SKIPPED, True)
    verdict, text = asked(scheduler, "idle", skipped["idle"])
    assert (verdict, "the job is paused" in text) == (Verdict.SKIPPED, True)


def test_coming_unknown_and_daylight_saving(scheduler: Scheduler) -> None:
    night = datetime(2027, 3, 28, 1, 30, tzinfo=UTC)
    scheduler.add_job(lambda: None, Cron("30 2 * * *", "Europe/Berlin"), name="night")
    scheduler.add_job(lambda: None, Slots(), name="never")
    scheduler.start_in_thread()
    eventually(lambda: scheduler.health().ready, "it is ready")
    (coming,) = scheduler.next_runs("night", 1)
    assert asked(scheduler, "night", int(coming.timestamp() * 1000))[0] is Verdict.NOT_DUE
    verdict, text = asked(scheduler, "night", int(night.timestamp() * 1000))
    assert (verdict, "was skipped by the change of the clock" in text) == (Verdict.NO_SUCH_SLOT, True)
    past = coming - timedelta(days=400)
    assert asked(scheduler, "somebody-elses", int(past.timestamp() * 1000))[0] is Verdict.UNKNOWN_JOB
