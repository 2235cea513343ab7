"""The only source of wall time, durations, sleep and chance, so that a simulation can own all four."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Final

__all__ = ["Clock", "Moment", "SystemClock"]

_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", None)


@dataclass(frozen=True, slots=True)
class Moment:
    """An instant on both of a machine's clocks, in milliseconds."""

    monotonic_ms: float
    wall_ms: float


class Clock:
    """What the scheduler knows of time; `SystemClock` is the real one.

    A subclass may tell less, for instance a store's clock only wall time: what it does not tell raises NotImplementedError.
    """

    def wall_ms(self) -> float:
        """Return this machine's idea of Unix time in milliseconds; it may step."""
        raise NotImplementedError

    def monotonic_ms(self) -> float:
        """Return milliseconds that never go back and, where the machine can, count suspend (K1)."""
        raise NotImplementedError

    async def sleep_ms(self, duration_ms: float) -> None:
        """Wait; may wake early or late."""
        raise NotImplementedError

    async def wait(self, event: asyncio.Event, timeout_ms: float) -> bool:
        """Wait for an event for at most `timeout_ms`; return whether it is set."""
        raise NotImplementedError

    def uniform_ms(self, most_ms: float) -> float:
        """Return a random duration from 0 to `most_ms`."""
        raise NotImplementedError

    def moment(self) -> Moment:
        """Return now on both clocks."""
        return Moment(self.monotonic_ms(), self.wall_ms())

    def elapsed_ms(self, since: Moment) -> float:
        """Return how much time has passed at the most: by the clock that says more (K1)."""
        return max(self.monotonic_ms() - since.monotonic_ms, self.wall_ms() - since.wall_ms)


class SystemClock(Clock):
    """The machine's clocks."""

    def wall_ms(self) -> float:
        return time.time_ns() / 1e6

    def monotonic_ms(self) -> float:
        return (time.monotonic_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)) / 1e6

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
        return random.uniform(0, most_ms)  # noqa: S311 - spreads load, guards nothing
