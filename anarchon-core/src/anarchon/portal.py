"""A scheduler's coroutine methods for threads without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from anarchon.types import RunRecord

if TYPE_CHECKING:
    from anarchon.scheduler import Scheduler

__all__ = ["Portal"]

T = TypeVar("T")


class Portal:
    """Blocking versions of a scheduler's coroutine methods; each raises what the method raises."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def _wait(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run(call())

    def run_now(self, name: str, *, wait: bool = True, force: bool = False) -> RunRecord:
        """See `Scheduler.run_now`."""
        return self._wait(lambda: self._scheduler.run_now(name, wait=wait, force=force))

    def history(self, name: str, limit: int = 100) -> list[RunRecord]:
        """See `Scheduler.history`."""
        return self._wait(lambda: self._scheduler.history(name, limit))

    def last_run(self, name: str) -> RunRecord | None:
        """See `Scheduler.last_run`."""
        return self._wait(lambda: self._scheduler.last_run(name))

    def pause(self, name: str) -> None:
        """See `Scheduler.pause`."""
        self._wait(lambda: self._scheduler.pause(name))

    def resume(self, name: str) -> None:
        """See `Scheduler.resume`."""
        self._wait(lambda: self._scheduler.resume(name))
