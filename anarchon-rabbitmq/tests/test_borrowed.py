"""A connection of the user's: never closed by us, whatever is refused on it, and left without a channel of ours (C24)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import aio_pika
import pytest
from anarchon.errors import BackendError, BackendUnavailable, OptionError
from anarchon.types import RunResult, RunStatus, new_token
from anarchon_rabbitmq import RabbitMQBackend

DONE = RunResult(RunStatus.SUCCESS)
Make = Callable[[], Awaitable[RabbitMQBackend]]


def lend(store: Any, act: Callable[[Any, RabbitMQBackend], Awaitable[None]]) -> None:
    """Run a test with a backend on a borrowed connection, and see that the connection is as it was."""

    async def main() -> None:
        async with asyncio.timeout(30):
            connection: Any = await aio_pika.connect_robust(store.server.url())
            try:
                backend = RabbitMQBackend(connection=connection, prefix=store.prefix, strategy=store.strategy)
                await backend.open()
                under = connection.transport.connection
                try:
                    await act(connection, backend)
                finally:
                    await backend.close()
                assert connection.transport.connection is under
                assert not connection.is_closed
                assert not under.is_closed
                assert not under.channels
            finally:
                await connection.close()

    asyncio.run(main())


def test_c24_a_borrowed_connection_outlives_the_backend(store: Any) -> None:
    async def act(connection: Any, backend: RabbitMQBackend) -> None:
        request = store.request()
        assert (await backend.claim(request)).won
        assert await backend.finish(request.key, request.token, DONE)
        assert [record.status for record in await backend.history("job", limit=5)] == [RunStatus.SUCCESS]

    lend(store, act)


def test_c24_no_refusal_closes_a_borrowed_connection(store: Any) -> None:
    async def act(connection: Any, backend: RabbitMQBackend) -> None:
        request, foreign = store.request(), store.request("foreign")
        await store.declare(store.queue(foreign), {"x-queue-type": "quorum"})
        await store.declare(f"{store.prefix}job.history", {"x-queue-type": "classic"})
        for _ in range(3):
            await asyncio.gather(
                *(backend.claim(replace(request, token=new_token())) for _ in range(20)),
                backend.history("job", limit=5),
                backend.finish(request.key, new_token(), DONE),
                backend.claim(replace(foreign, token=new_token())),
                return_exceptions=True,
            )
        with pytest.raises(BackendError, match="another x-"):
            await backend.claim(replace(foreign, token=new_token()))

    lend(store, act)


def test_c24_a_cancelled_claim_leaves_a_borrowed_connection_alone(store: Any) -> None:
    async def act(connection: Any, backend: RabbitMQBackend) -> None:
        for turns in (1, 2, 3, 5, 8, 13, 21, 34):
            claim = asyncio.ensure_future(backend.claim(store.request()))
            for _ in range(turns):
                await asyncio.sleep(0)
            claim.cancel()
            await asyncio.gather(claim, return_exceptions=True)
        assert (await backend.claim(store.request("after"))).won

    lend(store, act)


def test_c23_a_borrowed_connection_that_reconnects_is_used_again(store: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            connection: Any = await aio_pika.connect_robust(store.server.url(), reconnect_interval=0.05)
            try:
                backend = RabbitMQBackend(connection=connection, prefix=store.prefix, strategy=store.strategy)
                await backend.open()
                await connection.reconnect()
                await connection.connected.wait()
                assert (await backend.claim(store.request())).won
                await backend.close()
            finally:
                await connection.close()

    asyncio.run(main())


def test_c23_a_borrowed_connection_that_is_closed_says_so(newest: Any) -> None:
    async def main() -> None:
        connection = await aio_pika.connect(newest.server.url())
        backend = RabbitMQBackend(connection=connection, prefix=newest.prefix)
        await backend.open()
        await connection.close()
        with pytest.raises(BackendUnavailable, match="is closed; open it again"):
            await backend.claim(newest.request())
        await backend.close()

    asyncio.run(main())


def test_url_and_connection_exclude_each_other(newest: Any) -> None:
    async def main() -> None:
        connection = await aio_pika.connect(newest.server.url())
        try:
            with pytest.raises(OptionError, match="exclude each other"):
                RabbitMQBackend("amqp://localhost", connection=connection)
        finally:
            await connection.close()

    asyncio.run(main())
