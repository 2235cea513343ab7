"""What the scheduler costs: loading many jobs, being idle (K8), and a rush of slots: `python tests/bench/bench_scheduler.py`.

Each figure is printed with a floor of the same run: plain Python objects for the loading, an event loop that only sleeps for
the idling, the bare backend for the rush.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from anarchon import Scheduler
from anarchon.backend import Backend
from anarchon.memory import MemoryBackend
from anarchon.types import ClaimRequest, RunKey, RunResult, RunStatus, new_token
from anarchon_sqlite import SQLiteBackend

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from workers import JobPlan, Pack, eventually

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

JOBS = 100_000
SCHEDULES = 900
LOAD_MOST_S = 10.0
LOAD_MOST_MB = 200.0
IDLE_JOBS = 1_000
IDLE_INSTANCES = 3
IDLE_S = 60.0
IDLE_MOST_SHARE = 0.01
RUSH_JOBS = 1_000
CALLS = (
    "claim",
    "claim_many",
    "finish",
    "history",
    "renew",
    "renew_many",
    "release",
    "check",
    "unfinished",
    "jobs",
    "set_paused",
    "now_ms",
    "ping",
)


class Hourly:
    """Slots each hour, the first one at a given time."""

    def __init__(self, first_ms: int) -> None:
        self._first_ms = first_ms

    def next_after(self, t_ms: int, /) -> int | None:
        return self._first_ms + max(0, (t_ms - self._first_ms) // 3_600_000 + 1) * 3_600_000

    @property
    def digest(self) -> str:
        return f"hourly-{self._first_ms}"


async def nothing() -> None:
    """Be a handler."""


# -- loading ----------------------------------------------------------------------------------------------------------


def memory_mb() -> float:
    """Return what this process holds in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@dataclass(frozen=True, slots=True)
class Load:
    """Processor seconds to add all jobs, and to add them and work; the latter on the wall; what they hold; the floor.

    A machine that does other things besides stretches the wall's time, not the processor's.
    """

    added_s: float
    ready_s: float
    wall_s: float
    memory_mb: float
    floor_s: float


def load_here(send: Any) -> None:
    """Load all jobs in this process and send the figures."""
    begun = time.process_time()
    plain = [{"name": f"job-{number}", "schedule": f"{number % 60} {number % 15} * * *"} for number in range(JOBS)]
    floor_s = time.process_time() - begun
    del plain
    scheduler = Scheduler(backend=MemoryBackend())
    before_mb, begun, wall = memory_mb(), time.process_time(), time.perf_counter()
    for number in range(JOBS):
        group = number % SCHEDULES
        scheduler.add_job(nothing, f"{group % 60} {group // 60} * * *", name=f"job-{number}", tz="Europe/Berlin")
    added_s = time.process_time() - begun
    scheduler.start_in_thread()
    eventually(lambda: scheduler.health().ready, "the scheduler works", 120)
    figures = Load(added_s, time.process_time() - begun, time.perf_counter() - wall, memory_mb() - before_mb, floor_s)
    scheduler.shutdown()
    send.send(figures)


def load() -> Load:
    """Load all jobs in a process of its own."""
    receive, send = multiprocessing.get_context("forkserver").Pipe(duplex=False)
    process = multiprocessing.get_context("forkserver").Process(target=load_here, args=(send,))
    process.start()
    assert receive.poll(240), "loading did not end"
    figures = receive.recv()
    process.join(30)
    assert isinstance(figures, Load)
    return figures


def show_load(figures: Load) -> None:
    print(
        f"{JOBS:,} jobs over {SCHEDULES} schedules: added in {figures.added_s:.1f} s, at work in {figures.ready_s:.1f} s of a "
        f"core ({figures.wall_s:.1f} s on the wall; floor, plain dicts: {figures.floor_s:.2f} s), {figures.memory_mb:.0f} MB"
    )


def test_100_000_jobs_load_in_10_s_and_200_mb() -> None:
    figures = load()
    show_load(figures)
    assert figures.ready_s < LOAD_MOST_S
    assert figures.memory_mb < LOAD_MOST_MB


# -- idling -----------------------------------------------------------------------------------------------------------


def counted(backend: Backend, counts: list[str]) -> Backend:
    """Let a backend write down each call at its border."""

    def wrap(name: str, call: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def counting(*args: Any, **kwargs: Any) -> Any:
            counts.append(name)
            return await call(*args, **kwargs)

        return counting

    for name in CALLS:
        setattr(backend, name, wrap(name, getattr(backend, name)))
    return backend


@dataclass(frozen=True, slots=True)
class Idle:
    """Runs before, calls and share of a core while nothing is open, and the share of loops that only sleep."""

    runs: int
    calls: list[str]
    share: float
    floor: float


def share_of_a_core(seconds: float) -> float:
    """Return how much of a core this process takes for a while."""
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    threading.Event().wait(seconds)
    return (time.process_time() - cpu_s) / (time.perf_counter() - begun_s)


def sleeping_loops_share(seconds: float) -> float:
    """Return what as many event loops as there are instances take to wake each ten seconds."""

    async def sleeper(stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.wait({asyncio.ensure_future(stop.wait())}, timeout=10)

    loops = []
    for _ in range(IDLE_INSTANCES):
        loop, stop = asyncio.new_event_loop(), asyncio.Event()
        thread = threading.Thread(target=loop.run_until_complete, args=(sleeper(stop),))
        thread.start()
        loops.append((loop, stop, thread))
    share = share_of_a_core(seconds)
    for loop, stop, thread in loops:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    return share


def idle(folder: Path, seconds: float) -> Idle:
    """Let every hourly job run once on several instances, then count what happens while no slot is open."""
    counts: list[str] = []
    ran: list[int] = []
    slot_ms = round(time.time() * 1000) + 3_000
    fleet = []
    for _ in range(IDLE_INSTANCES):
        scheduler = Scheduler(backend=counted(SQLiteBackend(folder / "idle.db"), counts))
        for number in range(IDLE_JOBS):
            scheduler.add_job(lambda: ran.append(1), Hourly(slot_ms), name=f"job-{number}")
        fleet.append(scheduler)
    for scheduler in fleet:
        scheduler.start_in_thread()
    eventually(lambda: len(ran) >= IDLE_JOBS, "every job has run", 120)
    eventually(lambda: all(s.health().running == s.health().watched == 0 for s in fleet), "every run is final", 60)
    threading.Event().wait(10)  # the late window of the first answers: backups see that the last runs are final
    before = len(counts)
    share = share_of_a_core(seconds)
    figures = Idle(len(ran), counts[before:], share, 0.0)
    for scheduler in fleet:
        scheduler.shutdown()
    return Idle(figures.runs, figures.calls, share, sleeping_loops_share(min(seconds, 10.0)))


def show_idle(figures: Idle, seconds: float) -> None:
    print(
        f"{IDLE_INSTANCES} instances with {IDLE_JOBS:,} hourly jobs after {figures.runs:,} runs, {seconds:.0f} s: "
        f"{len(figures.calls)} store calls, {figures.share:.3%} of a core for all (floor, sleeping loops: {figures.floor:.3%})"
    )


def test_k8_three_idle_instances_make_no_store_call_in_a_minute_and_take_no_core(tmp_path: Path) -> None:
    figures = idle(tmp_path, IDLE_S)
    show_idle(figures, IDLE_S)
    assert figures.runs == IDLE_JOBS
    assert figures.calls == []
    assert figures.share < IDLE_MOST_SHARE


# -- a rush -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rush:
    """Milliseconds from the slot to the last handler's start, and what the bare backend takes to claim and finish as many."""

    last_ms: float
    median_ms: float
    floor_ms: float

    @property
    def ratio(self) -> float:
        return self.last_ms / self.floor_ms


async def bare(backend: Backend) -> float:
    """Claim, in calls of a hundred, and finish as many runs with nothing else; return milliseconds."""
    await backend.open()
    now_ms = await backend.now_ms()
    assert now_ms is not None
    requests = [
        ClaimRequest(key=RunKey(f"bare-{number}", now_ms), token=new_token(), instance="bare") for number in range(RUSH_JOBS)
    ]
    begun = time.perf_counter()
    for start in range(0, RUSH_JOBS, 100):
        await backend.claim_many(requests[start : start + 100])
    for request in requests:
        await backend.finish(request.key, request.token, RunResult(RunStatus.SUCCESS))
    took_ms = (time.perf_counter() - begun) * 1000
    await backend.close()
    return took_ms


def rush_of(delays_ms: list[float], floor_ms: float) -> Rush:
    delays_ms.sort()
    assert len(delays_ms) == RUSH_JOBS
    return Rush(delays_ms[-1], delays_ms[RUSH_JOBS // 2], floor_ms)


def rush_on_sqlite(folder: Path) -> Rush:
    """Let two processes run all jobs at one slot."""
    with Pack(folder) as pack:
        begin_ms = round(time.time() * 1000) + 20_000
        jobs = [JobPlan(name=f"job-{number:04}", begin_ms=begin_ms) for number in range(RUSH_JOBS)]
        for _ in range(2):
            pack.up(*jobs)
        shift_ms = time.time() * 1000 - time.monotonic_ns() / 1e6
        assert time.time() * 1000 < begin_ms, "the workers came up too late"
        eventually(lambda: len(pack.entries("start")) >= RUSH_JOBS, "every job has started", 90)
        delays = [entry.at_ms + shift_ms - begin_ms for entry in pack.entries("start")]
    return rush_of(delays, asyncio.run(bare(SQLiteBackend(folder / "bare.db"))))


def rush_in_memory() -> Rush:
    """Let two schedulers of this process run all jobs at one slot."""
    begin_ms = round(time.time() * 1000) + 3_000
    delays: list[float] = []

    async def job() -> None:
        delays.append(time.time() * 1000 - begin_ms)

    fleet = [Scheduler("memory://rush") for _ in range(2)]
    for scheduler in fleet:
        for number in range(RUSH_JOBS):
            scheduler.add_job(job, Hourly(begin_ms), name=f"job-{number:04}", jitter=0)
    for scheduler in fleet:
        scheduler.start_in_thread()
    eventually(lambda: len(delays) >= RUSH_JOBS, "every job has started", 60)
    for scheduler in fleet:
        scheduler.shutdown()
    return rush_of(delays, asyncio.run(bare(MemoryBackend())))


def show_rush(store: str, figures: Rush) -> None:
    print(
        f"{RUSH_JOBS:,} jobs due at once, 2 instances, {store}: last start {figures.last_ms:.0f} ms after the slot, median "
        f"{figures.median_ms:.0f} ms (floor, bare claims and finishes of one client: {figures.floor_ms:.0f} ms, "
        f"ratio {figures.ratio:.1f})"
    )


@pytest.mark.parametrize("store", ["sqlite", "memory"])
def test_a_thousand_jobs_due_at_once_start_within_a_few_times_the_bare_claims(store: str, tmp_path: Path) -> None:
    figures = rush_on_sqlite(tmp_path) if store == "sqlite" else rush_in_memory()
    show_rush(store, figures)
    assert figures.last_ms < max(10 * figures.floor_ms, 5_000)


def main() -> None:
    """Print all measurements."""
    show_load(load())
    show_rush("memory", rush_in_memory())
    with tempfile.TemporaryDirectory() as folder:
        show_rush("SQLite", rush_on_sqlite(Path(folder)))
        show_idle(idle(Path(folder), IDLE_S), IDLE_S)


if __name__ == "__main__":
    main()
