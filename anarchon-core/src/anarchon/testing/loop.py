"""An event loop on virtual time: it never waits, it moves its clock to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, TypeVar

__all__ = ["OWNER", "VirtualLoop", "run_virtual"]

T = TypeVar("T")
OWNER: ContextVar[set[asyncio.Task[Any]] | None] = ContextVar("owner", default=None)
"""The set that every task made in a context is kept in, so that an instance can be killed with all its tasks."""


class _NoWait(selectors.DefaultSelector):
    """A selector that moves the loop's clock forward by the time it was asked to wait."""

    def __init__(self, advance: Callable[[float | None], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not events and timeout != 0:
            self._advance(timeout)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """A selector loop whose `time()` jumps from timer to timer. Deterministic as long as no other thread calls in."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_NoWait(self._advance))
        self.set_task_factory(_own)  # type: ignore[arg-type]  # the stub does not know the keyword arguments of 3.11

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._now_s

    def _advance(self, timeout_s: float | None) -> None:
        if timeout_s is None:
            msg = "the simulation is stuck: nothing is due and nobody will wake anybody"
            raise RuntimeError(msg)
        # A little more than asked: the sum of floats must not fall short of the timer for ever.
        self._now_s += timeout_s + 1e-9


def _own(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T], *, context: Context | None = None, **more: Any
) -> asyncio.Task[T]:
    task = asyncio.Task(coro, loop=loop, context=context, **more)
    owner = OWNER.get() if context is None else context.get(OWNER)
    if owner is not None:
        owner.add(task)
        task.add_done_callback(owner.discard)
    return task


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end on a fresh virtual loop, cancelling what it leaves behind."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main())
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
