"""What claims cost on RabbitMQ, as ratios to a confirmed publish: `PYTHONPATH=tests python tests/bench/bench_rabbitmq.py`.

The floor is a persistent message to a durable classic queue and its confirm, through the driver's own channel, on the same
broker, in alternating runs of which the median counts, so that a busy machine slows both. Besides: what a job costs
whose gates are 300.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import aiormq
import pytest
from anarchon.types import ClaimRequest, RunKey, new_token
from anarchon_rabbitmq import RabbitMQBackend, trial
from pamqp.commands import Basic
from stores.fleet import Fleet
from stores.rabbitmq import RabbitMQ, RabbitMQ40, RabbitMQ310

ROUNDS = 7
SLICES = 6
"""A run is so many slices of floor and work in turn: what else the machine does falls on both."""
CALLS = 20
GATE_LEAST, TOKEN_LEAST = 0.2, 1.0
"""Both make a durable queue, which is most of what either costs: a token is faster by what the message costs."""
GATES = 300
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")

Timed = Callable[[], Awaitable[float]]


class Bench:
    """A backend of each strategy on a prefix of its own, and a plain channel of the same broker for the floor."""

    def __init__(self, server: RabbitMQ) -> None:
        self.server = server
        self.last_ms = 0
        self.backends: dict[str, RabbitMQBackend] = {}
        self.queue = f"floor{secrets.token_hex(4)}"

    async def __aenter__(self) -> Self:
        for strategy in ("token", "gate"):
            prefix = f"b{secrets.token_hex(4)}."
            backend = RabbitMQBackend(self.server.url(), prefix=prefix, strategy=strategy)
            await backend.open()
            self.backends[strategy] = backend
        await self.claims("gate")  # a gate's canary is put out with its first claim
        self.connection = await aiormq.connect(self.server.url())
        self.channel = await self.connection.channel()
        await self.channel.queue_declare(self.queue, durable=True, arguments={"x-queue-type": "classic"})
        return self

    async def __aexit__(self, *_: object) -> None:
        for backend in self.backends.values():
            await backend.close()
        await self.channel.queue_delete(self.queue)
        await self.connection.close()

    async def settle(self) -> None:
        """Wait until the canary has proven itself, as it has in any scheduler that runs for a quarter of a minute."""
        await asyncio.sleep(trial.PROOF_MS / 1000 + 1)
        await self.claims("gate")

    def slot(self) -> int:
        """Return a slot that is due now, and no other."""
        self.last_ms = max(self.last_ms + 1, int(time.time() * 1000))
        return self.last_ms

    async def publishes(self) -> float:
        """Return the milliseconds of a confirmed persistent publish."""
        began = time.perf_counter()
        for _ in range(CALLS):
            await self.channel.basic_publish(
                b"x" * 40, routing_key=self.queue, mandatory=True, properties=Basic.Properties(delivery_mode=2)
            )
        return (time.perf_counter() - began) * 1000 / CALLS

    async def claims(self, strategy: str) -> float:
        """Return the milliseconds of a won claim; its record is written aside, as in a scheduler, and falls on it too."""
        requests = [request_of(f"{strategy}-job", self.slot()) for _ in range(CALLS)]
        began = time.perf_counter()
        for request in requests:
            assert (await self.backends[strategy].claim(request)).won
        return (time.perf_counter() - began) * 1000 / CALLS


def request_of(job: str, slot_ms: int) -> ClaimRequest:
    """Return a claim as a scheduler writes it."""
    return ClaimRequest(key=RunKey(job, slot_ms), token=new_token(), instance="host-7:4242:9f3a")


async def compared(floor: Timed, work: Timed) -> tuple[float, float, float]:
    """Return how much of the floor's speed the work has, the median of the runs after one to warm up; and both times."""
    ratios, all_floors, all_works = [], [], []
    for round_ in range(ROUNDS + 1):
        floors, works = [], []
        for _ in range(SLICES):
            floors.append(await floor())
            works.append(await work())
        if round_:
            ratios.append(sum(floors) / sum(works))
            all_floors += floors
            all_works += works
    return statistics.median(ratios), statistics.median(all_floors), statistics.median(all_works)


def tell(server: RabbitMQ, what: str, value: float, limit: str) -> None:
    print(f"{server.name}: {what:<58}{value:8.2f}   ({limit})")


@pytest.fixture(scope="module", params=[RabbitMQ310, RabbitMQ40], ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest) -> Iterator[RabbitMQ]:
    """A broker that nothing else uses."""
    why = request.param.absent()
    if why is not None:
        pytest.skip(why)
    with Fleet() as fleet:
        yield fleet.new(request.param)


@pytest.mark.bench
@pytest.mark.timeout(180)
def test_one_connection(server: RabbitMQ) -> None:
    async def act() -> tuple[Any, Any, Any]:
        async with Bench(server) as bench:
            await bench.settle()
            return (
                await compared(bench.publishes, lambda: bench.claims("gate")),
                await compared(bench.publishes, lambda: bench.claims("token")),
                await compared(lambda: bench.claims("gate"), lambda: bench.claims("token")),
            )

    gate, token, both = asyncio.run(act())
    # Asked for on 4.x; 3.10 writes more for each queue.
    asked = isinstance(server, RabbitMQ40)
    tell(server, "publish and confirm, ms", gate[1], "the floor")
    tell(server, "gate claim, ms", gate[2], "")
    tell(server, "token claim, ms", token[2], "")
    tell(server, "gate claim / publish and confirm", gate[0], f"at least {GATE_LEAST}" if asked else "no limit on 3.10")
    tell(server, "token claim / publish and confirm", token[0], "no limit")
    tell(server, "token claim / gate claim", both[0], f"at least {TOKEN_LEAST}" if asked else "no limit on 3.10")
    if asked:
        assert gate[0] >= GATE_LEAST
        assert both[0] >= TOKEN_LEAST


def cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def memory_mb(server: RabbitMQ) -> float:
    """Return what the broker says that it uses."""
    told = server.ctl("status", "--formatter", "json")
    status = json.loads(re.sub(r"^[^{]*", "", told))
    return float(status["memory"]["total"]["allocated"]) / 1e6


@pytest.mark.bench
@pytest.mark.timeout(180)
@pytest.mark.parametrize("strategy", ["token", "gate"])
def test_a_job_with_300_queues(server: RabbitMQ, strategy: str) -> None:
    """A job every second with a slot_ttl of five minutes: what it holds, and what each claim costs the broker."""

    async def act() -> tuple[float, float]:
        async with Bench(server) as bench:
            await bench.settle()
            before_mb, before_s = await asyncio.to_thread(memory_mb, server), cpu_s(server.pid)
            for _ in range(GATES // CALLS):
                await bench.claims(strategy)
            spent_s = cpu_s(server.pid) - before_s
            return await asyncio.to_thread(memory_mb, server) - before_mb, spent_s

    held_mb, spent_s = asyncio.run(act())
    tell(server, f"{strategy}: memory of {GATES} queues, MB", held_mb, "printed only")
    tell(
        server,
        f"{strategy}: CPU of the broker a claim, ms",
        spent_s * 1000 / GATES,
        "printed only; a claim a second: / 10 = % of a core",
    )


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", "-s", "-p", "no:cacheprovider", __file__]))
