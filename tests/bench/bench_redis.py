"""What claims cost on Redis, as ratios to PING: `PYTHONPATH=tests python tests/bench/bench_redis.py`.

PING goes through the driver's own client, on the same server, in alternating runs of which the median counts, so that a
busy machine slows both. Besides: eight processes, a hundred claims together, the script strategy beside a long history, and a
job with 200,000 runs behind it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any, Self

import pytest
from anarchon.types import ClaimRequest, RunKey, RunResult, RunStatus, new_token
from anarchon_redis import from_url
from redis.asyncio import Redis as Client
from stores.fleet import Fleet
from stores.redis import Redis, Redis70, Redis86

ROUNDS = 7
SLICES = 20
"""A run is so many slices of floor and work in turn: what else the machine does falls on both."""
CALLS = 25
PROCESSES = 8
PROCESS_S = 0.12
PROCESS_SLICES = 5
START_S = 120.0
LEASE_LEAST, LEASE_LEAST_TOGETHER, STREAM_ID_LEAST = 0.40, 0.55, 0.85
MANY, MANY_LEAST = 100, 5.0
FEW_RUNS, MANY_RUNS, GROWTH_MOST = 20_000, 200_000, 0.10
NEIGHBOURS, HISTORY_FEW, HISTORY_MANY, SCRIPT_GROWTH_MOST = 20, 100, 20_000, 0.25

EVERYSEC = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")
DONE = RunResult(RunStatus.SUCCESS)
Timed = Callable[[], Awaitable[float]]


class Bench:
    """A backend with a prefix of its own, and a plain client of the same server for the floor."""

    def __init__(self, server: Redis, strategy: str) -> None:
        self.server = server
        self.url = server.url(options={"strategy": strategy, "prefix": f"b{secrets.token_hex(4)}:"})
        self.backend: Any = from_url(self.url)
        self.prefix = self.backend._options.prefix
        self.client = Client(host=server.host, port=server.port)
        self.slots: Iterator[int] = count(1)

    async def __aenter__(self) -> Self:
        await self.backend.open()
        self.slots = count(await self.backend.now_ms() - 3_000_000)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.backend.close()
        await self.client.aclose()

    def request(self, job: str = "job", **fields: Any) -> ClaimRequest:
        return request_of(job, next(self.slots), **fields)

    async def pings(self) -> float:
        """Return the milliseconds of a PING through the driver."""
        began = time.perf_counter()
        for _ in range(CALLS):
            await self.client.ping()
        return (time.perf_counter() - began) * 1000 / CALLS

    async def claims(self, job: str = "job", **fields: Any) -> float:
        """Return the milliseconds of a won claim; the runs are ended between the rounds."""
        requests = [self.request(job, **fields) for _ in range(CALLS)]
        began = time.perf_counter()
        for request in requests:
            assert (await self.backend.claim(request)).won
        spent_ms = (time.perf_counter() - began) * 1000 / CALLS
        for request in requests:
            await self.backend.finish(request.key, request.token, DONE)
        return spent_ms


def request_of(job: str, slot_ms: int, **fields: Any) -> ClaimRequest:
    """Return a claim as a scheduler writes it, of a slot that is old but not late."""
    options = {"exclusive": False, "max_late_ms": 10**9, "keep_ms": 1_000, **fields}
    info = '{"digest":"5f0c","schedule":"*/10 * * * * *","tz":"UTC"}'
    return ClaimRequest(key=RunKey(job, slot_ms), token=new_token(), instance="host-7:4242:9f3a", info=info, **options)


async def compared(floor: Timed, work: Timed, *, fold: Callable[[list[float]], float] = sum) -> float:
    """Return how much of the floor's speed the work has: the median of the runs, after one to warm up.

    `fold` makes one number of the slices of a run: their sum, or `min` for work that is one long burst, which a busy
    machine interrupts and short calls it does not.
    """
    ratios = []
    for _ in range(ROUNDS + 1):
        floors, works = [], []
        for _ in range(SLICES):
            floors.append(await floor())
            works.append(await work())
        ratios.append(fold(floors) / fold(works))
    return statistics.median(ratios[1:])


def tell(server: Redis, what: str, value: float, limit: str) -> None:
    print(f"{server.name}: {what:<52}{value:8.2f}   (limit: {limit})")


@pytest.fixture(scope="module", params=[Redis70, Redis86], ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest) -> Iterator[Redis]:
    """A server that nothing else uses."""
    why = request.param.absent()
    if why is not None:
        pytest.skip(why)
    with Fleet() as fleet:
        # What most servers are set to; with `always` every claim would wait for the disk, and PING would not.
        kind = type(request.param.__name__, (request.param,), {"settings": EVERYSEC})
        yield fleet.new(kind)


@pytest.mark.bench
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("strategy", "least"), [("lease", LEASE_LEAST), ("stream-id", STREAM_ID_LEAST)])
def test_one_connection(server: Redis, strategy: str, least: float) -> None:
    async def act() -> float:
        async with Bench(server, strategy) as bench:
            return await compared(bench.pings, bench.claims)

    ratio = asyncio.run(act())
    tell(server, f"{strategy} claim / PING, one connection", ratio, f"at least {least}")
    assert ratio >= least


def together(url: str, host: str, port: int, turn: Any, out: Any) -> None:
    """Be one of the processes: PING and claim in turn with the others, and tell how many of each were done."""

    async def timed(call: Callable[[], Awaitable[Any]]) -> float:
        turn.wait(START_S)
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < PROCESS_S:
            for _ in range(20):
                await call()
            done += 20
        return done / (time.perf_counter() - began)

    async def act() -> list[tuple[float, float]]:
        backend: Any = from_url(url)
        await backend.open()
        job, slots = f"job{secrets.token_hex(3)}", count(await backend.now_ms() - 3_000_000)
        open_runs: list[ClaimRequest] = []

        async def claim() -> None:
            request = request_of(job, next(slots))
            assert (await backend.claim(request)).won
            open_runs.append(request)

        rates = []
        async with Client(host=host, port=port) as client:
            for _ in range(ROUNDS + 1):
                done = [0.0, 0.0]
                for _ in range(PROCESS_SLICES):
                    done[0] += await timed(client.ping)
                    done[1] += await timed(claim)
                rates.append((done[0], done[1]))
                turn.wait(START_S)
                while open_runs:
                    request = open_runs.pop()
                    await backend.finish(request.key, request.token, DONE)
        await backend.close()
        return rates

    out.put(asyncio.run(act()))


@pytest.mark.bench
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("strategy", "least"), [("lease", LEASE_LEAST_TOGETHER), ("stream-id", STREAM_ID_LEAST)])
def test_eight_processes(server: Redis, strategy: str, least: float) -> None:
    bench = Bench(server, strategy)
    context = multiprocessing.get_context("spawn")
    turn, out = context.Barrier(PROCESSES), context.Queue()
    arguments = (bench.url, server.host, server.port, turn, out)
    workers = [context.Process(target=together, args=arguments) for _ in range(PROCESSES)]
    for worker in workers:
        worker.start()
    rates = [out.get(timeout=START_S) for _ in workers]
    for worker in workers:
        worker.join(START_S)
    rounds = list(zip(*rates, strict=True))[1:]
    ratio = statistics.median(sum(claims for _, claims in round_) / sum(pings for pings, _ in round_) for round_ in rounds)
    tell(server, f"{strategy} claims / PINGs, eight processes", ratio, f"at least {least}")
    assert ratio >= least


@pytest.mark.bench
@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", ["lease", "stream-id"])
def test_a_hundred_claims_together(server: Redis, strategy: str) -> None:
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
    tell(server, f"{strategy}: 100 claims singly / together", ratio, f"at least {MANY_LEAST:g}")
    assert ratio >= MANY_LEAST


@pytest.mark.bench
@pytest.mark.timeout(120)
def test_the_script_strategy_reads_only_the_neighbourhood(server: Redis) -> None:
    """A slot's neighbourhood is the same beside a short and a long history; so is the cost."""

    async def history(bench: Bench, job: str, entries: int) -> None:
        now_ms = await bench.backend.now_ms()
        stream = f"{bench.prefix}{job}:runs"
        async with bench.client.pipeline(transaction=False) as pipe:
            for n in range(entries):  # within the window, before the slot
                slot = now_ms - 200_000 + n * 9
                fields: dict[Any, Any] = {"slot": slot, "space": "", "token": "t", "instance": "i", "at": slot, "keep": 10**6}
                pipe.xadd(stream, fields, id=f"{slot}-0")
            await pipe.execute()

    async def act() -> float:
        async with Bench(server, "script") as bench:
            for job, entries in (("few", HISTORY_FEW), ("many", HISTORY_MANY)):
                await history(bench, job, entries)
            places = {"few": count(), "many": count()}

            async def claims(job: str) -> float:
                base_ms = await bench.backend.now_ms()
                began = time.perf_counter()
                for _ in range(NEIGHBOURS):
                    request = request_of(job, base_ms - next(places[job]) % NEIGHBOURS, history_size=10**6)
                    await bench.backend.claim(request)
                return time.perf_counter() - began

            ratios = []
            for round_ in range(8 * ROUNDS):
                few_s, many_s = await claims("few"), await claims("many")
                if round_:
                    ratios.append(many_s / few_s)
            return statistics.median(ratios)

    growth = asyncio.run(act()) - 1
    tell(server, "script beside 20,000 instead of 100 entries, growth", growth, f"at most {SCRIPT_GROWTH_MOST}")
    assert growth <= SCRIPT_GROWTH_MOST


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_a_job_with_200_000_runs_behind_it(server: Redis) -> None:
    if not isinstance(server, Redis86):
        return  # once is enough: the scripts are the same

    async def runs(bench: Bench, job: str, total: int) -> None:
        for _ in range(total // MANY):
            requests = [bench.request(job) for _ in range(MANY)]
            assert all(answer.won for answer in await bench.backend.claim_many(requests))
            await asyncio.gather(*(bench.backend.finish(r.key, r.token, DONE) for r in requests))

    async def memory(bench: Bench, job: str) -> int:
        used = 0
        for suffix in ("state", "runs", "live", "final"):
            used += await bench.client.memory_usage(f"{bench.prefix}{job}:{suffix}", samples=0) or 0
        return used

    async def act() -> tuple[float, float]:
        async with Bench(server, "lease") as bench:
            await runs(bench, "few", FEW_RUNS)
            few_bytes = await memory(bench, "few")
            await runs(bench, "many", MANY_RUNS)
            growth = await memory(bench, "many") / few_bytes - 1
            # Both in turn, so that a busy machine slows both; overlap is asked for as well.
            ratios = []
            for round_ in range(ROUNDS + 1):
                medians = []
                for job in ("few", "many") if round_ % 2 else ("many", "few"):
                    medians.append((job, await median_claim(bench, job)))
                found = dict(medians)
                if round_:
                    ratios.append(found["many"] / found["few"])
            return growth, statistics.median(ratios) - 1

    async def median_claim(bench: Bench, job: str) -> float:
        times = []
        for _ in range(CALLS * 10):
            request = bench.request(job, exclusive=True)
            began = time.perf_counter()
            assert (await bench.backend.claim(request)).won
            times.append(time.perf_counter() - began)
            await bench.backend.finish(request.key, request.token, DONE)
        return statistics.median(times)

    memory_growth, claim_growth = asyncio.run(act())
    tell(server, "memory after 200,000 instead of 20,000 runs, growth", memory_growth, f"at most {GROWTH_MOST}")
    tell(server, "median claim after 200,000 instead of 20,000, growth", claim_growth, f"at most {GROWTH_MOST}")
    assert abs(memory_growth) <= GROWTH_MOST
    assert abs(claim_growth) <= GROWTH_MOST


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", "-s", "-p", "no:cacheprovider", __file__]))
