"""Reports about leases, event loops, forks, shutdowns and changed job lists; the id of each case names the public report."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from anarchon import Cron, Every, Scheduler
from anarchon.cli.main import cli as command
from anarchon.errors import AnarchonError
from anarchon.store import Store
from anarchon.testing import Fault, FaultKind
from anarchon.types import RunKey, RunStatus
from anarchon.why import Verdict, why
from click.testing import CliRunner
from rig import START_MS, FaultyBackend, Grid, Lab, Slots, Tape, VirtualClock, Work, job_of, observers, passes, until, virtual
from scenes import Scenario, fleet, instant_ms, played, pretend, runs_of

FORKS = """
import os, sys, threading
from anarchon import Cron, Every, Scheduler
before = len(os.listdir("/proc/self/fd"))
scheduler = Scheduler(sys.argv[1])
@scheduler.job(Every(seconds=1), jitter=0)
def beat(run):
    with open(sys.argv[2], "a") as file: file.write(f"{run.slot_ms}\\n")
    if file.name and len(open(sys.argv[2]).readlines()) >= 2: scheduler.request_stop()
assert len(os.listdir("/proc/self/fd")) == before and threading.active_count() == 1
children = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        timer = threading.Timer(20, scheduler.request_stop); timer.daemon = True; timer.start()
        threading.Timer(3, scheduler.request_stop).start()
        scheduler.run()
        os._exit(0)
    children.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
"""


def slot(number: int) -> int:
    return START_MS + number * 1_000


# -- lease, event loop, fork --------------------------------------------------------------------------------------------


def handler_blocks_the_loop() -> None:
    """An async handler blocks its loop for three leases: the lease is renewed from elsewhere, nobody starts it again."""
    url, tape, begun = f"memory://blocked-{os.getpid()}", Tape(), threading.Event()
    schedulers = [Scheduler(url, plugins=[tape], instance=name) for name in ("a", "b")]

    async def blocks() -> None:
        if not begun.is_set():
            begun.set()
            time.sleep(1.8)

    for scheduler in schedulers:
        scheduler.add_job(blocks, Grid(500), name="job", lease=0.6, jitter=0)
        scheduler.start_in_thread()
    tape.wait("run_finished", 4)
    for scheduler in schedulers:
        scheduler.shutdown()
    first = tape.of("run_started")[0].key
    ends = [event for event in tape.of("run_finished") if event.key == first]
    assert [(event.facts["attempt"], event.facts["status"], event.facts["recorded"]) for event in ends] == [
        (1, RunStatus.SUCCESS, True)
    ]
    assert tape.of("lease_lost") == tape.of("run_taken_over") == []


@virtual
async def first_heartbeat_comes(lab: Lab) -> None:
    """The first run begins with the start itself; its first heartbeat comes within a third of the lease."""
    key = RunKey("job", slot(-60))
    lab.finished(key, lab.won(key, max_late_ms=100_000))
    lab.clock.step(10_000)
    work = Work(duration_ms=8_000)
    await lab.start(job_of(Grid(60_000), work, lease=9), clock=lab.clock)
    await until(lambda: bool(work.started), "the late slot runs", 1_000)
    await passes(3_050)
    assert len(lab.tape.of("lease_renewed")) == 1


def made_before_the_fork() -> None:
    """A scheduler made at import opens nothing; two forks of it run each slot once."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        words = [sys.executable, "-W", "ignore", "-c", FORKS, f"sqlite:///{folder}/cron.db", str(log)]
        done = subprocess.run(words, check=False, timeout=60, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        slots = log.read_text().split()
        assert len(slots) >= 2
        assert len(slots) == len(set(slots))


def another_loop_than_at_construction() -> None:
    """Constructed under one loop, run under another: asyncio's own, and uvloop's."""
    makers: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]
    for make in makers:
        tape = Tape()
        loops: list[Any] = []

        async def build(tape: Tape = tape, loops: list[Any] = loops) -> Scheduler:
            scheduler = Scheduler("memory://", plugins=[tape])
            scheduler.add_job(lambda: loops.append(1), Grid(100), name="thread", jitter=0)

            async def job() -> None:
                loops.append(asyncio.get_running_loop())

            scheduler.add_job(job, Grid(100), jitter=0)
            return scheduler

        async def use(scheduler: Scheduler, tape: Tape = tape) -> asyncio.AbstractEventLoop:
            async with scheduler:
                await asyncio.to_thread(tape.wait, "run_finished", 4)
            return asyncio.get_running_loop()

        scheduler = asyncio.run(build())
        with asyncio.Runner(loop_factory=make) as runner:
            used = runner.run(use(scheduler))
        assert {loop for loop in loops if loop != 1} == {used}


@virtual
async def nobody_evaluates_it(lab: Lab) -> None:
    """The only worker with the job died without a word: asked for a later slot, `why` says that nobody had the job."""
    instance = await lab.start(job_of(Every(seconds=10), Work()))
    await lab.at(21_000)
    instance.engine.stop()
    await lab.at(60_000)
    store = Store(FaultyBackend(lab.store), VirtualClock(), observers(), "doctor")
    await store.open()
    answer = await why(store, "job", slot(40))
    assert answer.verdict is Verdict.UNACCOUNTED
    assert "no instance that holds this job was running" in answer.text
    assert (await why(store, "job", slot(20))).verdict is Verdict.RAN


# -- shutdown -----------------------------------------------------------------------------------------------------------


@virtual
async def stop_lets_runs_finish(lab: Lab) -> None:
    """`stop` within its grace: no new claims, the running handler goes on to its end."""
    work = Work(duration_ms=12_000)
    instance = await lab.start(job_of(Grid(5_000), work, overlap="allow"), grace_ms=30_000)
    await lab.at(6_000)
    await instance.stop()
    assert work.started == work.ended == [(slot(5), 1)]
    assert work.cancelled == []


@virtual
async def hand_over_at_the_end_of_the_grace(lab: Lab) -> None:
    """The grace is over: another instance begins attempt 2 at once, not after the lease of four hours."""
    works = [Work(duration_ms=600_000), Work(duration_ms=1_000)]
    first = await lab.start(job_of(Slots(slot(5)), works[0], lease=4 * 3_600, heartbeat=3), grace_ms=5_000)
    await until(lambda: bool(works[0].started), "the first runs it")
    await lab.start(job_of(Slots(slot(5)), works[1], lease=4 * 3_600, heartbeat=3))
    await first.stop()
    assert lab.now_ms() <= slot(5) + 5_000 + 1_500
    await until(lambda: bool(works[1].ended), "the second runs it", 5_000)
    assert works[1].started == [(slot(5), 2)]
    assert [record.status for record in lab.history()] == [RunStatus.HANDED_OVER, RunStatus.SUCCESS]


@virtual
async def window_of_the_supervisor(lab: Lab) -> None:
    """Killed after 15 s: a handler that will not stop is released, `stop` returns within grace + 1 s."""
    work = Work(duration_ms=600_000, stubborn_ms=600_000)
    instance = await lab.start(job_of(Slots(slot(5)), work), grace_ms=10_000)
    await until(lambda: bool(work.started), "it runs")
    begun_ms = lab.now_ms()
    instance.engine.stop()
    await asyncio.wait_for(instance.task, 60)
    assert lab.now_ms() - begun_ms <= 11_000
    assert work.cancelled == [(slot(5), 1)]
    assert lab.held() == []
    second = Work(duration_ms=600_000)
    hasty = await lab.start(job_of(Slots(slot(60)), second, name="hasty"), grace_ms=30_000)
    await until(lambda: bool(second.started), "it runs")
    begun_ms = lab.now_ms()
    hasty.engine.stop()
    hasty.engine.stop_now()
    await asyncio.wait_for(hasty.task, 60)
    assert lab.now_ms() - begun_ms <= 2_000


# -- changed schedules and names ----------------------------------------------------------------------------------------


def removed_jobs_stay_removed() -> None:
    """Removed from the code of every instance: no more runs, and `orphans` lists what is left of it."""
    before = fleet(Every(seconds=10), name="kept", lease=6)
    before.add_job(pretend, Every(seconds=10), name="gone", lease=6)
    deploys = [Fault(30_000 + 5_000 * n, FaultKind.DEPLOY, n, 1_000) for n in range(3)]
    report = played(before, *deploys, seconds=120, after=fleet(Every(seconds=10), name="kept", lease=6))
    assert max(runs_of(report, "gone")) <= instant_ms("2027-01-15T10:00:50")
    assert max(runs_of(report, "kept")) >= instant_ms("2027-01-15T10:01:50")
    with tempfile.TemporaryDirectory() as folder:
        url, tape = f"sqlite:///{folder}/cron.db", Tape()
        scheduler = Scheduler(url, plugins=[tape])
        scheduler.add_job(lambda: None, Grid(100), name="gone", jitter=0)
        scheduler.start_in_thread()
        tape.wait("run_finished")
        scheduler.remove_job("gone")
        scheduler.shutdown()
        listed = CliRunner().invoke(command, ["orphans", url, "--days", "0"], standalone_mode=False)
        assert listed.output.startswith("gone: last seen")


def changed_interval_is_taken() -> None:
    """A changed interval is in force from the next slot on, on every instance that has it."""
    deploys = [Fault(40_000, FaultKind.DEPLOY, n, 1_000) for n in range(3)]
    report = played(fleet(Every(seconds=15), lease=6), *deploys, seconds=180, after=fleet(Every(seconds=20), lease=6))
    start_ms, runs = instant_ms("2027-01-15T10:00:00"), runs_of(report)
    assert [at for at in (15, 30, 45, 60, 75, 80, 90, 100, 105, 120, 140, 160) if runs[start_ms + at * 1_000]] == [
        15, 30, 60, 80, 100, 120, 140, 160,
    ]  # fmt: skip
    assert set(runs.values()) == {1}


def two_schedules_in_one_fleet() -> None:
    """A rolling deploy over ten minutes: what either version names runs, each slot once, and nothing vanishes."""
    old, new = fleet(Every(seconds=20), lease=6), fleet(Every(seconds=30), lease=6)
    deploys = [Fault(150_000 + 200_000 * n, FaultKind.DEPLOY, n, 10_000) for n in range(3)]
    report = played(old, *deploys, seconds=840, after=new)
    start_ms, runs = instant_ms("2027-01-15T10:00:00"), runs_of(report)
    both = {start_ms + at * 1_000 for at in range(170, 540) if at % 20 == 0 or at % 30 == 0}
    assert {each: runs[each] for each in both} == dict.fromkeys(both, 1)
    assert set(runs.values()) == {1}


def no_state_but_the_store() -> None:
    """There is no local state that could be damaged, and a damaged SQLite file is named in one sentence."""
    with tempfile.TemporaryDirectory() as folder:
        before = set(Path.cwd().iterdir())
        tape = Tape()
        scheduler = Scheduler("memory://", plugins=[tape])
        scheduler.add_job(lambda: None, Grid(100), name="job", jitter=0)
        scheduler.start_in_thread()
        tape.wait("run_finished")
        scheduler.shutdown()
        assert set(Path.cwd().iterdir()) == before
        damaged = Path(folder) / "cron.db"
        damaged.write_bytes(b"no database at all" * 500)
        broken = Scheduler(f"sqlite:///{damaged}")
        with pytest.raises(AnarchonError) as caught:
            broken.start_in_thread()
        assert "cron.db" in str(caught.value)
        assert "\n" not in str(caught.value)


def edited_on_a_friday() -> None:
    """`0 21 * * tue,fri` becomes `0 23 * * wed,sun` on a Friday before 21:00: nothing runs that Friday."""
    deploys = [Fault(600_000, FaultKind.DEPLOY, n, 1_000) for n in range(2)]
    report = played(
        fleet("0 21 * * tue,fri"), *deploys, instances=2, start="2027-01-15T20:30:00", seconds=13_000,
        after=fleet("0 23 * * wed,sun"),
    )  # fmt: skip
    assert runs_of(report) == {}
    assert Cron("0 23 * * wed,sun").next_after(instant_ms("2027-01-15T20:40:00")) == instant_ms("2027-01-17T23:00:00")


CASES = [
    pytest.param(handler_blocks_the_loop, id="agronholm/apscheduler#1116"),
    pytest.param(first_heartbeat_comes, id="agronholm/apscheduler#1030"),
    pytest.param(made_before_the_fork, id="Kludex/uvicorn#941"),
    pytest.param(made_before_the_fork, id="Kludex/uvicorn#85"),
    pytest.param(another_loop_than_at_construction, id="agronholm/apscheduler#447"),
    pytest.param(nobody_evaluates_it, id="agronholm/apscheduler#481"),
    pytest.param(stop_lets_runs_finish, id="agenda/agenda#1405"),
    pytest.param(hand_over_at_the_end_of_the_grace, id="graphile/worker#526"),
    pytest.param(window_of_the_supervisor, id="r-spade/ormah#271"),
    pytest.param(removed_jobs_stay_removed, id="sidekiq-cron/sidekiq-cron#192"),
    pytest.param(removed_jobs_stay_removed, id="sidekiq-cron/sidekiq-cron#267"),
    pytest.param(removed_jobs_stay_removed, id="sidekiq-cron/sidekiq-cron#504"),
    pytest.param(changed_interval_is_taken, id="taskforcesh/bullmq#3430"),
    pytest.param(two_schedules_in_one_fleet, id="sidekiq/sidekiq#5035"),
    pytest.param(no_state_but_the_store, id="celery/celery#4777"),
    pytest.param(no_state_but_the_store, id="celery/celery#346"),
    pytest.param(edited_on_a_friday, id="kubernetes/kubernetes#123220"),
]


@pytest.mark.parametrize("scenario", CASES)
def test_lives_and_changes(scenario: Scenario) -> None:
    scenario()
