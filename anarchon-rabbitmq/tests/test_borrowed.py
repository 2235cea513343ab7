"""A connection of the user's: never closed by us, whatever is refused on it, and left without a channel of ours (C24)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aio_pika
import pytest
from anarchon.clock import SystemClock
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


class Late:
    """A way to a broker on which the answers can be held back while everything that is asked arrives."""

    def __init__(self, port: int) -> None:
        self.on_time = asyncio.Event()
        self.on_time.set()
        self._port = port
        self._pumps: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[int]:
        """Listen on the port that is given."""
        async with await asyncio.start_server(self._meet, "127.0.0.1", 0) as server:
            yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", self._port)
        for source, to, held in ((reader, requests, False), (answers, writer, True)):
            self._pumps.add(asyncio.ensure_future(self._pump(source, to, held=held)))

    async def _pump(self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, held: bool) -> None:
        try:
            while data := await source.read(65_536):
                if held:
                    await self.on_time.wait()
                to.write(data)
                await to.drain()
        except OSError:
            pass  # the other side is gone
        finally:
            to.close()


def test_c24_answers_that_come_late_end_no_borrowed_connection(store: Any) -> None:
    """A channel that is closed twice is an error of the whole connection: what is closed waits for its answer."""

    async def main() -> None:
        late = Late(store.server.port)
        async with asyncio.timeout(60), late.serve() as port:
            url = store.server.url().replace(f":{store.server.port}", f":{port}")
            connection: Any = await aio_pika.connect_robust(url)
            under = connection.transport.connection
            try:
                backend = RabbitMQBackend(connection=connection, prefix=store.prefix, strategy=store.strategy)
                await backend.open()
                assert (await backend.claim(store.request())).won
                late.on_time.clear()
                claims = [asyncio.ensure_future(backend.claim(store.request(f"job{index}"))) for index in range(4)]
                await SystemClock().sleep_ms(50)
                for claim in claims:
                    claim.cancel()
                await asyncio.gather(*claims, return_exceptions=True)
                await backend.close()
                late.on_time.set()
                while under.channels and not under.is_closed:
                    await SystemClock().sleep_ms(5)
                assert not under.is_closed
                await connection.channel()
                assert connection.transport.connection is under
            finally:
                await connection.close()

    asyncio.run(main())


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
