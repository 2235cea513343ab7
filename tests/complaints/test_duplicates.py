"""Reports of runs that happened twice; the id of each case names the public report."""

from __future__ import annotations

import asyncio

import pytest
from anarchon import Every
from anarchon.runtime import instance_name
from anarchon.testing import Fault, FaultKind
from anarchon.types import Outcome, RunKey, RunStatus
from rig import START_MS, FaultyBackend, Grid, Lab, Slots, Work, job_of, passes, until, virtual
from scenes import Scenario, fleet, played, runs_of, started_once


def slot(number: int) -> int:
    return START_MS + number * 1_000


@virtual
async def every_process_fires(lab: Lab) -> None:
    """Four application processes hold the same list: one runs each slot, the others are told that they lost."""
    work = Work(duration_ms=50)
    for _ in range(4):
        await lab.start(job_of(Grid(10_000), work))
    await lab.at(61_000)
    assert work.started == [(slot(10 * n), 1) for n in range(1, 7)]
    assert all(instance.backend.calls.count("claim") >= 6 for instance in lab.instances)
    assert len({(event.instance, event.key) for event in lab.tape.of("slot_due")}) == 4 * 6
    assert lab.tape.of("slot_skipped") == lab.tape.of("run_missed") == []


@virtual
async def reloader_doubles(lab: Lab) -> None:
    """A parent and its reloaded child hold the same application."""
    work = Work()
    await lab.start(job_of(Grid(5_000), work))
    await passes(300)
    await lab.start(job_of(Grid(5_000), work))
    await lab.at(31_000)
    assert work.started == [(slot(5 * n), 1) for n in range(1, 7)]


@virtual
async def late_slot_at_start(lab: Lab) -> None:
    """All instances start at once and claim the same late slot of a job of a millisecond."""
    key = RunKey("job", slot(-60))
    lab.finished(key, lab.won(key, max_late_ms=100_000))  # the store knows the job
    lab.clock.step(20_000)
    work = Work(duration_ms=1)
    for _ in range(8):
        lab.launch(job_of(Grid(60_000), work))
    await passes(5_000)
    assert work.started == [(START_MS, 1)]


@virtual
async def lock_expires_under_job(lab: Lab) -> None:
    """A job of five leases keeps its run while its heartbeats arrive."""
    work = Work(duration_ms=10_000)
    for _ in range(3):
        await lab.start(job_of(Slots(slot(5)), work, lease=2))
    await lab.at(30_000)
    assert work.started == work.ended == [(slot(5), 1)]
    assert len(lab.tape.of("lease_renewed")) >= 10


@virtual
async def finished_and_polled_again(lab: Lab) -> None:
    """A slower instance asks 10 ms after the run was finished."""
    work = Work()
    await lab.start(job_of(Slots(slot(5)), work))
    slower = await lab.start(job_of(Slots(slot(5)), work))
    slower.backend.hooks["claim"] = lambda: passes(10)
    await lab.at(20_000)
    assert work.started == [(slot(5), 1)]
    assert lab.claim(RunKey("job", slot(5))).outcome is Outcome.DONE


def long_soak_with_resets() -> None:
    """Four instances, an hour, a reset of somebody's connection every fifteen seconds."""
    kinds = (FaultKind.LOST_REPLIES, FaultKind.PARTITION, FaultKind.LOST_REQUESTS)
    faults = [Fault(15_000 * n, kinds[n % 3], n % 4, 2_000, 0.7) for n in range(1, 240)]
    report = played(fleet(Every(seconds=10), lease=6), *faults, instances=4, seconds=3_600)
    assert len(runs_of(report)) >= 350
    winners = [(attempt.key, attempt.attempt) for attempt in report.attempts]
    assert len(winners) == len(set(winners))


@virtual
async def equal_names(lab: Lab) -> None:
    """Three processes of one host share a name: tokens tell them apart, names decide nothing."""
    work = Work(duration_ms=100)
    for _ in range(3):
        await lab.start(job_of(Grid(5_000), work), name="host-1")
    await lab.at(31_000)
    assert work.started == [(slot(5 * n), 1) for n in range(1, 7)]
    assert len({run.token for run in work.runs}) == 6
    assert instance_name() != instance_name()


@virtual
async def lease_of_somebody_else(lab: Lab) -> None:
    """Somebody took the run over: the old holder's renewal is refused and it is told."""
    work = Work(duration_ms=30_000)
    await lab.start(job_of(Slots(slot(1)), work, lease=9, heartbeat=3))
    await until(lambda: bool(work.started), "the slot runs")
    lab.clock.step(10_000)
    assert lab.claim(RunKey("job", slot(1)), lease_ms=60_000).attempt == 2
    await until(lambda: bool(work.cancelled), "the old holder stops", 5_000)
    assert [event.key.slot_ms for event in lab.tape.of("lease_lost")] == [slot(1)]
    await passes(20_000)
    assert [(record.attempt, record.status) for record in lab.history()] == [(1, RunStatus.LOST), (2, RunStatus.RUNNING)]


@virtual
async def both_lose_the_store(lab: Lab) -> None:
    """Both instances are cut off while one runs; the other may take over only once the lease has ended."""
    first, second = Work(duration_ms=60_000), Work(duration_ms=5_000)
    holder = await lab.start(job_of(Slots(slot(1)), first, lease=10, heartbeat=3), backend=FaultyBackend(lab.store))
    await until(lambda: bool(first.started), "the first runs it")
    other = await lab.start(job_of(Slots(slot(1)), second, lease=10, heartbeat=3), backend=FaultyBackend(lab.store))
    await lab.at(4_500)
    holder.backend.down = other.backend.down = True
    await lab.at(8_000)
    other.backend.down = False
    await lab.at(10_900)  # renewed at 4 s at the latest: the lease holds
    assert second.started == []
    await until(lambda: bool(second.ended), "the second takes over and ends", 20_000)
    holder.backend.down = False
    await passes(60_000)
    assert first.ended == []
    assert second.started == [(slot(1), 2)]
    assert [record.status for record in lab.history()] == [RunStatus.LOST, RunStatus.SUCCESS]


@virtual
async def reply_of_the_claim_lost(lab: Lab) -> None:
    """The reply to a successful claim is lost: asked again it is the same win; milliseconds of a slot are kept."""
    work = Work()
    instance = await lab.start(job_of(Grid(60_000, phase_ms=467), work))
    instance.backend.lose["claim"] = 1
    await lab.at(10_000)
    assert work.started == [(START_MS + 467, 1)]
    assert [(record.slot_ms, record.attempt) for record in lab.history()] == [(START_MS + 467, 1)]


def crash_loop() -> None:
    """An instance that dies and starts again every 300 ms around a slot, beside a steady one."""
    faults = [Fault(18_000 + 300 * n, FaultKind.CRASH, 1, 1) for n in range(14)]
    report = played(fleet(Every(seconds=10), lease=6, jitter=0), *faults, instances=2, seconds=60, handler_s=(0.0, 0.0))
    slots = runs_of(report)
    assert len(slots) >= 6
    assert set(slots.values()) == {1}


def four_pods_without_configuration() -> None:
    """Four pods of one image, with no difference between them."""
    report = played(fleet("* * * * *"), instances=4, seconds=600)
    runs = runs_of(report)
    assert len(runs) >= 10
    started_once(report, runs)


def jitter_of_seconds() -> None:
    """Both instances spread their claims over three seconds."""
    report = played(fleet("* * * * *", jitter=3), instances=2, seconds=900)
    assert len(runs_of(report)) >= 15
    started_once(report, runs_of(report))


@virtual
async def thousands_due_and_a_slow_store(lab: Lab) -> None:
    """5,000 jobs are due at once at a slow store: each slot is claimed on its own, there is no lock around the batch."""
    works = Work()
    for name in ("a", "b"):
        instance = await lab.start(
            *(job_of(Slots(slot(5)), works, name=f"job{n}", max_late=3_000) for n in range(5_000)), max_running=2_000, name=name
        )
        instance.backend.late_ms = {"claim_many": 1_000, "claim": 1_000}
    await until(lambda: len(works.ended) >= 5_000, "all have run", 600_000)
    await asyncio.sleep(30)
    assert len(works.started) == 5_000
    assert {run.attempt for run in works.runs} == {1}
    assert len({run.job for run in works.runs}) == 5_000


CASES = [
    pytest.param(every_process_fires, id="agronholm/apscheduler#766"),
    pytest.param(reloader_doubles, id="viniciuschiele/flask-apscheduler#139"),
    pytest.param(late_slot_at_start, id="lukas-krecan/ShedLock#6"),
    pytest.param(late_slot_at_start, id="lukas-krecan/ShedLock#8"),
    pytest.param(lock_expires_under_job, id="go-co-op/gocron#799"),
    pytest.param(finished_and_polled_again, id="python-arq/arq#196"),
    pytest.param(long_soak_with_resets, id="rq/rq#1531"),
    pytest.param(equal_names, id="oban-bg/oban-py#32"),
    pytest.param(lease_of_somebody_else, id="sibson/redbeat#127"),
    pytest.param(both_lose_the_store, id="quartz-scheduler/quartz#847"),
    pytest.param(reply_of_the_claim_lost, id="HangfireIO/Hangfire#1208"),
    pytest.param(crash_loop, id="taskforcesh/bullmq#2876"),
    pytest.param(four_pods_without_configuration, id="coleifer/huey#716"),
    pytest.param(jitter_of_seconds, id="agenda/agenda#905"),
    pytest.param(thousands_due_and_a_slow_store, id="rq/rq-scheduler#312"),
]


@pytest.mark.parametrize("scenario", CASES)
def test_runs_once(scenario: Scenario) -> None:
    scenario()
