"""Real schedulers on a broker: one run a slot, run_now, last_run, and a borrowed connection on another event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import aio_pika
from anarchon import Every, Run, Scheduler
from anarchon.types import RunStatus
from anarchon_rabbitmq import RabbitMQBackend

LIMIT_S = 40
SLOTS = 3


def fleet(backends: list[RabbitMQBackend], ran: list[int], enough: asyncio.Event) -> list[Scheduler]:
    """Return schedulers of one job each, which note the slots that they run."""
    loop = asyncio.get_running_loop()

    def handler(run: Run) -> None:
        ran.append(run.slot_ms)
        if len(set(ran)) >= SLOTS:
            loop.call_soon_threadsafe(enough.set)

    schedulers = [Scheduler(backend=backend, grace=5) for backend in backends]
    for scheduler in schedulers:
        scheduler.add_job(handler, Every(seconds=1), name="tick", jitter=0.05)
    return schedulers


def test_c01_three_schedulers_run_each_slot_once(store: Any) -> None:
    async def main() -> tuple[Counter[int], list[Any]]:
        ran: list[int] = []
        enough = asyncio.Event()
        schedulers = fleet([store.make() for _ in range(3)], ran, enough)
        async with asyncio.timeout(LIMIT_S):
            for scheduler in schedulers:
                await scheduler.start()
            await enough.wait()
            for scheduler in schedulers[1:]:
                await scheduler.stop()
            records = await schedulers[0].history("tick")
            await schedulers[0].stop()
        return Counter(ran), records

    ran, records = asyncio.run(main())
    assert set(ran.values()) == {1}
    recorded = [record for record in records if record.status is RunStatus.SUCCESS]
    assert len(recorded) >= SLOTS - 1  # the newest may still have been under way


def test_c24_run_now_and_last_run_on_a_borrowed_connection(store: Any) -> None:
    """The engine has a loop of its own; the connection stays on the one that it was made on."""

    async def main() -> Any:
        async with asyncio.timeout(LIMIT_S):
            connection: Any = await aio_pika.connect_robust(store.server.url())
            backend = RabbitMQBackend(connection=connection, prefix=store.prefix, strategy=store.strategy)
            scheduler = Scheduler(backend=backend, grace=5)
            scheduler.add_job(lambda: None, "0 0 1 1 *", name="yearly")
            await scheduler.start()
            record = await scheduler.run_now("yearly")
            last = await scheduler.last_run("yearly")
            await scheduler.stop()
            assert not connection.is_closed
            assert not connection.transport.connection.channels
            await connection.close()
            return record, last

    record, last = asyncio.run(main())
    assert (record.status, record.space[:1]) == (RunStatus.SUCCESS, "m")
    assert last.token == record.token
