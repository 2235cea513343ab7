"""The façade: a job list, a store, and the ways to run them."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar, Unpack

from anarchon.backend import Backend, LeaseBackend
from anarchon.clock import Clock, SystemClock
from anarchon.engine import Engine, Settings
from anarchon.errors import JobExists, OptionError, SchedulerStateError, UnknownJob
from anarchon.handlers import HandlerFunction
from anarchon.health import Health
from anarchon.job import Duration, Job, JobOptions, duration_ms, make_job
from anarchon.manual import run_now
from anarchon.plugins import Observers, new_manager
from anarchon.portal import Portal
from anarchon.registry import choose_backend
from anarchon.runtime import EngineThread, HandlerThread, close_loop, instance_name
from anarchon.schedule import Schedule
from anarchon.signals import StopSignals
from anarchon.types import RunRecord
from anarchon.why import Why, why

__all__ = ["Scheduler"]

F = TypeVar("F", bound=HandlerFunction)
T = TypeVar("T")

_log = logging.getLogger("anarchon.scheduler")


class Scheduler:
    """Leaderless cron: every instance holds the same jobs, and for each slot exactly one runs the job.

    `url` names the store (`ANARCHON_URL` if left out); `backend` takes a backend object instead. `grace` is how long
    `stop` waits for running handlers before it hands them over. `max_running` bounds the handlers of this instance.
    `clock_allowance` is by how much the clocks of the fleet may differ where the store has none. Constructing opens
    nothing and binds no event loop.

    Raises:
        ConfigurationError: the URL, an option or a plugin cannot be used.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        backend: Backend | None = None,
        instance: str | None = None,
        grace: Duration = 30,
        max_running: int = 100,
        clock_allowance: Duration = 5,
        plugins: Sequence[object] = (),
        clock: Clock | None = None,
    ) -> None:
        if isinstance(max_running, bool) or not isinstance(max_running, int) or not 1 <= max_running <= 100_000:
            msg = f"max_running={max_running!r} is refused: write a whole number from 1 to 100000"
            raise OptionError(msg)
        if instance is not None and not (isinstance(instance, str) and 0 < len(instance) <= 200 and instance.isprintable()):
            msg = f"instance={instance!r:.80} is refused: write 1 to 200 printable characters, other ones in each process"
            raise OptionError(msg)
        manager = new_manager(plugins)
        self._observers = Observers(manager)
        self._backend = choose_backend(url, backend, manager)
        self._name = instance
        self._grace_ms = duration_ms("grace", grace)
        self._max_running = max_running
        self._allowance_ms = duration_ms("clock_allowance", clock_allowance)
        self._clock = clock or SystemClock()
        self._jobs: dict[str, Job] = {}
        self._names: set[str] = set()
        self._thread: EngineThread | None = None
        self._handlers: HandlerThread | None = None
        self._pid: int | None = None
        self._lock = threading.Lock()

    # -- jobs -------------------------------------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        """The store's backend."""
        return self._backend

    @property
    def jobs(self) -> Mapping[str, Job]:
        """The jobs of this instance by name."""
        return MappingProxyType(self._jobs)

    def job(
        self, schedule: Schedule | str, *, name: str | None = None, tz: str = "UTC", **options: Unpack[JobOptions]
    ) -> Callable[[F], F]:
        """Register the decorated function as a job; see `add_job`."""

        def register(function: F) -> F:
            self.add_job(function, schedule, name=name, tz=tz, **options)
            return function

        return register

    def add_job(
        self,
        function: HandlerFunction,
        schedule: Schedule | str,
        *,
        name: str | None = None,
        tz: str = "UTC",
        **options: Unpack[JobOptions],
    ) -> Job:
        """Add a job, before the start or while running. The name is the function's unless given.

        Raises:
            JobExists: the name, or an earlier name of the job, is taken.
            OptionError: an option is unknown, unsafe or impossible on this backend (K10).
            ScheduleError: the schedule or the zone is refused.
        """
        job = make_job(
            function,
            schedule,
            name=name,
            tz=tz,
            options=options,
            backend=self._backend,
            clock_allowance_ms=self._allowance_ms,
        )
        clash = next((each for each in job.names if each in self._names), None)
        if clash is not None:
            msg = f"job {clash!r} exists already: give one of the two another name"
            raise JobExists(msg)
        self._names.update(job.names)
        self._jobs[job.name] = job
        if self._thread is not None:
            self._thread.tell(lambda engine: engine.add_job(job))
        return job

    def remove_job(self, name: str) -> None:
        """Remove a job from this instance; a run of it that is under way goes on to its end.

        Raises:
            UnknownJob: this instance has no such job.
        """
        self._names.difference_update(self._known(name).names)
        del self._jobs[name]
        if self._thread is not None:
            self._thread.tell(lambda engine: engine.remove_job(name))

    def _known(self, name: str) -> Job:
        try:
            return self._jobs[name]
        except KeyError:
            msg = f"this scheduler has no job {name!r}; its jobs: {', '.join(sorted(self._jobs)[:20]) or 'none'}"
            raise UnknownJob(msg) from None

    # -- three ways to run ------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until SIGTERM or SIGINT, then drain and hand over; a second signal cuts the grace short. Blocks.

        Async handlers run on this thread's loop, sync ones in threads.

        Raises:
            StoreSetupError: the store cannot do what the contract needs.
        """
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            thread = self._begin(loop)
            with StopSignals(self._stop_step):
                loop.run_until_complete(asyncio.wrap_future(thread.finished, loop=loop))
            self._end(thread)
        finally:
            close_loop(loop)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start on the running loop, where async handlers then run.

        Returns once the store answers, or has failed to answer once; it is tried again in the background.

        Raises:
            StoreSetupError: the store cannot do what the contract needs.
            SchedulerStateError: it is running already.
        """
        thread = self._begin(asyncio.get_running_loop())
        try:
            await asyncio.shield(asyncio.wrap_future(thread.started))
        except BaseException:
            thread.tell(Engine.stop_now)
            self._end(thread)
            raise

    async def stop(self) -> None:
        """Stop claiming, wait for running handlers up to the grace, hand over the rest, close the store (K6)."""
        thread = self._to_stop()
        if thread is not None:
            try:
                await asyncio.shield(asyncio.wrap_future(thread.finished))
            finally:
                self._end(thread)

    def start_in_thread(self) -> None:
        """Start beside an application without an event loop (WSGI, a notebook); end with `shutdown`.

        Raises:
            StoreSetupError: the store cannot do what the contract needs.
            SchedulerStateError: it is running already.
        """
        self._refuse_second()
        handlers = HandlerThread()
        handlers.start()
        try:
            thread = self._begin(handlers.loop)
        except BaseException:
            handlers.stop(1.0)
            raise
        self._handlers = handlers
        try:
            thread.started.result()
        except BaseException:
            thread.tell(Engine.stop_now)
            self._end(thread)
            raise

    def shutdown(self) -> None:
        """Stop from another thread and wait for the end; see `stop`."""
        thread = self._to_stop()
        if thread is not None:
            try:
                thread.finished.result()
            finally:
                self._end(thread)

    def request_stop(self) -> None:
        """Ask for an orderly end without waiting; a second call cuts the grace short. Safe from anywhere."""
        self._stop_step()

    def _begin(self, handler_loop: asyncio.AbstractEventLoop) -> EngineThread:
        with self._lock:
            self._refuse_second()
            self._pid = os.getpid()
            self._stops = 0
            thread = self._thread = EngineThread(lambda: self._engine(handler_loop))
        thread.start()
        return thread

    def _engine(self, handler_loop: asyncio.AbstractEventLoop) -> Engine:
        settings = Settings(instance=self._name or instance_name(), max_running=self._max_running, grace_ms=self._grace_ms)
        engine = Engine(self._backend, self._clock, settings, observers=self._observers, handler_loop=handler_loop)
        for job in list(self._jobs.values()):
            engine.add_job(job)
        return engine

    def _to_stop(self) -> EngineThread | None:
        """Ask the engine to stop and return its thread; in a fork there is nothing to stop."""
        thread = self._thread
        if thread is None or self._pid != os.getpid():
            return None
        thread.tell(Engine.stop)
        return thread

    def _end(self, thread: EngineThread) -> None:
        """Let go of an engine that has ended; one that has not (its stop was given up) stays and can be stopped again."""
        if self._thread is thread and thread.finished.done():
            handlers, self._thread, self._handlers = self._handlers, None, None
            if handlers is not None:
                handlers.stop(1.0)

    def _stop_step(self) -> None:
        thread = self._thread
        if thread is not None and self._pid == os.getpid():
            self._stops += 1
            thread.tell(Engine.stop if self._stops == 1 else Engine.stop_now)

    def _refuse_second(self) -> None:
        if self._thread is not None and not self._thread.finished.done():
            self._refuse_other_process()
            msg = "this scheduler is running already"
            raise SchedulerStateError(msg)

    def _refuse_other_process(self) -> None:
        if self._pid is not None and self._pid != os.getpid():
            msg = (
                "this scheduler was started in the parent process and does not run in this fork: "
                "construct it before the fork, start it after"
            )
            raise SchedulerStateError(msg)

    # -- questions and orders while running -------------------------------------------------------------------------

    async def _on_engine(self, work: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
        thread = self._running()
        if thread.here and thread.engine is not None:
            return await work(thread.engine)
        return await asyncio.wrap_future(thread.ask(work))

    def _running(self) -> EngineThread:
        thread = self._thread
        if thread is None:
            msg = "this scheduler is not running: start it first"
            raise SchedulerStateError(msg)
        self._refuse_other_process()
        return thread

    async def run_now(self, name: str, *, wait: bool = True, force: bool = False) -> RunRecord:
        """Run a job now, on this instance, outside its schedule; never early, late or paused.

        Raises:
            UnknownJob: this instance has no such job.
            JobRunning: it refuses overlap, a run of it is alive, and `force` is not set.
            BackendError: the store did not answer.
        """
        job = self._known(name)
        return await self._on_engine(lambda engine: run_now(engine, job, wait=wait, force=force))

    async def history(self, name: str, limit: int = 100) -> list[RunRecord]:
        """Return the newest attempts and notes of a job, newest slot first (C19)."""
        return await self._on_engine(lambda engine: engine.store.history(name, limit=limit))

    async def last_run(self, name: str) -> RunRecord | None:
        """Return the newest attempt of a job that is not a note, or None."""
        records = await self.history(name)
        return next((record for record in records if not record.key.note), None)

    async def why(self, name: str, slot: datetime) -> Why:
        """Explain in one or two sentences why a slot of a job ran or did not.

        Raises:
            ConfigurationError: `slot` has no time zone.
        """
        if slot.tzinfo is None:
            msg = f"slot={slot!r} has no time zone: write an aware datetime"
            raise OptionError(msg)
        job = self._jobs.get(name)
        slot_ms = round(slot.timestamp() * 1000)
        return await self._on_engine(lambda e: why(e.store, name, slot_ms, schedule=job.schedule if job else None))

    async def pause(self, name: str) -> None:
        """Stop first claims of a job for the whole fleet; runs under way go on (C10).

        Raises:
            OptionError: this backend cannot pause.
        """
        await self._set_paused(name, paused=True)

    async def resume(self, name: str) -> None:
        """Let a paused job run again, for the whole fleet."""
        await self._set_paused(name, paused=False)

    async def _set_paused(self, name: str, *, paused: bool) -> None:
        self._known(name)
        if not isinstance(self._backend, LeaseBackend):
            msg = f"{type(self._backend).__name__} cannot pause a job for the fleet: use a lease backend"
            raise OptionError(msg)
        await self._on_engine(lambda engine: engine.store.set_paused(name, paused=paused))

    def next_runs(self, name: str, count: int = 5) -> list[datetime]:
        """Return the next slots of a job as aware datetimes, in the zone of its schedule if it has one."""
        return self._known(name).next_times(self._clock.wall_ms(), count)

    def health(self) -> Health:
        """Return how this instance is; cheap, no store call."""
        engine = self._running().engine
        unsupported = {job.name: job.unsupported for job in self._jobs.values() if job.unsupported}
        if engine is None:
            return Health(self._name or "", False, False, 0, 0, len(self._jobs), 0.0, unsupported)  # noqa: FBT003 - a record
        return Health(
            engine.settings.instance,
            engine.ready.is_set(),
            engine.store.failing,
            len(engine.attempts),
            len(engine.watch),
            len(self._jobs),
            engine.store.time.offset_to_wall_ms,
            unsupported,
        )

    @property
    def portal(self) -> Portal:
        """The same questions and orders, blocking, for threads without a loop."""
        return Portal(self)

    def submit(self, work: Callable[[Engine], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run a coroutine on the engine's loop once it is ready; for tools."""
        return self._running().ask(work)
