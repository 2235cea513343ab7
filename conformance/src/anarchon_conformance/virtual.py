"""A clock that stands still until somebody moves it, for simulated stores."""

from __future__ import annotations

import asyncio

from anarchon.clock import Clock

__all__ = ["ManualClock"]


class ManualClock(Clock):
    """Sleeping moves both times; `step` moves the wall clock alone."""

    def __init__(self, wall_ms: int = 1_900_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = 0

    def wall_ms(self) -> float:
        return self._wall_ms

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def advance(self, duration_ms: int) -> None:
        """Let time pass."""
        self._monotonic_ms += duration_ms
        self._wall_ms += duration_ms

    def step(self, delta_ms: int) -> None:
        """Step the wall clock; no time passes."""
        self._wall_ms += delta_ms

    async def sleep_ms(self, duration_ms: float) -> None:
        self.advance(max(0, round(duration_ms)))

    async def wait(self, event: asyncio.Event, timeout_ms: float) -> bool:
        if not event.is_set():
            await self.sleep_ms(timeout_ms)
        return event.is_set()

    def uniform_ms(self, most_ms: float) -> float:
        return most_ms / 2
