"""Calling handlers: async ones on the application's loop, sync ones in daemon threads, neither in the engine's way."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from anarchon.errors import LeaseLost, OptionError
from anarchon.run import Run

__all__ = ["Ended", "Execution", "Handler", "HandlerFunction", "HandlerHost", "How"]

HandlerFunction = Callable[..., Any]
ERROR_MAX_CHARS = 500


class How(StrEnum):
    """How a handler ended."""

    RETURNED = "returned"
    RAISED = "raised"
    CANCELLED = "cancelled"
    GAVE_UP = "gave up"
    """It let `LeaseLost` out: it stopped because it was told to, which is how a sync handler obeys (K6)."""
    ORPHANED = "orphaned"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a handler; `error` is one line for people, `trace` the whole story for the log."""

    how: How
    error: str | None = None
    trace: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Ended:
        """Return the end that an exception makes, whatever its own text does (K5)."""
        name = type(error).__name__
        try:
            text = f"{name}: {error}".rstrip(": ").replace("\n", " ")
            trace = "".join(traceback.format_exception(error))
        except Exception:  # border: handler
            text, trace = f"{name} (its text cannot be made)", "".join(traceback.format_tb(error.__traceback__))
        return cls(How.GAVE_UP if isinstance(error, LeaseLost) else How.RAISED, text[:ERROR_MAX_CHARS], trace)


@dataclass(frozen=True, slots=True)
class Handler:
    """A user's function and how to call it."""

    function: HandlerFunction
    is_async: bool
    run_argument: str | None
    default_name: str

    @classmethod
    def of(cls, function: HandlerFunction) -> Handler:
        """Look at a function: is it async, does it ask for the `Run`.

        Raises:
            OptionError: it is no function, or asks for arguments that nobody can give.
        """
        if not callable(function):
            msg = f"{function!r:.80} is no function: a handler is called with nothing, or with the Run"
            raise OptionError(msg)
        plain = function
        while isinstance(plain, functools.partial):
            plain = plain.func
        name = getattr(plain, "__name__", type(plain).__name__)
        if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
            msg = f"handler {name!r} contains 'yield': calling it would run nothing; write a plain or an async function"
            raise OptionError(msg)
        is_async = inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(getattr(plain, "__call__", None))  # noqa: B004 - the method, not callability
        return cls(function, is_async, _run_argument(function, name), name)

    def bind(self, run: Run) -> Callable[[], Any]:
        """Return the call for a run."""
        if self.run_argument is None:
            return self.function
        return functools.partial(self.function, **{self.run_argument: run})


def _run_argument(function: HandlerFunction, name: str) -> str | None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    asked: str | None = None
    for parameter in parameters:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            continue
        # A tuple, since an annotation need not be hashable.
        is_run = parameter.annotation in (Run, Run | None, "Run", "anarchon.Run", "Run | None") or parameter.name == "run"
        if is_run and asked is None and parameter.kind is not parameter.POSITIONAL_ONLY:
            asked = parameter.name
        elif parameter.default is parameter.empty:
            msg = f"handler {name!r} asks for {parameter.name!r}: a handler takes nothing, or one argument 'run: Run'"
            raise OptionError(msg)
    return asked


class Execution:
    """A handler under way, as the engine's loop sees it."""

    def __init__(self, engine_loop: asyncio.AbstractEventLoop) -> None:
        self.done: asyncio.Future[Ended] = engine_loop.create_future()
        self.cancellable = False
        self.cancel_asked = False
        self._engine_loop = engine_loop
        self.on_cancel: Callable[[], None] = lambda: None

    def cancel(self) -> None:
        """Ask an async handler to stop; nothing happens to a sync one."""
        self.cancel_asked = True
        self.on_cancel()

    def end(self, ended: Ended) -> None:
        def settle() -> None:
            if not self.done.done():
                self.done.set_result(ended)

        try:
            self._engine_loop.call_soon_threadsafe(settle)
        except RuntimeError:  # the engine's loop is gone: nobody waits any more
            return


class HandlerHost:
    """Where handlers run. `gone` is told when the loop for async ones turns out to be closed."""

    def __init__(self, handler_loop: asyncio.AbstractEventLoop, gone: Callable[[], None] = lambda: None) -> None:
        self._loop = handler_loop
        self._gone = gone
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, handler: Handler, run: Run) -> Execution:
        """Start a handler; its end arrives in the execution's `done`."""
        execution = Execution(asyncio.get_running_loop())
        call = handler.bind(run)
        context = contextvars.copy_context()
        if not handler.is_async:
            name = f"anarchon-{run.job[:40]}"
            thread = threading.Thread(target=context.run, args=(self._in_thread, call, execution), name=name, daemon=True)
            thread.start()
            return execution
        execution.cancellable = True
        begin = functools.partial(self._begin, call, execution, context)
        try:
            if self._loop is asyncio.get_running_loop():
                begin()
            else:
                self._loop.call_soon_threadsafe(begin)
        except RuntimeError:
            self._gone()
            execution.end(Ended(How.ORPHANED, "the application's event loop is closed"))
        return execution

    def _begin(self, call: Callable[[], Awaitable[Any]], execution: Execution, context: contextvars.Context) -> None:
        task = self._loop.create_task(self._in_loop(call, execution), context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task cancelled before its first step never enters its own body.
        task.add_done_callback(lambda done: execution.end(Ended(How.CANCELLED, "cancelled")) if done.cancelled() else None)

        def cancel() -> None:
            try:
                self._loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                execution.end(Ended(How.ORPHANED, "the application's event loop is closed"))

        execution.on_cancel = cancel
        if execution.cancel_asked:
            task.cancel()

    @staticmethod
    async def _in_loop(call: Callable[[], Awaitable[Any]], execution: Execution) -> None:
        try:
            await call()
        except asyncio.CancelledError:
            execution.end(Ended(How.CANCELLED, "cancelled"))
        except BaseException as error:  # border: handler; SystemExit must not end the application's loop
            execution.end(Ended.of(error))
        else:
            execution.end(Ended(How.RETURNED))

    @staticmethod
    def _in_thread(call: Callable[[], Any], execution: Execution) -> None:
        try:
            result = call()
        except BaseException as error:  # border: handler
            execution.end(Ended.of(error))
            return
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            execution.end(Ended(How.RAISED, "the handler returned something to await: define it with 'async def'"))
        else:
            execution.end(Ended(How.RETURNED))
