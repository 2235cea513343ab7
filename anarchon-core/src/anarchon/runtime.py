"""Threads and loops: the engine in a thread of its own, and the loop that async handlers run on."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from anarchon.engine import Engine
from anarchon.errors import BackendUnavailable, SchedulerStateError

__all__ = ["EngineThread", "HandlerThread", "close_loop", "instance_name"]

T = TypeVar("T")
LEFTOVERS_S = 0.3

_log = logging.getLogger("anarchon.scheduler")


class EngineThread:
    """Runs one engine on its own loop in a daemon thread, so that a blocked application cannot starve it (K7).

    `started` is resolved once the engine works or has failed to reach the store for the first time; `finished` when it
    has ended, with its error if it died.
    """

    def __init__(self, make: Callable[[], Engine]) -> None:
        self.started: Future[None] = Future()
        self.finished: Future[None] = Future()
        self.engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._early: list[Callable[[Engine], None]] = []
        self._make = make
        self._thread = threading.Thread(target=self._main, name="anarchon-engine", daemon=True)

    def start(self) -> None:
        """Start the thread; see `started`."""
        self._thread.start()

    def _main(self) -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                runner.run(self._work())
        except BaseException as caught:  # the thread's last line: whoever waits is told
            error = caught.exceptions[0] if isinstance(caught, BaseExceptionGroup) else caught
            if self.started.done():  # nobody may be waiting
                _log.critical("this instance has ended and runs no job any more: %s", error, exc_info=caught)
        for future in (self.finished, self.started):  # in this order: who is told that the start failed finds it ended
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

    async def _work(self) -> None:
        engine = self._make()
        with self._lock:
            self.engine = engine
            for call in self._early:
                call(engine)
        begun = asyncio.create_task(self._tell_started(engine))
        try:
            await engine.run()
        finally:
            begun.cancel()

    async def _tell_started(self, engine: Engine) -> None:
        await engine.tried.wait()
        if not self.started.done():
            self.started.set_result(None)

    def ask(self, work: Callable[[Engine], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run a coroutine on the engine's loop once the engine is ready.

        Raises:
            SchedulerStateError: the engine has ended, or has not begun.
        """
        if self._loop is None or self.engine is None or self.finished.done():
            msg = "this scheduler is not running: start it first"
            raise SchedulerStateError(msg)
        question = _when_ready(self.engine, work)
        try:
            return asyncio.run_coroutine_threadsafe(question, self._loop)
        except RuntimeError:  # it ended this moment
            question.close()
            msg = "this scheduler is not running: it has just ended"
            raise SchedulerStateError(msg) from None

    def tell(self, call: Callable[[Engine], None]) -> None:
        """Call something on the engine's loop; nothing happens once it has ended."""
        with self._lock:
            engine = self.engine
            if engine is None:
                self._early.append(call)
                return
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(call, engine)
            except RuntimeError:
                return

    @property
    def here(self) -> bool:
        """Whether the caller is on the engine's own thread."""
        return threading.current_thread() is self._thread

    def join(self, timeout_s: float) -> None:
        """Wait for the thread."""
        self._thread.join(timeout_s)


async def _when_ready(engine: Engine, work: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
    try:
        async with asyncio.timeout(engine.store.limits.call_timeout_ms / 1000):
            await engine.ready.wait()
    except TimeoutError:
        msg = "the store has not been reached yet; the scheduler goes on trying"
        raise BackendUnavailable(msg) from None
    return await work(engine)


class HandlerThread:
    """A loop for async handlers in a thread of its own, for applications that have no loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name="anarchon-handlers", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            close_loop(self.loop)

    def stop(self, timeout_s: float) -> None:
        """Stop the loop and wait for the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout_s)


def instance_name() -> str:
    """Return a name for this process that no other has: host, pid and four random digits."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left on a loop, give it a moment, and close the loop whatever it does (K6)."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=LEFTOVERS_S))
    loop.run_until_complete(loop.shutdown_asyncgens())
    asyncio.set_event_loop(None)
    loop.close()
