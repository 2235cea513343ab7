"""The simulated world: clocks, the wire between an instance and the store, and what can go wrong with both."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import TypeVar

from anarchon.backend import LeaseBackend
from anarchon.clock import Clock
from anarchon.errors import BackendUnavailable
from anarchon.memory import MemoryStore
from anarchon.types import Claim, ClaimRequest, JobView, Limits, RunKey, RunRecord, RunResult, RunView
from anarchon.url import BackendUrl

__all__ = ["Link", "SimulatedClock", "StoreClock", "Wire", "World"]

T = TypeVar("T")
LATENCY_LEAST_MS = 0.2
LATENCY_MOST_MS = 4.0


class StoreClock(Clock):
    """The store's clock: virtual time from a starting point, and steps."""

    def __init__(self, start_ms: float) -> None:
        self._start_ms = start_ms

    def step(self, by_ms: float) -> None:
        """Move the clock."""
        self._start_ms += by_ms

    def wall_ms(self) -> float:
        return self._start_ms + asyncio.get_running_loop().time() * 1000


class World:
    """One store, one true time, one source of chance; `lossy` counts what was lost on the wire."""

    def __init__(self, start_ms: int, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - a simulation
        self.clock = StoreClock(start_ms)
        self.store = MemoryStore(self.clock)
        self.start_ms = start_ms
        self.lost_replies = 0
        self._deliveries: set[asyncio.Task[None]] = set()

    def true_ms(self) -> float:
        """Return virtual milliseconds since the start, as no clock of the simulation shows them."""
        return asyncio.get_running_loop().time() * 1000

    def deliver(self, wire: Wire, act: Callable[[], T], answer: asyncio.Future[T]) -> None:
        """Carry a request to the store and its answer back, on nobody's behalf: a crash does not stop a packet."""
        task = asyncio.get_running_loop().create_task(self._deliver(wire, act, answer), context=Context())
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)

    async def _deliver(self, wire: Wire, act: Callable[[], T], answer: asyncio.Future[T]) -> None:
        await asyncio.sleep(wire.latency_ms(self.chance) / 1000)  # noqa: TID251 - the wire's own time
        if wire.cut or self.chance.random() < wire.lose_requests:
            return
        result = act()
        await asyncio.sleep(wire.latency_ms(self.chance) / 1000)  # noqa: TID251 - the wire's own time
        if wire.cut or self.chance.random() < wire.lose_replies:
            self.lost_replies += 1
            if self.chance.random() < 0.5 and not answer.done():
                answer.set_exception(BackendUnavailable("the connection was reset"))
            return
        if not answer.done():
            answer.set_result(result)


@dataclass(slots=True)
class Wire:
    """The connection of one instance: cut, lossy or slow."""

    cut: bool = False
    lose_requests: float = 0.0
    lose_replies: float = 0.0
    slow_ms: float = 0.0
    running: asyncio.Event = field(default_factory=asyncio.Event)
    dead: bool = False
    troubled_ms: float = float("-inf")

    def __post_init__(self) -> None:
        self.running.set()

    def calm_for(self, now_ms: float, span_ms: float) -> bool:
        """Whether nothing was wrong with this wire for a span up to now."""
        return now_ms - self.troubled_ms >= span_ms

    def latency_ms(self, chance: random.Random) -> float:
        """Return one way's time."""
        return chance.uniform(LATENCY_LEAST_MS, LATENCY_MOST_MS) + self.slow_ms


class SimulatedClock(Clock):
    """An instance's clock: skewed against the truth, and standing still for its sleepers while it is paused."""

    def __init__(self, world: World, wire: Wire, skew_ms: float, chance: random.Random) -> None:
        self._world = world
        self._wire = wire
        self.skew_ms = skew_ms
        self._chance = chance

    def wall_ms(self) -> float:
        return self._world.start_ms + self._world.true_ms() + self.skew_ms

    def monotonic_ms(self) -> float:
        return self._world.true_ms()

    async def sleep_ms(self, duration_ms: float) -> None:
        await asyncio.sleep(max(0.0, duration_ms) / 1000)  # noqa: TID251 - virtual time
        await self._wire.running.wait()

    async def wait(self, event: asyncio.Event, timeout_ms: float) -> bool:
        if timeout_ms > 0 and not event.is_set():
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await event.wait()
            except TimeoutError:
                pass
        await self._wire.running.wait()
        return event.is_set()

    def uniform_ms(self, most_ms: float) -> float:
        return self._chance.uniform(0, most_ms)


class Link(LeaseBackend):
    """The backend of one simulated instance: the world's store at the end of its wire."""

    limits = Limits(durable=True)

    def __init__(self, world: World, wire: Wire) -> None:
        self._world = world
        self._wire = wire
        self.calls = 0

    @classmethod
    def from_url(cls, url: BackendUrl) -> Link:
        """There is no URL for a simulated store."""
        msg = f"{url}: a simulated store has no URL"
        raise BackendUnavailable(msg)

    async def _call(self, act: Callable[[], T]) -> T:
        self.calls += 1
        if self._wire.dead:
            msg = "this instance was killed"
            raise BackendUnavailable(msg)
        if self._wire.cut and self._world.chance.random() < 0.5:
            msg = "the network is unreachable"
            raise BackendUnavailable(msg)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._world.deliver(self._wire, act, answer)
        try:
            return await answer
        finally:
            await self._wire.running.wait()

    async def open(self) -> None:
        await self._call(lambda: None)

    async def close(self) -> None:
        """Nothing is kept open."""

    async def claim(self, request: ClaimRequest) -> Claim:
        return await self._call(lambda: self._world.store.claim(request))

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        return await self._call(lambda: self._world.store.finish(key, token, result))

    async def renew(self, key: RunKey, token: str, lease_ms: int) -> bool:
        return await self._call(lambda: self._world.store.renew(key, token, lease_ms))

    async def release(
        self, key: RunKey, token: str, *, delay_ms: int = 0, counted: bool = False, error: str | None = None
    ) -> bool:
        store = self._world.store
        return await self._call(lambda: store.release(key, token, delay_ms=delay_ms, counted=counted, error=error))

    async def check(self, keys: Sequence[RunKey]) -> list[RunView | None]:
        return await self._call(lambda: [self._world.store.view(key) for key in keys])

    async def unfinished(self, jobs: Sequence[str]) -> list[RunView]:
        return await self._call(lambda: self._world.store.unfinished(jobs))

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        return await self._call(lambda: self._world.store.history(job, limit, since_ms))

    async def jobs(self) -> list[JobView]:
        return await self._call(self._world.store.jobs)

    async def set_paused(self, job: str, paused: bool) -> None:  # noqa: FBT001 - see LeaseBackend
        await self._call(lambda: self._world.store.set_paused(job, paused=paused))

    async def now_ms(self) -> int:
        return await self._call(self._world.store.now_ms)
