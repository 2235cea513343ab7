"""What the scheduler's tests share: a store with faults, an engine on virtual time, and recorders to wait on.

Most tests run the real engine on `VirtualLoop`: hours pass in milliseconds, and nothing depends on the machine's load.
What needs threads or processes runs in real time and waits for conditions with deadlines.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import pluggy
from anarchon import Run, Schedule, hookimpl, hookspecs
from anarchon.clock import Clock
from anarchon.engine import Engine, Settings
from anarchon.errors import BackendError, BackendUnavailable
from anarchon.job import Job, JobOptions, make_job
from anarchon.memory import MemoryBackend, MemoryStore
from anarchon.plugins import Observers
from anarchon.testing import run_virtual
from anarchon.types import (
    Claim,
    ClaimRequest,
    JobView,
    Limits,
    Outcome,
    RunKey,
    RunRecord,
    RunResult,
    RunStatus,
    RunView,
    new_token,
)

T = TypeVar("T")

START_MS = 1_800_000_000_000
"""When virtual time begins; a whole hour."""
DEADLINE_S = 20.0
"""How long a test waits for what must happen; never reached unless it is broken."""


class Grid:
    """A schedule finer than a second, or shifted: slots at `phase + n * period` milliseconds."""

    def __init__(self, period_ms: int, phase_ms: int = 0) -> None:
        self.period_ms = period_ms
        self.phase_ms = phase_ms

    def next_after(self, t_ms: int, /) -> int | None:
        return ((t_ms - self.phase_ms) // self.period_ms + 1) * self.period_ms + self.phase_ms

    @property
    def digest(self) -> str:
        return f"grid-{self.period_ms}-{self.phase_ms}"


class Slots:
    """A schedule of given slots."""

    def __init__(self, *slots_ms: int) -> None:
        self.slots_ms = sorted(slots_ms)

    def next_after(self, t_ms: int, /) -> int | None:
        return next((slot for slot in self.slots_ms if slot > t_ms), None)

    @property
    def digest(self) -> str:
        return f"slots-{self.slots_ms}"


class VirtualClock(Clock):
    """The clock of a machine on a virtual loop; the wall clock may be stepped. Draws no jitter."""

    def __init__(self, start_ms: float = START_MS) -> None:
        self.offset_ms = start_ms
        self.suspended_ms = 0.0

    def step(self, by_ms: float) -> None:
        """Move the wall clock."""
        self.offset_ms += by_ms

    def suspend(self, duration_ms: float) -> None:
        """Let both clocks say that time has passed which no sleeper of this machine has lived through."""
        self.suspended_ms += duration_ms

    def wall_ms(self) -> float:
        return self.offset_ms + self.monotonic_ms()

    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000 + self.suspended_ms

    async def sleep_ms(self, duration_ms: float) -> None:
        await asyncio.sleep(max(0.0, duration_ms) / 1000)

    async def wait(self, event: asyncio.Event, timeout_ms: float) -> bool:
        if timeout_ms > 0 and not event.is_set():
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await event.wait()
            except TimeoutError:
                pass
        return event.is_set()

    def uniform_ms(self, most_ms: float) -> float:
        del most_ms
        return 0.0


class FaultyBackend(MemoryBackend):
    """The memory backend behind a border that counts, fails, delays and loses on order.

    `down` fails every call. `failing` names operations that fail, `late_ms` how long an operation's answer takes after
    its effect, `hooks` what happens before an operation; a hook may raise or wait.
    """

    def __init__(self, store: MemoryStore | None = None, **limits: Any) -> None:
        super().__init__(store)
        self.store = self._store
        self.limits = Limits(durable=False, **limits)
        self.down = False
        self.failing: set[str] = set()
        self.late_ms: dict[str, float] = {}
        self.lose: Counter[str] = Counter()
        self.hooks: dict[str, Callable[[], Awaitable[None]]] = {}
        self.calls: list[str] = []
        self.opened = 0
        self.closed = 0

    async def _border(self, operation: str, act: Callable[[], T]) -> T:
        self.calls.append(operation)
        if operation in self.hooks:
            await self.hooks[operation]()
        if self.down or operation in self.failing:
            msg = f"{operation}: the store is away"
            raise BackendUnavailable(msg)
        answer = act()
        if self.late_ms.get(operation):
            await asyncio.sleep(self.late_ms[operation] / 1000)
        if self.lose[operation] > 0:
            self.lose[operation] -= 1
            msg = f"{operation}: the connection was cut"
            raise BackendUnavailable(msg)
        return answer

    async def open(self) -> None:
        await self._border("open", lambda: None)
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    async def claim(self, request: ClaimRequest) -> Claim:
        return await self._border("claim", lambda: self.store.claim(request))

    async def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Claim | BackendError]:
        return await self._border("claim_many", lambda: [self.store.claim(request) for request in requests])

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        return await self._border("finish", lambda: self.store.finish(key, token, result))

    async def renew(self, key: RunKey, token: str, lease_ms: int) -> bool:
        return await self._border("renew", lambda: self.store.renew(key, token, lease_ms))

    async def renew_many(self, items: Sequence[tuple[RunKey, str, int]]) -> list[bool | BackendError]:
        return await self._border("renew_many", lambda: [self.store.renew(*item) for item in items])

    async def release(
        self, key: RunKey, token: str, *, delay_ms: int = 0, counted: bool = False, error: str | None = None
    ) -> bool:
        return await self._border(
            "release", lambda: self.store.release(key, token, delay_ms=delay_ms, counted=counted, error=error)
        )

    async def check(self, keys: Sequence[RunKey]) -> list[RunView | None]:
        return await self._border("check", lambda: [self.store.view(key) for key in keys])

    async def unfinished(self, jobs: Sequence[str]) -> list[RunView]:
        return await self._border("unfinished", lambda: self.store.unfinished(jobs))

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        return await self._border("history", lambda: self.store.history(job, limit, since_ms))

    async def jobs(self) -> list[JobView]:
        return await self._border("jobs", self.store.jobs)

    async def set_paused(self, job: str, paused: bool) -> None:
        await self._border("set_paused", lambda: self.store.set_paused(job, paused=paused))

    async def now_ms(self) -> int:
        return await self._border("now", self.store.now_ms)


@dataclass(frozen=True, slots=True)
class Event:
    """What an observer was told."""

    name: str
    instance: str
    key: RunKey
    facts: dict[str, Any]


class Tape:
    """An observer that records everything and can be waited on from any thread."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._change = threading.Condition()

    def _record(self, name: str, instance: str, key: RunKey, **facts: Any) -> None:
        with self._change:
            self.events.append(Event(name, instance, key, facts))
            self._change.notify_all()

    @hookimpl
    def anarchon_slot_due(self, instance: str, key: RunKey) -> None:
        self._record("slot_due", instance, key)

    @hookimpl
    def anarchon_slot_skipped(self, instance: str, key: RunKey, reason: str) -> None:
        self._record("slot_skipped", instance, key, reason=reason)

    @hookimpl
    def anarchon_run_started(self, instance: str, key: RunKey, attempt: int, late_ms: int) -> None:
        self._record("run_started", instance, key, attempt=attempt, late_ms=late_ms)

    @hookimpl
    def anarchon_run_finished(
        self, instance: str, key: RunKey, attempt: int, status: RunStatus, error: str | None, recorded: bool
    ) -> None:
        self._record("run_finished", instance, key, attempt=attempt, status=status, error=error, recorded=recorded)

    @hookimpl
    def anarchon_lease_renewed(self, instance: str, key: RunKey, attempt: int) -> None:
        self._record("lease_renewed", instance, key, attempt=attempt)

    @hookimpl
    def anarchon_lease_lost(self, instance: str, key: RunKey, attempt: int, why: str) -> None:
        self._record("lease_lost", instance, key, attempt=attempt, why=why)

    @hookimpl
    def anarchon_run_taken_over(self, instance: str, key: RunKey, attempt: int, previous: str | None) -> None:
        self._record("run_taken_over", instance, key, attempt=attempt, previous=previous)

    @hookimpl
    def anarchon_run_released(self, instance: str, key: RunKey, attempt: int, why: str) -> None:
        self._record("run_released", instance, key, attempt=attempt, why=why)

    @hookimpl
    def anarchon_run_missed(self, instance: str, key: RunKey, reason: str) -> None:
        self._record("run_missed", instance, key, reason=reason)

    def of(self, name: str) -> list[Event]:
        """Return the events of one kind."""
        return [event for event in self.events if event.name == name]

    def slots(self, name: str) -> list[int]:
        """Return the slots of the events of one kind, in order."""
        return [event.key.slot_ms for event in self.of(name)]

    def wait(self, name: str, count: int = 1, timeout_s: float = DEADLINE_S) -> list[Event]:
        """Wait in real time until an event was told `count` times."""
        with self._change:
            if not self._change.wait_for(lambda: len(self.of(name)) >= count, timeout_s):
                msg = f"waited {timeout_s} s for {count} x {name}: {[event.name for event in self.events]}"
                raise AssertionError(msg)
            return self.of(name)


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait in real time for a condition of another thread or process."""
    end = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, f"waited {timeout_s} s for: {what}"
        pause.wait(0.005)


async def until(condition: Callable[[], bool], what: str, limit_ms: float = 600_000) -> None:
    """Let virtual time pass in steps of 5 ms until a condition holds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_ms / 1000
    while not condition():
        assert loop.time() < end, f"{limit_ms / 1000:g} virtual seconds passed without: {what}"
        await asyncio.sleep(0.005)


async def passes(duration_ms: float) -> None:
    """Let virtual time pass."""
    await asyncio.sleep(duration_ms / 1000)


def observers(*plugins: object) -> Observers:
    """Return observers that tell exactly these plugins."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    for plugin in plugins:
        manager.register(plugin)
    return Observers(manager)


async def nothing() -> None:
    """Be a handler that does nothing."""


def job_of(
    schedule: Schedule | str = "* * * * *",
    handler: Callable[..., Any] = nothing,
    *,
    name: str = "job",
    backend: MemoryBackend | None = None,
    **options: Any,
) -> Job:
    """Make a job as `add_job` would, without jitter unless it is written."""
    written = cast("JobOptions", {"jitter": 0, **options})
    return make_job(handler, schedule, name=name, options=written, backend=backend or MemoryBackend(), clock_allowance_ms=5_000)


@dataclass(slots=True)
class Work:
    """A handler that runs for a given time, counts, and says how each of its runs ended.

    With `stubborn_ms` it goes on for so long after it was cancelled, and then returns.
    """

    duration_ms: float = 0
    error: Exception | None = None
    started: list[tuple[int, int]] = field(default_factory=list)
    ended: list[tuple[int, int]] = field(default_factory=list)
    cancelled: list[tuple[int, int]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    runs: list[Run] = field(default_factory=list)
    times_ms: list[tuple[str, float]] = field(default_factory=list)
    stubborn_ms: float = 0

    async def __call__(self, run: Run) -> None:
        entry = (run.slot_ms, run.attempt)
        self.started.append(entry)
        self._note("started")
        self.runs.append(run)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.duration_ms / 1000)
            if self.error is not None:
                raise self.error
        except asyncio.CancelledError:
            self.cancelled.append(entry)
            self._note("cancelled")
            if not self.stubborn_ms:
                raise
            await asyncio.sleep(self.stubborn_ms / 1000)
        finally:
            self.running -= 1
        self.ended.append(entry)
        self._note("ended")

    def _note(self, what: str) -> None:
        self.times_ms.append((what, asyncio.get_running_loop().time() * 1000))

    def at_ms(self, what: str) -> float:
        """Return when this happened first, in virtual milliseconds since the start of the test."""
        return next(at_ms for name, at_ms in self.times_ms if name == what)


@dataclass(slots=True)
class Instance:
    """A real engine on virtual time."""

    engine: Engine
    backend: FaultyBackend
    clock: VirtualClock
    tape: Tape
    task: asyncio.Task[None]

    async def ready(self) -> None:
        await until(self.engine.ready.is_set, "the engine is ready")

    async def stop(self) -> None:
        """Stop in order; raises what the engine raised."""
        self.engine.stop()
        await asyncio.wait_for(self.task, 600)
        assert self.engine.defects == []


@dataclass(slots=True)
class Lab:
    """A memory store, its clock, one tape for all instances, and the instances."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    tape: Tape = field(default_factory=Tape)
    instances: list[Instance] = field(default_factory=list)
    store: MemoryStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = MemoryStore(self.clock)

    def now_ms(self) -> int:
        return int(self.clock.wall_ms())

    async def at(self, after_ms: float) -> None:
        """Let virtual time pass up to a time after the start, on the store's clock."""
        await passes(START_MS + after_ms - self.clock.wall_ms())

    def launch(
        self,
        *jobs: Job,
        name: str = "",
        clock: VirtualClock | None = None,
        backend: FaultyBackend | None = None,
        grace_ms: int = 30_000,
        max_running: int = 100,
    ) -> Instance:
        """Start an engine with these jobs, without waiting for it."""
        clock = clock or VirtualClock()
        backend = backend or FaultyBackend(self.store)
        settings = Settings(instance=name or f"i{len(self.instances)}", grace_ms=grace_ms, max_running=max_running)
        loop = asyncio.get_running_loop()
        engine = Engine(backend, clock, settings, observers=observers(self.tape), handler_loop=loop)
        for job in jobs:
            engine.add_job(job)
        instance = Instance(engine, backend, clock, self.tape, loop.create_task(engine.run()))
        self.instances.append(instance)
        return instance

    async def start(self, *jobs: Job, **options: Any) -> Instance:
        """Start an engine and wait until it works."""
        instance = self.launch(*jobs, **options)
        await instance.ready()
        return instance

    def claim(self, key: RunKey, *, token: str = "", **options: Any) -> Claim:
        """Claim a run as a stranger whom nobody hears of again."""
        request = ClaimRequest(key=key, token=token or new_token(), instance="stranger", **options)
        return self.store.claim(request)

    def won(self, key: RunKey, **options: Any) -> str:
        """Claim a run as a stranger, win, and return the token."""
        token = new_token()
        assert self.claim(key, token=token, **options).outcome is Outcome.WON
        return token

    def finished(self, key: RunKey, token: str) -> None:
        """Finish a stranger's run."""
        assert self.store.finish(key, token, RunResult(RunStatus.SUCCESS))

    def history(self, job: str = "job") -> list[RunRecord]:
        """Return everything the store keeps about a job, oldest first."""
        return self.store.history(job, 10_000, 0)[::-1]

    def statuses(self, job: str = "job") -> dict[int, str]:
        """Return the last status of each slot; a note wins over nothing, a run over a note."""
        found: dict[int, str] = {}
        for record in self.history(job):
            if record.key.note and record.slot_ms in found:
                continue
            found[record.slot_ms] = str(record.status)
        return found

    def held(self, job: str = "job") -> list[RunRecord]:
        """Return the attempts that the store believes to be running."""
        return [record for record in self.history(job) if record.status is RunStatus.RUNNING]


@asynccontextmanager
async def _lab() -> AsyncIterator[Lab]:
    lab = Lab()
    yield lab
    for instance in lab.instances:
        if not instance.task.done():
            await instance.stop()


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on virtual time with a lab of its own; instances still running are stopped at its end."""

    def run(**arguments: Any) -> None:
        async def main() -> None:
            async with _lab() as lab:
                await test(lab, **arguments)

        run_virtual(main)

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    hints = inspect.signature(test).parameters.values()
    run.__signature__ = inspect.Signature([each for each in hints if each.name != "lab"])  # type: ignore[attr-defined]  # pytest reads the arguments from it
    return run
