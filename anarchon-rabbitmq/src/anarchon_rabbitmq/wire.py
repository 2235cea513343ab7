"""One connection of our own to a broker, which can be let go of at once."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final
from urllib.parse import quote

from aio_pika.abc import AbstractConnection as Lent
from aiormq.connection import Connection, TransportFactory

from anarchon_rabbitmq.failures import FAILURES
from anarchon_rabbitmq.options import Address

__all__ = ["Lent", "Wire", "connect", "connect_beside"]

HEARTBEAT_S: Final = 10
CLOSE_MS: Final = 2_000


class _Ready(TransportFactory):
    """Hands over a transport that is connected already."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._pair = (reader, writer)

    async def create(self, url: Any, **_: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return self._pair


class Wire:
    """A connection and the transport under it."""

    def __init__(self, connection: Connection, writer: asyncio.StreamWriter | None = None) -> None:
        self.connection = connection
        self._writer = writer

    async def close(self, *, gently: bool = True) -> None:
        """Close it within `CLOSE_MS`; not gently = a broker that does not answer is not waited for."""
        if not gently:
            self._abort()
        try:
            async with asyncio.timeout(CLOSE_MS / 1000):
                await self.connection.close()
        except (TimeoutError, *FAILURES):
            pass  # the broker is gone; there is nothing left to close in good order
        finally:
            self._abort()

    def _abort(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()


async def connect(address: Address) -> Wire:
    """Connect to a broker; whoever calls sets the deadline.

    Raises:
        OSError: it cannot be reached.
        AMQPError: it refuses.
    """
    # Not in the driver: there a failure is also logged as an error, each time that a broker is away.
    context = ssl.create_default_context() if address.tls else None
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    try:
        account = f"{quote(address.username, safe='')}:{quote(address.password, safe='')}"
        host = f"[{address.host}]" if ":" in address.host else address.host
        url = f"amqp://{account}@{host}:{address.port}/?heartbeat={HEARTBEAT_S}&name=anarchon"
        connection = Connection(url, transport_factory=_Ready(reader, writer))
        connection.vhost = address.vhost
        await connection.connect()
    except BaseException:
        writer.transport.abort()
        raise
    return Wire(connection, writer)


async def connect_beside(lent: Lent) -> Wire:
    """Make a second connection with the address and the settings of a borrowed one.

    Raises:
        OSError: it cannot be reached.
        AMQPError: it refuses.
    """
    settings = vars(lent)  # every connection of aio_pika has these two; its abstract class does not say so
    connection = Connection(settings["url"], context=settings["kwargs"].get("context"))
    await connection.connect()
    return Wire(connection)
