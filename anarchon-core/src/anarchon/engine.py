"""The engine: the loop that ticks, claims, watches, renews and reports, and the parts that it owns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from anarchon.attempt import Attempts
from anarchon.backend import Backend
from anarchon.catchup import CatchUpSweeper
from anarchon.claiming import Claims
from anarchon.clock import Clock, Moment
from anarchon.context import Context
from anarchon.errors import BackendError, StoreDamaged, StoreSetupError
from anarchon.handlers import HandlerHost
from anarchon.info import Disagreements, job_info
from anarchon.job import Job
from anarchon.lease import Keeper
from anarchon.notes import Notes
from anarchon.plugins import Observers
from anarchon.runner import Runner
from anarchon.store import Store
from anarchon.storetime import STEP_MS
from anarchon.ticker import Due, Gap, Ticker
from anarchon.types import RunKey
from anarchon.watch import Watch, Watched

__all__ = ["Engine", "Settings"]

REANCHOR_MS = 10_000
"""The longest sleep of the tick loop: after each one the clocks are looked at again."""
OPEN_RETRY_FIRST_MS = 200
OPEN_RETRY_MOST_MS = 5_000
HAND_OVER_SHARE = 4
HAND_OVER_MOST_MS = 1_000
LET_GO_MS = 500
"""How long releases of handlers that cannot be stopped may take after the grace (K6: within 1 s)."""
CLOSE_MS = 400
"""How long closing the store may take after that."""

_log = logging.getLogger("anarchon.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The scheduler's own options."""

    instance: str
    max_running: int = 100
    grace_ms: int = 30_000


class Engine:
    """One instance at work. All of it lives on one event loop; only `call_soon_threadsafe` may reach in from outside."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        settings: Settings,
        *,
        observers: Observers,
        handler_loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.settings = settings
        self.store = Store(backend, clock, observers, settings.instance)
        self.context = context = Context(settings.instance, clock, self.store, observers, self.spawn, self.spawn_idle)
        self.jobs: dict[str, Job] = {}
        self._by_any_name: dict[str, Job] = {}
        self.ready = asyncio.Event()
        self.tried = asyncio.Event()
        self.defects: list[BaseException] = []
        self._opened = False
        self._asked_to_stop: Moment | None = None
        self._clock = clock
        self._keeper = Keeper(context)
        self.watch = Watch(
            context,
            take=self._take,
            ended=self._run_ended,
            find_job=self._find_job,
            runs_here=self._runs_here,
            holds=self._holds,
        )
        self.notes = Notes(context)
        self.attempts = Attempts(
            context,
            keeper=self._keeper,
            watch=self.watch,
            host=HandlerHost(handler_loop, self._loop_gone),
            ended=self._run_ended,
            max_running=settings.max_running,
        )
        self.runner = Runner(
            context,
            attempts=self.attempts,
            watch=self.watch,
            notes=self.notes,
            claims=Claims(context, self.attempts, info=job_info, disagrees=Disagreements(context).found),
            put_back=self._put_back,
        )
        self.sweeper = CatchUpSweeper(context, self.notes, self.runner.catch_up)
        self._ticker = Ticker(clock.uniform_ms, self._schedule_failed)
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._drained = asyncio.Event()
        self._change = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle_tasks: set[asyncio.Task[None]] = set()

    # -- jobs -------------------------------------------------------------------------------------------------------

    def add_job(self, job: Job) -> None:
        """Take in a job; while running its first slot is the next one."""
        self.jobs[job.name] = job
        for name in job.names:
            self._by_any_name[name] = job
        if self.ready.is_set():
            self._ticker.add(job, self.store.time.now_ms())
            self._wake.set()

    def remove_job(self, name: str) -> None:
        """Drop a job; a run of it that is under way ends as it would have."""
        job = self.jobs.pop(name, None)
        for each in job.names if job else ():
            self._by_any_name.pop(each, None)
            self.watch.drop_job(each)
        self._ticker.remove(name)
        self.runner.forget(name)

    def _find_job(self, name: str) -> Job | None:
        return self._by_any_name.get(name)

    def _runs_here(self, name: str) -> bool:
        job = self._by_any_name.get(name)
        return self.attempts.runs_here(job.name if job else name)

    def _holds(self, key: RunKey) -> bool:
        job = self._by_any_name.get(key.job)
        return key in self.attempts or (job is not None and replace(key, job=job.name) in self.attempts)

    def _schedule_failed(self, job: Job, error: Exception) -> None:
        _log.error("%s: its schedule raised %s: %s; the job is not run any more", job.name, type(error).__name__, error)

    def _loop_gone(self) -> None:
        """Stop, for without a loop no async handler runs here: each would be handed over and taken again for ever."""
        if not self._stopping.is_set():
            _log.error("the application's event loop was closed before stop(): this instance hands over and ends")
            self.stop()

    # -- tasks ------------------------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the loops; what it raises is a defect of anarchon and is logged as such."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def spawn_idle(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that nobody waits for at the end: it is dropped when the engine stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._idle_tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._idle_tasks.discard(task)
        self._change.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self.defects = [*self.defects[-9:], error]
            _log.critical("a defect in anarchon, please report it", exc_info=error)

    def _take(self, watched: Watched) -> None:
        self.spawn(self.runner.take_over(watched))

    def _put_back(self, due: Due) -> None:
        self._ticker.put_back(due)
        self._wake.set()

    def _run_ended(self, key: RunKey) -> None:
        """A run of this instance's or a watched one came to its end: a queued slot may go on."""
        job = self._by_any_name.get(key.job)
        if job is not None:
            self.runner.blocker_ended(job)

    # -- life -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `stop` is asked for, then drain, hand over and close.

        Raises:
            StoreSetupError: the store cannot do what the contract needs.
            StoreDamaged: the store's data cannot be read.
        """
        work = asyncio.get_running_loop().create_task(self._work())
        stop = asyncio.get_running_loop().create_task(self._stopping.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and self._opened:
                await asyncio.wait({work}, timeout=(self.settings.grace_ms + LET_GO_MS) / 1000)
            if not work.done():  # it is still opening the store, or stuck in a store that does not answer
                work.cancel()
                await asyncio.wait({work})
            if not work.cancelled():
                work.result()
        finally:
            work.cancel()
            stop.cancel()
            self.ready.clear()
            await self._close()

    async def _work(self) -> None:
        await self._open()
        self._opened = True
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._keeper.serve(self._drained.is_set))
            lookers = [loops.create_task(self.watch.serve(self._stopping.is_set)), loops.create_task(self._recover_when_back())]
            await self._begin()
            self.ready.set()
            self.tried.set()
            await self._tick()
            await self._drain()
            self._drained.set()
            self._keeper.wake()
            for looker in lookers:
                looker.cancel()

    def stop(self) -> None:
        """Ask for an orderly end: no new claims, then the grace, then hand-over (K6)."""
        if self._asked_to_stop is None:
            self._asked_to_stop = self._clock.moment()
        self._stopping.set()
        self.runner.stop()
        self.attempts.stopping = True
        self._wake.set()
        self.watch.wake()
        self.store.returned.set()

    def stop_now(self) -> None:
        """Cut the grace short: hand over at once."""
        self.stop()
        self._stop_now.set()
        self._change.set()

    async def _open(self) -> None:
        """Open the store, however long it takes."""
        pause_ms = OPEN_RETRY_FIRST_MS
        while True:
            try:
                await self.store.open()
            except (StoreSetupError, StoreDamaged):
                raise
            except BackendError as error:
                self.tried.set()
                _log.warning("the store cannot be opened, trying again in %.1f s: %s", pause_ms / 1000, error)
                await self._clock.sleep_ms(pause_ms)
                pause_ms = min(2 * pause_ms, OPEN_RETRY_MOST_MS)
            else:
                return

    async def _close(self) -> None:
        try:
            await self.store.close(timeout_ms=CLOSE_MS)
        except BackendError as error:
            _log.warning("the store could not be closed: %s", error)

    async def _begin(self) -> None:
        """Recover unfinished runs, claim what passed while nobody looked, then tick from now on."""
        now_ms = self.store.time.now_ms()
        for job in self.jobs.values():
            self._ticker.add(job, now_ms)
        await self._recover()
        if self._stopping.is_set():
            return
        jobs = list(self.jobs.values())
        try:
            passed = await self.sweeper.newest(jobs, now_ms)
        except BackendError as error:
            _log.warning("passed slots could not be looked for: %s", error)
            passed = []
        for due in passed:
            self.spawn(self.runner.slot(due))
        self.spawn_idle(self.sweeper.sweep_all(jobs))

    async def _recover(self) -> None:
        try:
            await self.watch.recover(list(self._by_any_name))
        except BackendError as error:
            _log.warning("unfinished runs could not be looked for: %s", error)

    async def _recover_when_back(self) -> None:
        """Look for unfinished runs whenever a lost store answers again (K12)."""
        while not self._stopping.is_set():
            await self.store.returned.wait()
            self.store.returned.clear()
            if not self._stopping.is_set() and self.ready.is_set():
                await self._recover()
                doubted, self.runner.doubted = self.runner.doubted, set()
                for name in doubted & self.jobs.keys():
                    self.spawn_idle(self._account(self.jobs[name]))

    async def _tick(self) -> None:
        """Start every slot at its time; look at the clocks after each sleep."""
        while not self._stopping.is_set():
            self._wake.clear()
            if self.store.time.stepped():
                await self._measure()
            now_ms = self.store.time.now_ms()
            due, gaps = self._ticker.pop(now_ms)
            for slot in due:
                self.spawn(self.runner.slot(slot))
            for gap in gaps:
                self._passed(gap)
            if due and self.watch.recovery_is_due(max(slot.job.lease_ms for slot in due)):
                self.spawn(self._recover())  # K12
            next_ms = self._ticker.next_ms()
            wait_ms = REANCHOR_MS if next_ms is None else min(REANCHOR_MS, next_ms - self.store.time.now_ms())
            await self._clock.wait(self._wake, wait_ms)

    async def _account(self, job: Job) -> None:
        """See to passed slots of a job; while the store cannot be asked they stay in doubt until it can (K13)."""
        if not await self.sweeper.sweep(job):
            self.runner.doubted.add(job.name)

    def _passed(self, gap: Gap) -> None:
        """Slots passed while this instance could not look: see to them in the background."""
        self.spawn_idle(self._account(gap.job))

    async def _measure(self) -> None:
        """After a step of the wall clock: learn the store's time again, and start over if it went back."""
        before_ms = self.store.time.now_ms()
        try:
            await self.store.measure()
        except BackendError as error:
            _log.warning("the clock was stepped; the store's clock could not be asked yet: %s", error)
            return
        moved_ms = self.store.time.now_ms() - before_ms
        _log.warning("the clock was stepped; the store's time moved by %+.1f s for this instance", moved_ms / 1000)
        if moved_ms < -STEP_MS / 2:
            self._ticker.reposition(self.store.time.now_ms())

    async def _drain(self) -> None:
        """Wait for what runs, then hand over, then let go (K6)."""
        for task in list(self._idle_tasks):
            task.cancel()
        begun = self._asked_to_stop or self._clock.moment()
        grace_ms = float(self.settings.grace_ms)
        reserve_ms = min(HAND_OVER_MOST_MS, grace_ms / HAND_OVER_SHARE)
        await self._until_quiet(begun, grace_ms - reserve_ms, cut_short=True)
        self.attempts.hand_over()
        if self._stop_now.is_set():
            begun, grace_ms = self._clock.moment(), reserve_ms
        await self._until_quiet(begun, grace_ms)
        self.attempts.close()
        await self._until_quiet(self._clock.moment(), LET_GO_MS)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _until_quiet(self, begun: Moment, limit_ms: float, *, cut_short: bool = False) -> None:
        while self._tasks and not (cut_short and self._stop_now.is_set()):
            left_ms = limit_ms - (self._clock.monotonic_ms() - begun.monotonic_ms)
            if left_ms <= 0:
                return
            self._change.clear()
            await self._clock.wait(self._change, left_ms)
