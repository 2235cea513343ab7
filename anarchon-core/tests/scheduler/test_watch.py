"""Runs that others hold: takeover (C12), oldest first (K11), recovery (K12), bounds (K9), on virtual time."""

from __future__ import annotations

import pytest
from anarchon.types import RunKey, RunStatus
from anarchon.watch import WATCHED_MAX
from rig import START_MS, FaultyBackend, Grid, Lab, Slots, Work, job_of, passes, until, virtual

DAY_MS = 86_400_000
LEASE_MS = 10_000


def slot(number: int) -> int:
    return START_MS + number * 1_000


def key(number: int, job: str = "job") -> RunKey:
    return RunKey(job, slot(number))


@virtual
async def test_c12_a_dead_runners_run_is_taken_over_within_lease_and_heartbeat(lab: Lab) -> None:
    work = Work()
    await lab.start(job_of(Slots(slot(5)), work, lease=10, heartbeat=3))
    await lab.at(4_999)
    lab.clock.step(2)  # the stranger's claim comes first
    lab.won(key(5), lease_ms=LEASE_MS)
    lab.clock.step(-2)
    died_ms = lab.now_ms()
    await until(lambda: bool(work.started), "the run is taken over", 60_000)
    assert work.started == [(slot(5), 2)]
    assert lab.now_ms() - died_ms <= 10_000 + 50
    assert lab.tape.of("run_taken_over")[0].facts["previous"] == "stranger"


@virtual
async def test_c16_a_handed_over_run_is_taken_within_a_heartbeat(lab: Lab) -> None:
    work = Work()
    await lab.start(job_of(Slots(slot(5)), work, lease=30, heartbeat=3))
    await lab.at(4_999)
    lab.clock.step(2)
    token = lab.won(key(5), lease_ms=30_000)
    lab.clock.step(-2)
    await passes(4_000)
    lab.store.release(key(5), token, delay_ms=0, counted=False, error=None)
    released_ms = lab.now_ms()
    await until(lambda: bool(work.started), "the run is taken over", 60_000)
    assert lab.now_ms() - released_ms <= 3_000 + 50


@virtual
async def test_k12_what_a_dead_fleet_left_is_found_at_start_and_run(lab: Lab) -> None:
    lab.won(RunKey("job", START_MS), lease_ms=2_000)
    lab.won(RunKey("other", START_MS), lease_ms=2_000)
    lab.clock.step(5_000)
    mine, other = Work(), Work()
    await lab.start(job_of(Slots(), mine), job_of(Slots(), other, name="other"))
    await until(lambda: bool(mine.ended and other.ended), "both run", 1_000)
    assert mine.started == other.started == [(START_MS, 2)]


@virtual
async def test_k12_a_run_that_was_left_over_a_day_ago_is_marked_and_not_run(lab: Lab) -> None:
    lab.won(RunKey("job", START_MS), lease_ms=2_000)
    lab.clock.step(DAY_MS + 3_000)
    work = Work()
    await lab.start(job_of(Slots(), work))
    await until(lambda: lab.statuses() == {START_MS: "interrupted"}, "it is marked", 60_000)
    await passes(60_000)
    assert work.started == []


@virtual
async def test_k12_the_last_minute_of_a_day_is_still_run(lab: Lab) -> None:
    lab.won(RunKey("job", START_MS), lease_ms=2_000)
    lab.clock.step(DAY_MS - 60_000)
    work = Work()
    await lab.start(job_of(Slots(), work))
    await until(lambda: bool(work.ended), "it runs", 1_000)


@virtual
async def test_k12_a_lost_store_that_returns_is_asked_for_unfinished_runs(lab: Lab) -> None:
    work = Work()
    instance = await lab.start(job_of(Grid(60_000), work, lease=10, heartbeat=3))
    instance.backend.down = True
    await passes(70_000)  # the slot's claim fails meanwhile
    lab.won(RunKey("job", START_MS + 30_000), lease_ms=1_000)  # what some other instance left
    await passes(5_000)
    asked = instance.backend.calls.count("unfinished")
    instance.backend.down = False
    await until(lambda: (START_MS + 30_000, 2) in work.started, "the left run is taken", 20_000)
    assert instance.backend.calls.count("unfinished") > asked


@virtual
async def test_k12_a_blocker_named_by_an_overlap_is_watched_and_taken_over(lab: Lab) -> None:
    work = Work()
    await lab.start(job_of(Slots(slot(10)), work, lease=10, heartbeat=3))
    lab.won(key(-5), lease_ms=20_000, max_late_ms=60_000)
    await passes(11_000)
    assert [event.facts["reason"] for event in lab.tape.of("slot_skipped")] == [
        f"overlap: the run of slot {slot(-5)} of stranger was still running"
    ]
    await until(lambda: bool(work.started), "the blocker is taken over", 20_000)
    assert work.started == [(slot(-5), 2)]


@virtual
async def test_k11_an_ended_older_run_is_taken_before_the_newer_slot_which_overlaps(lab: Lab) -> None:
    work = Work(duration_ms=2_000)
    instance = await lab.start(job_of(Slots(slot(5)), work, lease=10, heartbeat=4))
    lab.won(key(-3), lease_ms=100, max_late_ms=60_000)
    job = instance.engine.jobs["job"]
    instance.engine.watch.add(job, key(-3), None)  # looked at again in a heartbeat: after the slot's time
    await passes(3_000)
    instance.engine.watch.add(job, key(-3), None)
    await until(lambda: bool(lab.tape.of("slot_skipped")), "the newer slot is skipped", 20_000)
    assert work.started[0] == (slot(-3), 2)
    assert f"slot {slot(-3)} of i0" in lab.tape.of("slot_skipped")[0].facts["reason"]


@virtual
async def test_k11_ended_runs_are_taken_oldest_first_and_one_at_a_time(lab: Lab) -> None:
    for number in (-3, -9, -6):
        lab.won(key(number), lease_ms=100, exclusive=False)
    lab.clock.step(1_000)
    work = Work(duration_ms=5_000)
    await lab.start(job_of(Slots(), work, lease=3, heartbeat=1))
    await until(lambda: len(work.ended) == 3, "all are taken over", 60_000)
    assert [entry[0] for entry in work.started] == [slot(-9), slot(-6), slot(-3)]
    assert work.most_running == 1


@virtual
async def test_k11_a_job_that_allows_overlap_takes_them_all_at_once(lab: Lab) -> None:
    for number in range(-9, 0):
        lab.won(key(number), lease_ms=100, exclusive=False)
    lab.clock.step(1_000)
    work = Work(duration_ms=5_000)
    await lab.start(job_of(Slots(), work, overlap="allow", lease=3, heartbeat=1))
    await until(lambda: len(work.started) == 9, "all are taken over", 1_000)
    assert work.most_running == 9


@virtual
async def test_errors_do_not_make_an_instance_forget_what_it_watches(lab: Lab) -> None:
    work = Work()
    instance = await lab.start(job_of(Slots(), work, lease=10, heartbeat=3))
    lab.won(key(-1), lease_ms=20_000)
    instance.engine.watch.add(instance.engine.jobs["job"], key(-1), 20_000)
    instance.backend.failing |= {"check", "unfinished"}
    await passes(40_000)
    assert work.started == []
    instance.backend.failing.clear()
    await until(lambda: bool(work.started), "the run is taken over", 4_000)


@virtual
async def test_a_takeover_whose_claim_fails_is_tried_again(lab: Lab) -> None:
    work = Work()
    instance = await lab.start(job_of(Slots(), work, lease=2, heartbeat=1))
    lab.won(key(-1), lease_ms=500)
    instance.engine.watch.add(instance.engine.jobs["job"], key(-1), 500)
    instance.backend.failing.add("claim")
    await passes(20_000)
    instance.backend.failing.clear()
    await until(lambda: bool(work.started), "the run is taken over", 5_000)
    assert work.started == [(slot(-1), 2)]


@virtual
async def test_c12_of_many_backups_exactly_one_takes_over(lab: Lab) -> None:
    works = [Work(duration_ms=500) for _ in range(6)]
    for work in works:
        await lab.start(job_of(Slots(slot(5)), work, lease=10, heartbeat=3))
    lab.clock.step(6_000)
    lab.won(key(5), lease_ms=LEASE_MS)
    await passes(60_000)
    assert sorted(entry for work in works for entry in work.started) == [(slot(5), 2)]


@virtual
async def test_k9_an_instance_watches_a_bounded_number_of_runs_of_a_job(lab: Lab) -> None:
    instance = await lab.start(job_of(Slots(), overlap="allow"))
    job = instance.engine.jobs["job"]
    for number in range(WATCHED_MAX + 50):
        lab.won(key(-number, "job"), lease_ms=600_000, max_late_ms=10**9, exclusive=False)
        instance.engine.watch.add(job, key(-number), 600_000)
    assert len(instance.engine.watch) == WATCHED_MAX
    instance.engine.watch.drop(key(0))
    instance.engine.watch.add(job, key(-WATCHED_MAX - 7), 600_000)
    assert len(instance.engine.watch) == WATCHED_MAX


@virtual
async def test_watching_many_runs_costs_one_query_a_hundred_and_heartbeat(lab: Lab) -> None:
    instance = await lab.start(job_of(Slots(), overlap="allow", lease=30, heartbeat=10))
    job = instance.engine.jobs["job"]
    for number in range(250):
        lab.won(key(-number), lease_ms=3_600_000, max_late_ms=10**9, exclusive=False)
        instance.engine.watch.add(job, key(-number), 3_600_000)
        await passes(1)
    before = instance.backend.calls.count("check")
    await passes(60_000)
    assert instance.backend.calls.count("check") - before <= 6 * 3 + 3


@virtual
async def test_notes_are_never_watched_and_a_removed_jobs_runs_no_longer(lab: Lab) -> None:
    instance = await lab.start(job_of(Slots()))
    job = instance.engine.jobs["job"]
    assert instance.engine.watch.add(job, RunKey("job", START_MS, "n"), 1) is None
    instance.engine.watch.add(job, key(1), 60_000)
    assert len(instance.engine.watch) == 1
    instance.engine.remove_job("job")
    assert len(instance.engine.watch) == 0


@virtual
async def test_k8_a_runner_does_not_watch_its_own_runs(lab: Lab) -> None:
    work = Work(duration_ms=60_000)
    instance = await lab.start(job_of(Grid(600_000), work, lease=10, heartbeat=3))
    await lab.at(599_990)
    await until(lambda: bool(work.started), "the slot runs")
    await instance.engine._recover()
    assert len(instance.engine.watch) == 0
    checked = instance.backend.calls.count("check")
    await passes(30_000)
    assert instance.backend.calls.count("check") == checked


@pytest.mark.parametrize("backups", [1, 4])
@virtual
async def test_k8_a_long_run_costs_each_instance_one_call_a_heartbeat(lab: Lab, backups: int) -> None:
    work = Work(duration_ms=60_000)
    for _ in range(backups + 1):
        await lab.start(job_of(Grid(600_000), work, lease=6, heartbeat=2))
    await lab.at(599_990)
    await until(lambda: bool(work.started), "the slot runs")
    await passes(100)
    before = [len(instance.backend.calls) for instance in lab.instances]
    await passes(58_000)
    assert work.ended == []
    spent = [len(instance.backend.calls) - count for instance, count in zip(lab.instances, before, strict=True)]
    assert all(calls <= 58 / 2 + 1 for calls in spent), spent
    assert len(work.started) == 1


@virtual
async def test_c13_a_run_that_crashes_each_time_is_interrupted_at_the_limit(lab: Lab) -> None:
    work = Work()
    lab.won(key(-1), lease_ms=1_000)
    lab.clock.step(2_000)
    assert lab.claim(key(-1), lease_ms=1_000).attempt == 2
    lab.clock.step(2_000)
    assert lab.claim(key(-1), lease_ms=1_000).attempt == 3
    await lab.start(job_of(Slots(), work, lease=1))
    await until(lambda: lab.statuses() == {slot(-1): "interrupted"}, "it is marked", 10_000)
    assert work.started == []


@virtual
async def test_a_partition_that_heals_after_a_takeover_refuses_the_first_finish(lab: Lab) -> None:
    first, second = Work(duration_ms=30_000), Work(duration_ms=60_000)
    cut = await lab.start(job_of(Slots(slot(1)), first, lease=10, heartbeat=3), backend=FaultyBackend(lab.store))
    await until(lambda: bool(first.started), "the first runs it")
    await lab.start(job_of(Slots(slot(1)), second, lease=10, heartbeat=3))
    cut.backend.down = True
    await until(lambda: bool(second.started), "the second takes over", 15_000)
    cut.backend.down = False
    await until(lambda: bool(second.ended), "the second ends")
    await passes(1_000)
    assert first.ended == []
    assert first.cancelled == [(slot(1), 1)]
    assert second.started == [(slot(1), 2)]
    assert [record.status for record in lab.history()] == [RunStatus.LOST, RunStatus.SUCCESS]
