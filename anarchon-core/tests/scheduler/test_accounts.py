"""K13: every slot ends as a run or as one note, told once a fleet; catch-up and the queue, on virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from anarchon import Cron, Every
from anarchon.catchup import newest_slot, plan, slots_between
from anarchon.job import CatchUp
from anarchon.queue import SlotQueue
from anarchon.types import NOTE, RunKey, RunStatus
from rig import START_MS, FaultyBackend, Grid, Lab, Slots, Work, job_of, passes, until, virtual

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def slot(number: int) -> int:
    return START_MS + number * 1_000


# -- notes ------------------------------------------------------------------------------------------------------------


@virtual
async def test_k13_an_overlap_is_noted_and_told_once_a_fleet(lab: Lab) -> None:
    for _ in range(4):
        await lab.start(job_of(Slots(slot(5), slot(6)), Work(duration_ms=5_000)))
    await lab.at(30_000)
    (event,) = lab.tape.of("slot_skipped")
    assert event.key == RunKey("job", slot(6))
    assert event.facts["reason"].startswith(f"overlap: the run of slot {slot(5)}")
    assert lab.statuses() == {slot(5): "success", slot(6): "skipped"}
    assert [record.space for record in lab.history()] == ["", NOTE]


@virtual
async def test_k13_a_paused_job_notes_its_slots_and_goes_on_after_the_pause(lab: Lab) -> None:
    work = Work()
    for _ in range(3):
        await lab.start(job_of(Grid(10_000), work))
    await lab.at(11_000)
    lab.store.set_paused("job", paused=True)
    await lab.at(31_000)
    lab.store.set_paused("job", paused=False)
    await lab.at(41_000)
    assert lab.statuses() == {slot(10): "success", slot(20): "skipped", slot(30): "skipped", slot(40): "success"}
    assert [event.facts["reason"] for event in lab.tape.of("slot_skipped")] == ["the job is paused"] * 2


@virtual
async def test_k13_a_long_pause_is_followed_by_the_next_slot_alone(lab: Lab) -> None:
    work = Work()
    await lab.start(job_of(Grid(60_000), work))
    lab.store.set_paused("job", paused=True)
    await lab.at(DAY_MS // 2 + 1_000)
    assert work.started == []
    lab.store.set_paused("job", paused=False)
    await lab.at(DAY_MS // 2 + 61_000)
    assert work.started == [(START_MS + DAY_MS // 2 + 60_000, 1)]


@virtual
async def test_k13_a_slot_claimed_too_late_is_missed_and_told_once(lab: Lab) -> None:
    works = [Work(), Work()]
    backends = []
    for work in works:
        instance = await lab.start(job_of(Slots(slot(5)), work, max_late=3))
        instance.backend.failing.add("claim")
        backends.append(instance.backend)
    await lab.at(20_000)
    for backend in backends:
        backend.failing.clear()
    await lab.at(60_000)
    assert [work.started for work in works] == [[], []]
    assert lab.tape.slots("run_missed")[:1] == [slot(5)]


@virtual
async def test_k13_a_slot_that_ran_elsewhere_is_not_noted_by_an_instance_that_was_away(lab: Lab) -> None:
    work = Work()
    away = await lab.start(job_of(Slots(slot(5)), work, max_late=3))
    await lab.start(job_of(Slots(slot(5)), work, max_late=3))
    away.backend.down = True
    await lab.at(20_000)
    away.backend.down = False
    await lab.at(60_000)
    assert work.started == [(slot(5), 1)]
    assert lab.tape.of("run_missed") == lab.tape.of("slot_skipped") == []


@virtual
async def test_k13_a_note_that_cannot_be_written_is_told_all_the_same(lab: Lab) -> None:
    lab.won(RunKey("job", slot(-1)), lease_ms=60_000)
    instance = await lab.start(job_of(Slots(slot(5))))
    await lab.at(4_000)
    instance.backend.hooks["claim"] = _after_the_first(instance.backend.failing)
    await lab.at(30_000)
    (event,) = lab.tape.of("slot_skipped")
    assert event.facts["reason"].endswith("(not recorded)")


def _after_the_first(failing: set[str]) -> Callable[[], Awaitable[None]]:
    seen: list[int] = []

    async def hook() -> None:
        seen.append(1)
        if len(seen) > 1:
            failing.add("claim")

    return hook


@virtual
async def test_k13_notes_never_block_a_run(lab: Lab) -> None:
    work = Work(duration_ms=1_500)
    await lab.start(job_of(Grid(1_000), work))
    await lab.at(20_500)
    assert len(work.started) >= 9
    assert set(lab.statuses()) == {slot(number) for number in range(1, 21)}


@virtual
async def test_k13_slots_that_pass_while_an_instance_sleeps_are_noted_as_missed(lab: Lab) -> None:
    work = Work()
    instance = await lab.start(job_of(Grid(60_000), work, max_late=30))
    await lab.at(61_000)
    instance.clock.suspend(600_000 - 61_000 + 5_000)
    lab.clock.step(600_000 - 61_000 + 5_000)
    await passes(120_000)
    assert work.started[:2] == [(START_MS + 60_000, 1), (START_MS + 600_000, 1)]  # the newest was within max_late
    assert lab.tape.slots("run_missed") == [START_MS + minute * 60_000 for minute in range(2, 10)]


# -- catch-up: pure ---------------------------------------------------------------------------------------------------


def test_newest_slot_is_the_last_one_in_the_window_or_none() -> None:
    assert newest_slot(Grid(1_000), START_MS, START_MS + 5_500) == START_MS + 5_000
    assert newest_slot(Grid(1_000), START_MS, START_MS) == START_MS
    assert newest_slot(Grid(10_000, 1), START_MS + 2, START_MS + 9_999) is None
    assert newest_slot(Slots(), START_MS, START_MS + DAY_MS) is None
    assert newest_slot(Slots(START_MS + 1), START_MS, START_MS + 400 * DAY_MS) == START_MS + 1
    assert newest_slot(Every(seconds=1), START_MS - 3600 * DAY_MS, START_MS) == START_MS


def test_slots_between_keeps_the_newest_oldest_first_and_counts_the_rest() -> None:
    assert slots_between(Grid(1_000), START_MS, START_MS + 5_000, most=3) == ([slot(3), slot(4), slot(5)], 2)
    assert slots_between(Grid(1_000), START_MS, START_MS, most=3) == ([], 0)
    assert slots_between(Grid(1_000), START_MS, START_MS + 999, most=3) == ([], 0)
    assert slots_between(Slots(slot(1), slot(9)), START_MS, START_MS + DAY_MS, most=5) == ([slot(1), slot(9)], 0)


def test_k9_slots_between_does_not_walk_years_of_seconds() -> None:
    found, older = slots_between(Every(seconds=1), START_MS - 3600 * DAY_MS, START_MS, most=100)
    assert found == [slot(number) for number in range(-99, 1)]
    assert 100 <= older <= 1_000_000


def test_slots_between_agrees_with_plain_iteration_over_a_daylight_saving_night() -> None:
    schedule = Cron("*/20 1-3 * * *", "Europe/Berlin")
    begin = round(datetime(2027, 10, 30, 12, tzinfo=UTC).timestamp() * 1000)
    expected, at = [], schedule.next_after(begin)
    while at is not None and at <= begin + 2 * DAY_MS:
        expected.append(at)
        at = schedule.next_after(at)
    assert slots_between(schedule, begin, begin + 2 * DAY_MS, most=1_000) == (expected, 0)


SLOTS = [slot(number) for number in (-90, -80, -70, -60, -3, -2)]


@pytest.mark.parametrize(
    ("catch_up", "limit", "accounted", "claim", "missed", "later"),
    [
        ("none", 100, (), (), (-90, -80, -70), (-60, -3, -2)),
        ("none", 100, (-90, -80), (), (-70,), (-60, -3, -2)),
        ("latest", 100, (), (-2,), (-90, -80, -70, -60, -3), ()),
        ("latest", 100, (-2, -3), (-60,), (-90, -80, -70), ()),
        ("all", 100, (-80,), (-90, -70, -60, -3, -2), (), ()),
        ("all", 2, (-80,), (-3, -2), (-90, -70, -60), ()),
        ("all", 2, (-90, -80, -70, -60, -3, -2), (), (), ()),
    ],
)
def test_the_plan_claims_the_newest_and_notes_the_older(
    catch_up: str,
    limit: int,
    accounted: tuple[int, ...],
    claim: tuple[int, ...],
    missed: tuple[int, ...],
    later: tuple[int, ...],
) -> None:
    job = job_of(catch_up=catch_up, catch_up_limit=limit, max_late=60)
    assert job.catch_up is CatchUp(catch_up)
    decided = plan(job, SLOTS, frozenset(slot(number) for number in accounted), START_MS)
    assert decided.claim == tuple(slot(number) for number in claim)
    assert decided.missed == tuple(slot(number) for number in missed)
    assert decided.later == tuple(slot(number) for number in later)


# -- catch-up: at work ------------------------------------------------------------------------------------------------


async def absence(lab: Lab, until_ms: float, **options: Any) -> Work:
    """Run a job each minute for two minutes, be away until a time, and come back."""
    first, work = Work(), Work(duration_ms=3_000)
    instance = await lab.start(job_of(Grid(60_000), first, **options))
    await lab.at(121_000)
    assert len(first.ended) == 2
    await instance.stop()
    await lab.at(until_ms)
    await lab.start(job_of(Grid(60_000), work, **options))
    return work


def minutes(work: Work) -> list[float]:
    """Return the slots that were started, in minutes since the start."""
    return [(slot_ms - START_MS) / 60_000 for slot_ms, _ in work.started]


@virtual
async def test_without_catch_up_only_the_newest_slot_within_max_late_runs(lab: Lab) -> None:
    work = await absence(lab, 10 * 60_000 + 40_000)
    await lab.at(12 * 60_000 + 1_000)
    assert minutes(work) == [10, 11, 12]
    await lab.at(15 * 60_000)
    assert sorted(lab.tape.slots("run_missed")) == [START_MS + minute * 60_000 for minute in range(3, 10)]


@virtual
async def test_latest_runs_the_newest_passed_slot_alone(lab: Lab) -> None:
    work = await absence(lab, 10 * 60_000 + 5_000, catch_up="latest", max_late=1)
    await lab.at(11 * 60_000 + 1_000)
    assert minutes(work) == [10, 11]


@virtual
async def test_all_runs_what_passed_oldest_first_one_at_a_time(lab: Lab) -> None:
    work = await absence(lab, 10 * 60_000 + 5_000, catch_up="all")
    await lab.at(11 * 60_000 + 4_000)
    assert minutes(work) == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert work.most_running == 1
    assert lab.tape.of("run_missed") == []


@virtual
async def test_all_keeps_the_newest_up_to_its_limit_and_notes_the_others(lab: Lab) -> None:
    work = await absence(lab, 10 * 60_000 + 5_000, catch_up="all", catch_up_limit=3)
    await lab.at(11 * 60_000 + 4_000)
    assert minutes(work) == [8, 9, 10, 11]
    assert sorted(lab.tape.slots("run_missed")) == [START_MS + minute * 60_000 for minute in range(3, 8)]


@virtual
async def test_all_looks_back_no_further_than_its_window(lab: Lab) -> None:
    work = await absence(lab, 10 * 60_000 + 5_000, catch_up="all", catch_up_window=200)
    await lab.at(11 * 60_000 + 4_000)
    assert minutes(work)[:4] == [7, 8, 9, 10]


@pytest.mark.parametrize("catch_up", ["none", "latest", "all"])
@virtual
async def test_a_job_that_the_store_does_not_know_never_looks_back(lab: Lab, catch_up: str) -> None:
    work = Work()
    await lab.at(30_000)
    await lab.start(job_of(Grid(60_000), work, catch_up=catch_up))
    await lab.at(61_000)
    assert minutes(work) == [1]
    assert lab.tape.of("run_missed") == []


@virtual
async def test_what_passed_during_a_pause_is_not_caught_up(lab: Lab) -> None:
    work = await absence(lab, 2 * 60_000 + 30_000, catch_up="all")
    lab.store.set_paused("job", paused=True)
    await lab.instances[-1].stop()
    await lab.at(8 * 60_000 + 30_000)
    lab.store.set_paused("job", paused=False)
    await lab.start(job_of(Grid(60_000), work, catch_up="all"))
    await lab.at(9 * 60_000 + 4_000)
    assert minutes(work) == [9]


@virtual
async def test_a_fleet_that_comes_back_catches_each_slot_up_once(lab: Lab) -> None:
    first = await lab.start(job_of(Grid(60_000), Work(), catch_up="all"))
    await lab.at(61_000)
    await first.stop()
    await lab.at(20 * 60_000 + 30_000)
    works = [Work(duration_ms=700) for _ in range(4)]
    for work in works:
        lab.launch(job_of(Grid(60_000), work, catch_up="all"))
    await lab.at(22 * 60_000 + 30_000)
    ran = sorted(slot_ms for work in works for slot_ms, _ in work.started)
    assert ran == [START_MS + minute * 60_000 for minute in range(2, 23)]


@virtual
async def test_regular_slots_keep_their_time_while_a_job_that_allows_overlap_catches_up(lab: Lab) -> None:
    first = await lab.start(job_of(Grid(60_000), Work(), catch_up="all", overlap="allow"))
    await lab.at(61_000)
    await first.stop()
    await lab.at(10 * 60_000 + 30_000)
    work = Work(duration_ms=20_000)
    await lab.start(job_of(Grid(60_000), work, catch_up="all", overlap="allow"))
    await lab.at(12 * 60_000 + 1_000)
    late = {event.key.slot_ms: event.facts["late_ms"] for event in lab.tape.of("run_started")}
    assert late[START_MS + 11 * 60_000] < 100
    assert late[START_MS + 12 * 60_000] < 100


@virtual
async def test_k13_slots_that_pass_while_an_earlier_absence_is_caught_up_are_caught_up_too(lab: Lab) -> None:
    options = {"catch_up": "all", "max_late": 10, "overlap": "allow"}
    work = await absence(lab, 5 * 60_000 + 30_000, **options)
    work.duration_ms = 100_000  # the catch-up is under way for minutes
    await lab.at(6 * 60_000 + 5_000)
    lab.instances[-1].clock.suspend(600_000)
    lab.clock.step(600_000)
    await lab.at(60 * 60_000)
    assert set(lab.statuses()) >= {START_MS + minute * 60_000 for minute in range(1, 60)}


@virtual
async def test_k6_a_catch_up_that_is_stopped_while_it_claims_leaves_no_run_behind(lab: Lab) -> None:
    first = await lab.start(job_of(Grid(60_000), Work(), catch_up="all"))
    await lab.at(61_000)
    await first.stop()
    await lab.at(10 * 60_000 + 30_000)
    work, backend = Work(duration_ms=1_000), FaultyBackend(lab.store)
    backend.late_ms["claim"] = 400
    instance = await lab.start(job_of(Grid(60_000), work, catch_up="all"), backend=backend)
    await until(lambda: bool(lab.held()), "a claim is in the store", 5_000)
    assert work.started == []
    await instance.stop()
    assert lab.held() == []
    assert [record.status for record in lab.history()] == [RunStatus.SUCCESS, RunStatus.HANDED_OVER]


# -- the queue --------------------------------------------------------------------------------------------------------


def test_the_queue_keeps_the_earliest_refused_slot_of_each_job() -> None:
    queue = SlotQueue()
    assert queue.keep("a", 20) is None
    assert queue.keep("a", 20) is None
    assert queue.keep("a", 30) == 30
    assert queue.keep("a", 10) == 20
    assert queue.keep("b", 50) is None
    assert (queue.get("a"), queue.get("b")) == (10, 50)
    queue.drop("a")
    queue.drop("a")
    assert queue.get("a") is None


@virtual
async def test_a_queued_slot_runs_once_its_blocker_has_ended(lab: Lab) -> None:
    work = Work(duration_ms=2_500)
    await lab.start(job_of(Slots(slot(5), slot(6)), work, overlap="queue"))
    await lab.at(20_000)
    assert [entry[0] for entry in work.started] == [slot(5), slot(6)]
    assert work.most_running == 1
    assert lab.tape.of("slot_skipped") == []


@virtual
async def test_a_queued_slot_runs_after_a_blocker_on_another_instance(lab: Lab) -> None:
    token_key = RunKey("job", slot(4))
    work = Work()
    await lab.start(job_of(Slots(slot(5)), work, overlap="queue", lease=30, heartbeat=2))
    await lab.at(4_100)
    token = lab.won(token_key, lease_ms=30_000)
    await lab.at(12_000)
    assert work.started == []
    lab.finished(token_key, token)
    await until(lambda: bool(work.ended), "the queued slot runs", 5_000)


@virtual
async def test_a_queue_holds_one_slot_the_others_are_noted(lab: Lab) -> None:
    work = Work(duration_ms=3_500)
    await lab.start(job_of(Slots(slot(5), slot(6), slot(7)), work, overlap="queue"))
    await lab.at(30_000)
    assert [entry[0] for entry in work.started] == [slot(5), slot(6)]
    (event,) = lab.tape.of("slot_skipped")
    assert event.key.slot_ms == slot(7)
    assert "another slot is queued" in event.facts["reason"]


@virtual
async def test_a_queued_slot_that_a_newer_run_overtook_is_dropped_with_a_note(lab: Lab) -> None:
    lab.won(RunKey("job", slot(0)), lease_ms=60_000)
    work = Work()
    instance = await lab.start(job_of(Slots(slot(5)), work, overlap="queue", lease=60, heartbeat=2))
    await lab.at(6_000)
    lab.claim(RunKey("job", slot(6)), exclusive=False, lease_ms=1_000)
    lab.clock.step(0)
    instance.engine.runner.blocker_ended(instance.engine.jobs["job"])
    await passes(1_000)
    assert work.started == []
    assert [event.key.slot_ms for event in lab.tape.of("slot_skipped")] == [slot(5)]
    assert "newer slot started" in lab.tape.of("slot_skipped")[0].facts["reason"]


@virtual
async def test_what_was_queued_is_gone_with_its_job(lab: Lab) -> None:
    work = Work(duration_ms=3_000)
    instance = await lab.start(job_of(Slots(slot(5), slot(6)), work, overlap="queue"))
    await lab.at(6_500)
    instance.engine.remove_job("job")
    await lab.at(20_000)
    assert [entry[0] for entry in work.started] == [slot(5)]
    assert lab.history()[0].status is RunStatus.SUCCESS
