"""`simulate`: a fleet of real engines on virtual time, with faults; a seed reproduces a run exactly."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from anarchon.engine import Engine, Settings
from anarchon.handlers import Handler
from anarchon.job import Job
from anarchon.run import Run
from anarchon.scheduler import Scheduler
from anarchon.testing.faults import Fault, FaultKind
from anarchon.testing.judge import Lives, judge
from anarchon.testing.loop import OWNER, run_virtual
from anarchon.testing.tape import Attempt, Mark, Outage, Report, Tape
from anarchon.testing.world import Link, SimulatedClock, Wire, World
from anarchon.types import RunStatus

__all__ = ["Plan", "simulate"]

INSTANCES_MAX = 20
HISTORY_MAX = 100_000
CALM_MS = 12_000
"""How long an unknown answer may take to be cleared up: a call that times out, another, and a pause."""
START = datetime(2027, 1, 15, 10, 0, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that determines a simulation besides the jobs."""

    instances: int = 3
    duration: timedelta = timedelta(minutes=10)
    seed: int = 0
    start: datetime = START
    faults: Sequence[Fault] = ()
    handler_s: tuple[float, float] = (0.1, 2.0)
    skews_ms: Sequence[float] = ()
    grace_s: float = 5.0
    settle: timedelta | None = None


def simulate(
    scheduler: Scheduler | Iterable[Job],
    *,
    after_deploy: Scheduler | Iterable[Job] | None = None,
    real_handlers: bool = False,
    plan: Plan | None = None,
    make_engine: Callable[..., Engine] = Engine,
) -> Report:
    """Run the jobs of a scheduler on a simulated fleet and judge what happened.

    The scheduler itself is not started; its job list and options are what every simulated instance holds. Handlers are
    replaced by waits of `plan.handler_s` seconds unless `real_handlers` (async ones only, on virtual time).
    `after_deploy` is the job list of instances that a DEPLOY fault has restarted.

    Returns:
        What happened, with `violations` of the K clauses, of exactly-once where no fault forbids it, of takeover times,
        and of "no slot is lost while one instance lives".
    """
    what = plan or Plan()
    if not 1 <= what.instances <= INSTANCES_MAX:
        msg = f"instances={what.instances} is refused: write 1 to {INSTANCES_MAX}"
        raise ValueError(msg)
    lists = (_jobs(scheduler), _jobs(after_deploy if after_deploy is not None else scheduler))
    log = logging.getLogger("anarchon")
    before = log.disabled, log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        return run_virtual(lambda: _Fleet(what, lists, real_handlers=real_handlers, make_engine=make_engine).run())
    finally:
        log.setLevel(before[1])


def _jobs(source: Scheduler | Iterable[Job]) -> list[Job]:
    return list(source.jobs.values()) if isinstance(source, Scheduler) else list(source)


@dataclass(slots=True)
class _Instance:
    index: int
    wire: Wire
    skew_ms: float
    list_index: int = 0
    life: int = 0
    name: str = ""
    engine: Engine | None = None
    link: Link | None = None
    main: asyncio.Task[None] | None = None
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    up: bool = False


class _Fleet:
    def __init__(
        self, plan: Plan, lists: tuple[list[Job], list[Job]], *, real_handlers: bool, make_engine: Callable[..., Engine]
    ) -> None:
        self.plan = plan
        self.lists = lists
        self.real_handlers = real_handlers
        self.make_engine = make_engine
        self.report = Report(plan.seed)
        self._leaving_ms = float("inf")
        self.world = World(int(plan.start.timestamp() * 1000), plan.seed)
        self.spans: dict[str, tuple[float, float, int]] = {}
        skews = [*plan.skews_ms, *([0.0] * plan.instances)]
        self.instances = [_Instance(i, Wire(), skews[i]) for i in range(plan.instances)]

    async def run(self) -> Report:
        """Start everybody, let the faults happen, heal, let everything settle, stop, judge."""
        for instance in self.instances:
            self._start(instance)
        faults = asyncio.get_running_loop().create_task(self._faults())
        await self._sleep(self.plan.duration.total_seconds() * 1000)
        await faults
        await self._sleep(self._settle_ms())
        for instance in self.instances:
            self.report.store_calls += instance.link.calls if instance.link else 0
            if instance.engine is not None:
                self._check_bounds(instance, instance.engine)
                instance.engine.stop()
        await self._sleep(self.plan.grace_s * 1000 + 2_000)
        for name in {job.name for jobs in self.lists for job in jobs}:
            self.report.history[name] = self.world.store.history(name, HISTORY_MAX, 0)
            self.report.unfinished |= {view.key for view in self.world.store.unfinished([name])}
        self.report.marks[Mark.LOST_REPLY] += self.world.lost_replies
        outages: dict[str, list[Outage]] = {}
        for outage in self.report.outages:
            outages.setdefault(outage.instance, []).append(outage)
        judge(self.report, self.lists, self.plan, Lives(self.world.true_ms(), self.spans, outages))
        return self.report

    def _settle_ms(self) -> float:
        if self.plan.settle is not None:
            return self.plan.settle.total_seconds() * 1000
        return max(3 * job.lease_ms + job.max_late_ms + 20_000 for jobs in self.lists for job in jobs)

    async def _sleep(self, duration_ms: float) -> None:
        await asyncio.sleep(duration_ms / 1000)  # noqa: TID251 - virtual time

    def _check_bounds(self, instance: _Instance, engine: Engine) -> None:
        if instance.main is not None and instance.main.done():
            self.report.violations.append(f"{instance.name}: the engine ended by itself: {instance.main!r}")
        if engine.defects:
            self.report.violations.append(f"{instance.name}: a defect: {engine.defects[0]!r}")
        jobs = len(engine.jobs)
        if len(instance.tasks) > 200 + 20 * jobs:
            self.report.violations.append(f"K9: {instance.name} ends with {len(instance.tasks)} tasks for {jobs} jobs")
        if len(engine.watch) > 20 + 5 * jobs:
            self.report.violations.append(f"K9: {instance.name} ends watching {len(engine.watch)} runs of {jobs} jobs")

    # -- lives ------------------------------------------------------------------------------------------------------

    def _start(self, instance: _Instance) -> None:
        instance.life += 1
        instance.name = f"i{instance.index}.{instance.life}"
        instance.wire.dead = False
        instance.tasks = set()
        chance = random.Random(f"{self.plan.seed}/{instance.name}")  # noqa: S311 - a simulation
        clock = SimulatedClock(self.world, instance.wire, instance.skew_ms, chance)
        instance.link = Link(self.world, instance.wire)
        tape = Tape(self.report, instance.name, self.world.true_ms)
        engine = self.make_engine(
            instance.link,
            clock,
            Settings(instance=instance.name, grace_ms=int(self.plan.grace_s * 1000)),
            observers=tape,
            handler_loop=asyncio.get_running_loop(),
        )
        for job in self.lists[instance.list_index]:
            engine.add_job(job if self.real_handlers else self._pretend(job, instance, clock, chance))
        instance.engine, instance.up = engine, True
        self.spans[instance.name] = (self.world.true_ms(), float("inf"), instance.list_index)
        context = copy_context()
        context.run(OWNER.set, instance.tasks)
        instance.main = asyncio.get_running_loop().create_task(engine.run(), context=context)

    def _pretend(self, job: Job, instance: _Instance, clock: SimulatedClock, chance: random.Random) -> Job:
        name, wire, report = instance.name, instance.wire, self.report

        async def handler(run: Run) -> None:
            attempt = Attempt(run.key, run.attempt, name, self.world.true_ms(), self.world.clock.wall_ms())
            report.attempts.append(attempt)
            try:
                await clock.sleep_ms(chance.uniform(*self.plan.handler_s) * 1000)
                attempt.end = "killed" if wire.dead else "done"
            except asyncio.CancelledError:
                attempt.end = "killed" if wire.dead else "cancelled"
                raise
            finally:
                attempt.end_ms = self.world.true_ms()

        return replace(job, handler=Handler.of(handler))

    def _kill(self, instance: _Instance) -> None:
        instance.wire.dead, instance.up = True, False
        born_ms, _, list_index = self.spans[instance.name]
        self.spans[instance.name] = (born_ms, min(self._leaving_ms, self.world.true_ms()), list_index)
        self._leaving_ms = float("inf")
        for task in list(instance.tasks):
            task.cancel()

    async def _stop(self, instance: _Instance) -> None:
        main = instance.main
        instance.up = False
        self._leaving_ms = self.world.true_ms()
        if instance.engine is not None and main is not None:
            instance.engine.stop()
            await asyncio.wait([main], timeout=self.plan.grace_s + 2)
            if instance.wire.calm_for(self.world.true_ms(), CALM_MS):
                self._check_let_go(instance)
            if not main.done():
                self.report.violations.append(f"K6: {instance.name} did not stop within its grace + 2 s")
        self._kill(instance)

    def _check_let_go(self, instance: _Instance) -> None:
        names = {job.name for job in self.lists[instance.list_index]}
        for view in self.world.store.unfinished(sorted(names)):
            if view.instance == instance.name and view.status is RunStatus.RUNNING:
                where = f"{view.key.job} slot {view.key.slot_ms}"
                self.report.violations.append(f"K6: {instance.name} stopped and still holds {where}")

    # -- faults -----------------------------------------------------------------------------------------------------

    async def _faults(self) -> None:
        under_way: set[asyncio.Task[None]] = set()
        for fault in sorted(self.plan.faults):
            await self._sleep(max(0.0, fault.at_ms - self.world.true_ms()))
            under_way.add(asyncio.get_running_loop().create_task(self._happen(fault)))
        if under_way:
            await asyncio.wait(under_way)
            for task in under_way:
                task.result()

    async def _happen(self, fault: Fault) -> None:
        instance = self.instances[fault.instance % len(self.instances)]
        if fault.kind is FaultKind.STORE_STEP:
            self.world.clock.step(fault.amount)
            self.report.marks[Mark.CLOCK_STEP] += 1
            return
        if not instance.up or not instance.wire.running.is_set():
            return  # down or paused already: one trouble at a time
        begin_ms, name = self.world.true_ms(), instance.name
        match fault.kind:
            case FaultKind.CRASH:
                self._kill(instance)
                await self._sleep(fault.duration_ms)
                self._start(instance)
            case FaultKind.RESTART | FaultKind.DEPLOY:
                await self._stop(instance)
                if fault.kind is FaultKind.DEPLOY:
                    instance.list_index = 1
                    self.report.marks[Mark.DEPLOY] += 1
                await self._sleep(fault.duration_ms)
                self._start(instance)
            case FaultKind.PAUSE:
                instance.wire.running.clear()
                await self._sleep(fault.duration_ms)
                instance.wire.running.set()
            case FaultKind.CLOCK_STEP:
                instance.skew_ms += fault.amount
                if instance.engine is not None:
                    clock = instance.engine.context.clock
                    assert isinstance(clock, SimulatedClock)
                    clock.skew_ms = instance.skew_ms
                self.report.marks[Mark.CLOCK_STEP] += 1
            case _:
                instance.wire.troubled_ms = float("inf")
                await self._disturb(instance.wire, fault)
                instance.wire.troubled_ms = self.world.true_ms()
        for life in {name, instance.name}:  # trouble on the wire outlives a restart
            self.report.outages.append(Outage(life, begin_ms, self.world.true_ms(), fault.kind))

    async def _disturb(self, wire: Wire, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.PARTITION:
                wire.cut = True
                await self._sleep(fault.duration_ms)
                wire.cut = False
                self.report.marks[Mark.PARTITION_HEALED] += 1
            case FaultKind.LOST_REPLIES:
                wire.lose_replies = fault.amount
                await self._sleep(fault.duration_ms)
                wire.lose_replies = 0.0
            case FaultKind.LOST_REQUESTS:
                wire.lose_requests = fault.amount
                await self._sleep(fault.duration_ms)
                wire.lose_requests = 0.0
            case _:
                wire.slow_ms = fault.amount
                await self._sleep(fault.duration_ms)
                wire.slow_ms = 0.0
