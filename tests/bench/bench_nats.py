"""What claims cost on NATS, as ratios to its own floors: `PYTHONPATH=tests python tests/bench/bench_nats.py`.

The floor of msg-id and cas is a message that the driver publishes and that JetStream acknowledges; that of the lease is the
bare round trip (PING, PONG) times the round trips of a claim, whether or not two of them are in flight together. Both are
measured on the same server, in alternating runs of which the median counts. Besides: a hundred claims together, and 300
claims a second for a minute.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Self

import nats
import pytest
from anarchon.types import ClaimRequest, RunKey, RunResult, RunStatus, new_token
from anarchon_nats import from_url
from stores.fleet import Fleet
from stores.nats import Nats, Nats29, Nats215

ROUNDS = 7
SLICES = 20
"""A run is so many slices of floor and work in turn: what else the machine does falls on both."""
CALLS = 25
FIRST_LEAST, LEASE_LEAST = 0.90, 0.45
MANY, MANY_LEAST = 100, {"lease": 1.1, "cas": 3.0, "msg-id": 3.0}
"""A lease claim is two requests and the reading of a job: together they wait less, but each is still read and decided."""
RATE, STORM_S, MAX_AGE_S = 300, 60, 10
GROWTH_MOST_MB = 4.0
LATE_MOST_S = 10.0
KEPT_MOST = 1.5
"""A stream may hold a little more than its age says: the server removes what is over from time to time."""

DONE = RunResult(RunStatus.SUCCESS)
Timed = Callable[[], Awaitable[float]]


class Bench:
    """A backend with a prefix of its own, and a plain connection to the same server for the floor."""

    def __init__(self, server: Nats, strategy: str, **options: object) -> None:
        self.server = server
        self.prefix = f"b{secrets.token_hex(4)}"
        self.backend: Any = from_url(server.url(options={"strategy": strategy, "prefix": self.prefix, **options}))
        self.slots: Iterator[int] = count(1)

    async def __aenter__(self) -> Self:
        self.client = await nats.connect(self.server.url())
        self.stream = self.client.jetstream()
        await self.stream.add_stream(name=f"{self.prefix}-floor", subjects=[f"floor.{self.prefix}"], max_age=600)
        await self.backend.open()
        self.slots = count(await self.backend.now_ms() - 3_000_000)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.backend.close()
        await self.client.close()

    def request(self, job: str = "job", **fields: Any) -> ClaimRequest:
        """Return a claim as a scheduler writes it, of a slot that is old but not late."""
        options = {"exclusive": False, "max_late_ms": 10**9, "keep_ms": 1_000, **fields}
        info = '{"digest":"5f0c","schedule":"*/10 * * * * *","tz":"UTC"}'
        key = RunKey(job, next(self.slots))
        return ClaimRequest(key=key, token=new_token(), instance="host-7:4242:9f3a", info=info, **options)

    async def publishes(self) -> float:
        """Return the milliseconds of a message that is published and acknowledged."""
        began = time.perf_counter()
        for _ in range(CALLS):
            await self.stream.publish(f"floor.{self.prefix}", b"x" * 130)
        return (time.perf_counter() - began) * 1000 / CALLS

    async def trips(self) -> float:
        """Return the milliseconds of a bare round trip."""
        began = time.perf_counter()
        for _ in range(CALLS):
            await self.client.flush()
        return (time.perf_counter() - began) * 1000 / CALLS

    async def claims(self, *, forget: bool = False) -> float:
        """Return the milliseconds of a won claim; the runs are ended between the rounds."""
        requests = [self.request(f"job{n:03}") for n in range(CALLS)]
        began = time.perf_counter()
        for request in requests:
            if forget:
                self.backend._clock.forget()
            assert (await self.backend.claim(request)).won
        spent_ms = (time.perf_counter() - began) * 1000 / CALLS
        for request in requests:
            await self.backend.finish(request.key, request.token, DONE)
        return spent_ms


async def compared(floor: Timed, work: Timed, *, fold: Callable[[list[float]], float] = sum) -> float:
    """Return how much of the floor's speed the work has: the median of the runs, after one to warm up."""
    ratios = []
    for _ in range(ROUNDS + 1):
        floors, works = [], []
        for _ in range(SLICES):
            floors.append(await floor())
            works.append(await work())
        ratios.append(fold(floors) / fold(works))
    return statistics.median(ratios[1:])


def tell(server: Nats, what: str, value: float, limit: str) -> None:
    print(f"{server.name}: {what:<58}{value:8.2f}   (limit: {limit})")


@pytest.fixture(scope="module", params=[Nats29, Nats215], ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest) -> Iterator[Nats]:
    """A server that nothing else uses."""
    why = request.param.absent()
    if why is not None:
        pytest.skip(why)
    with Fleet() as fleet:
        # What servers are set to by themselves; with sync_interval always each claim would wait for the disk.
        yield fleet.new(type(request.param.__name__, (request.param,), {"synced": False}))


@pytest.mark.bench
@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", ["cas", "msg-id"])
def test_a_claim_costs_what_a_published_message_costs(server: Nats, strategy: str) -> None:
    async def act() -> float:
        async with Bench(server, strategy) as bench:
            return await compared(bench.publishes, bench.claims)

    ratio = asyncio.run(act())
    tell(server, f"{strategy} claim / publish and acknowledge", ratio, f"at least {FIRST_LEAST}")
    assert ratio >= FIRST_LEAST


@pytest.mark.bench
@pytest.mark.timeout(120)
@pytest.mark.parametrize("fresh", [True, False], ids=["clock read", "clock known"])
def test_a_lease_claim_costs_its_round_trips(server: Nats, fresh: bool) -> None:
    """Key and write are two; the clock is a third, in flight together with the key where the server tells its time.

    2.9 does not tell it: there a tick is published and read back, the reading together with the key.
    """
    trips = 3 if fresh else 2

    async def act() -> tuple[float, float]:
        async with Bench(server, "lease") as bench:
            told = await compared(bench.trips, lambda: bench.claims(forget=fresh))
            return trips * told, await compared(bench.publishes, lambda: bench.claims(forget=fresh))

    ratio, published = asyncio.run(act())
    what = "clock read" if fresh else "clock known"
    tell(server, f"lease claim, {what} / {trips} round trips", ratio, f"at least {LEASE_LEAST}")
    tell(server, f"lease claim, {what} / publish and acknowledge", published, "none")
    assert ratio >= LEASE_LEAST


@pytest.mark.bench
@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", ["lease", "cas", "msg-id"])
def test_a_hundred_claims_together(server: Nats, strategy: str) -> None:
    async def act() -> float:
        async with Bench(server, strategy) as bench:
            jobs = [f"job{n:03}" for n in range(MANY)]

            async def singly() -> float:
                requests = [bench.request(job) for job in jobs]
                began = time.perf_counter()
                for request in requests:
                    assert (await bench.backend.claim(request)).won
                return time.perf_counter() - began

            async def at_once() -> float:
                requests = [bench.request(job) for job in jobs]
                began = time.perf_counter()
                answers = await bench.backend.claim_many(requests)
                spent_s = time.perf_counter() - began
                assert all(answer.won for answer in answers)
                return spent_s

            return await compared(singly, at_once, fold=min)

    ratio = asyncio.run(act())
    tell(server, f"{strategy}: 100 claims singly / together", ratio, f"at least {MANY_LEAST[strategy]:g}")
    assert ratio >= MANY_LEAST[strategy]


def resident_mb() -> float:
    """Return this process's resident memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096 / 1e6


@pytest.mark.bench
@pytest.mark.timeout(200)
@pytest.mark.parametrize("strategy", ["lease", "cas", "msg-id"])
def test_a_minute_of_300_claims_a_second(server: Nats, strategy: str) -> None:
    """The client's memory does not grow, and the stream holds what was promised and no more."""
    options: dict[str, object] = {} if strategy == "lease" else {"max_age": MAX_AGE_S}
    if strategy == "msg-id":
        options["duplicate_window"] = MAX_AGE_S

    async def act() -> tuple[float, float, int]:
        async with Bench(server, strategy, **options) as bench:
            late_s, early_mb, began = 0.0, 0.0, time.perf_counter()

            async def through(request: ClaimRequest) -> None:
                assert (await bench.backend.claim(request)).won
                assert await bench.backend.finish(request.key, request.token, DONE)

            for tick in range(STORM_S * 10):
                due = began + tick / 10
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                late_s = max(late_s, time.perf_counter() - due)
                if tick == STORM_S * 10 // 3:
                    early_mb = resident_mb()
                await asyncio.gather(*(through(bench.request(f"job{n:02}")) for n in range(RATE // 10)))
            grown_mb = resident_mb() - early_mb
            messages = (await bench.stream.stream_info(bench.backend._found.name)).state.messages
            return late_s, grown_mb, messages

    late_s, grown_mb, messages = asyncio.run(act())
    tell(server, f"{strategy}: memory after 20 s to after 60 s, MB", grown_mb, f"at most {GROWTH_MOST_MB:g}")
    # A job keeps a hundred runs and up to 24 more, eight to a message, beside its key.
    most = RATE // 10 * 18 if strategy == "lease" else int(2 * RATE * MAX_AGE_S * KEPT_MOST)
    tell(server, f"{strategy}: messages in the stream after 18,000 runs", messages, f"at most {most}")
    tell(server, f"{strategy}: most seconds behind the rate", late_s, f"at most {LATE_MOST_S:g}")
    assert grown_mb <= GROWTH_MOST_MB
    assert messages <= most
    assert late_s <= LATE_MOST_S


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", "-s", "-p", "no:cacheprovider", __file__]))
