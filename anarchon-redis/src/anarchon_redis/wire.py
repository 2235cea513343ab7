"""Connections: requests go out together, replies come back in order, and nothing is ever sent twice.

The driver's own `execute_command` sends a command again when its connection breaks. A release sent twice would be answered
"not yours" although it worked, so commands go through the driver's connections directly; the core asks again where that is
right, with the same token (C4, K2). It is also twice as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from anarchon.clock import SystemClock
from redis import exceptions as driver
from redis.asyncio import SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import AbstractConnection, Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from anarchon_redis.options import CALL_TIMEOUT_MS, Address

__all__ = ["Command", "Lent", "OwnPool", "Pool", "Reply", "exchange"]

Command = tuple[str | bytes | int, ...]
Reply = Any
"""Bytes, a whole number, None, a list of these, or the driver's error for one command."""

FREE_MAX: Final = 16
PACKED_TOGETHER: Final = 10
_CLOCK: Final = SystemClock()
TURNS: Final = 8
"""How often the event loop turns before it waits: a plain command is answered within some 50 µs, and being woken costs as
much again. A script takes longer, so for it the process would only keep the core from the server."""


class Pool(Protocol):
    """Where connections come from: `OwnPool`, or the pool of a borrowed client."""

    async def get_connection(self) -> AbstractConnection:
        """Return a connected connection."""

    async def release(self, connection: AbstractConnection) -> None:
        """Take it back."""


class OwnPool:
    """Connections to one server; the caller bounds how many are out at once."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._free: list[AbstractConnection] = []

    async def get_connection(self) -> AbstractConnection:
        """Return a connected connection; one that died while it lay idle is connected anew."""
        connection = self._free.pop() if self._free else _connection(self._address)
        try:
            if not connection.is_connected:
                await connection.connect()  # type: ignore[no-untyped-call]  # redis-py
            elif await _stale(connection):
                await connection.disconnect(nowait=True)
                await connection.connect()  # type: ignore[no-untyped-call]  # redis-py
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def release(self, connection: AbstractConnection) -> None:
        """Keep it for the next call."""
        if connection.is_connected and len(self._free) < FREE_MAX:
            self._free.append(connection)
        else:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Close every idle connection."""
        while self._free:
            await self._free.pop().disconnect()


async def _stale(connection: AbstractConnection) -> bool:
    try:
        return await connection.can_read()
    except (driver.ConnectionError, OSError):
        return True


def _connection(address: Address) -> AbstractConnection:
    common: dict[str, Any] = {
        "db": address.database,
        "username": address.username,
        "password": address.password,
        "protocol": 2,
        "socket_timeout": None,  # one deadline a call, in `Link.within`
        "retry": Retry(NoBackoff(), 0),
    }
    if address.path is not None:
        return UnixDomainSocketConnection(path=address.path, **common)
    kind = SSLConnection if address.tls else Connection
    timeout_s = CALL_TIMEOUT_MS / 1000
    return kind(host=address.host, port=address.port, socket_connect_timeout=timeout_s, socket_keepalive=True, **common)


class Lent:
    """Lends a connection; one on which a reply may still be under way is cut before it goes back (C22)."""

    __slots__ = ("_connection", "_pool")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def __aenter__(self) -> AbstractConnection:
        self._connection = await self._pool.get_connection()
        return self._connection

    async def __aexit__(self, kind: object, *_: object) -> None:
        try:
            if kind is not None:
                await self._connection.disconnect(nowait=True)
        finally:
            await self._pool.release(self._connection)


async def exchange(connection: AbstractConnection, commands: Sequence[Command]) -> list[Reply]:
    """Send commands together and return one reply each; an error of the server is its command's reply.

    Raises:
        ConnectionError: the connection broke; nobody knows which commands took effect (C5).
    """
    for start in range(0, len(commands), PACKED_TOGETHER):  # the server begins with the first while the rest is packed
        packed = b"".join(pack(command) for command in commands[start : start + PACKED_TOGETHER])
        await connection.send_packed_command([packed], check_health=False)
    for _ in range(0 if any(command[0] == "EVALSHA" for command in commands) else TURNS):
        if await connection.can_read():
            break
        await _CLOCK.sleep_ms(0)
    replies: list[Reply] = []
    for _ in commands:
        try:
            replies.append(await connection.read_response(disable_decoding=True))
        except driver.ResponseError as error:
            replies.append(error)
    return replies


def pack(command: Command) -> bytes:
    """Return a command as the protocol writes it."""
    texts = [part if type(part) is str else part.decode("latin-1") if isinstance(part, bytes) else str(part) for part in command]
    text = f"*{len(texts)}\r\n" + "".join([f"${len(part)}\r\n{part}\r\n" for part in texts])
    if text.isascii():  # then characters are bytes, and one encoding does for all
        return text.encode("ascii")
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])
