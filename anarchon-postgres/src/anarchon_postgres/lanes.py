"""Where a call gets its connection: what every source keeps to, and our own connections, made at need.

A connection is never waited for, asked or closed beyond the call's limit: when the limit comes its socket is shut down,
and whatever waits on it fails at once (C23). Own connections are dropped at the first doubt; nothing runs in the
background, so an idle fleet is silent (K8).
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from anarchon.errors import BackendTimeout, BackendUnavailable
from psycopg import AsyncConnection
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.waiting import wait_async

from anarchon_postgres.failures import explain, explain_connect, is_broken, refuses_options
from anarchon_postgres.options import Options

__all__ = ["Connection", "Lanes", "OwnConnection", "OwnLanes", "cut", "drop", "fetch", "is_stale"]

Connection: TypeAlias = AsyncConnection[Any]
T = TypeVar("T")

KEEPALIVE_IDLE_S = 5
KEEPALIVE_INTERVAL_S = 2
KEEPALIVE_COUNT = 3
GROW_AFTER_MS = 25
"""How long a call waits for one of the connections there are before it makes another, which costs more than many calls."""
GROW_SLOW_MS = 250


class OwnConnection(AsyncConnection[Any]):
    """A connection that dies when a call on it is cancelled.

    psycopg asks the server to cancel and waits for that, up to ten seconds on one that is frozen; a cancelled call of ours
    must return at once, and leave nothing half done behind on a connection that is used again (C22).
    """

    async def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Drive a generator of libpq steps; cancellation closes the connection."""
        try:
            return await wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)
        except (asyncio.CancelledError, KeyboardInterrupt):
            drop(self)
            raise


async def fetch(connection: Connection, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
    """Run a statement and return its rows as tuples, whatever the rows of a lent connection look like."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(statement, values, prepare=False)
    return await cursor.fetchall()


def drop(connection: Connection) -> None:
    """Close a connection at once, without a word to the server, which then rolls back."""
    connection.pgconn.finish()


def cut(connection: Connection) -> None:
    """Shut a connection's socket down under whoever waits on it: libpq sees its end and fails the call."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.pgconn.socket)) as end:
        end.shutdown(socket.SHUT_RDWR)


def is_stale(connection: Connection) -> bool:
    """Whether an idle connection was closed from the other side: something to read means its end, or a farewell."""
    try:
        poll = select.poll()
        poll.register(connection.pgconn.socket, select.POLLIN | select.POLLRDHUP)
        return bool(poll.poll(0))
    except (OSError, psycopg.Error):
        return True


class Lanes(ABC):
    """A source of connections for calls."""

    def __init__(self, options: Options, place: str) -> None:
        self.options = options
        self.place = place

    async def call(self, act: Callable[[Connection], Awaitable[T]], *, limit_ms: int | None = None) -> T:
        """Do something with a connection within a limit (the call's own if none is given).

        Raises:
            BackendError: whatever went wrong, in one sentence.
        """
        limit_ms = limit_ms or self.options.limit_ms
        loop = asyncio.get_running_loop()
        end_s = loop.time() + limit_ms / 1000
        connection = await self.take(end_s)
        alarm = loop.call_at(end_s, cut, connection)
        try:
            return await act(connection)
        except psycopg.Error as error:
            if is_broken(error):
                self.doubt(connection)
            if loop.time() >= end_s:
                raise BackendTimeout(f"{self.place} did not answer within {limit_ms} ms") from error
            raise explain(error, self.place) from error
        finally:
            alarm.cancel()
            await self.give(connection)

    @abstractmethod
    def begin(self) -> None:
        """Get ready on the running loop."""

    @abstractmethod
    async def take(self, end_s: float) -> Connection:
        """Return a connection in autocommit mode before the loop's time `end_s`.

        Raises:
            BackendUnavailable: there is none, or (as BackendTimeout) not in time.
        """

    @abstractmethod
    async def give(self, connection: Connection) -> None:
        """Take a connection back, in whatever state it is."""

    @abstractmethod
    async def close(self) -> None:
        """Close what is our own (C24)."""

    @abstractmethod
    def block(self) -> AbstractAsyncContextManager[Connection]:
        """Return a connection for one transaction block of the application, on the running loop."""

    def doubt(self, connection: Connection) -> None:  # noqa: B027 - what is lent is judged by its owner
        """Trust neither this connection nor an idle one any more: the server went away or changed its role."""


class OwnLanes(Lanes):
    """Connections of our own, at most `max_connections` for calls; blocks have as many again."""

    def __init__(self, options: Options) -> None:
        super().__init__(options, options.place)
        self._idle: list[Connection] = []
        self._blocks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._plain = False
        self._open = False
        self._busy = 0
        self._growing_since_s: float | None = None
        self._moved = asyncio.Event()
        self._places = asyncio.Semaphore(options.max_connections)

    def begin(self) -> None:
        self._places = asyncio.Semaphore(self.options.max_connections)
        self._moved = asyncio.Event()
        self._open = True

    async def take(self, end_s: float) -> Connection:
        if not self._open:
            raise BackendUnavailable("the PostgreSQL backend is not open: call open() first")
        try:
            async with asyncio.timeout_at(end_s):
                await self._places.acquire()
        except TimeoutError:
            msg = f"{self.place}: all {self.options.max_connections} connections were busy until the call's limit: raise max"
            raise BackendTimeout(msg) from None
        try:
            connection = self._lively() or await self._free_or_new(end_s)
        except BaseException:
            self._places.release()
            raise
        self._busy += 1
        return connection

    def _lively(self) -> Connection | None:
        """Return an idle connection whose other side is there."""
        while self._idle:
            connection = self._idle.pop()
            if not is_stale(connection):
                return connection
            drop(connection)
        return None

    async def _free_or_new(self, end_s: float) -> Connection:
        """Return a connection that becomes free soon, or a new one: a thousand calls at once must not make sixteen."""
        loop = asyncio.get_running_loop()
        grow_s = loop.time() + GROW_AFTER_MS / 1000
        while self._busy or self._growing_since_s is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(grow_s, end_s)):
                    await self._moved.wait()
            connection = self._lively()
            if connection is not None:
                return connection
            now_s = loop.time()
            if now_s < min(grow_s, end_s):
                continue
            # One is made at a time, unless the server lets it wait.
            if self._growing_since_s is None or now_s - self._growing_since_s > GROW_SLOW_MS / 1000 or now_s >= end_s:
                break
            grow_s = now_s + GROW_AFTER_MS / 1000
        self._growing_since_s = loop.time()
        try:
            return await self._connect(end_s)
        finally:
            self._growing_since_s = None

    async def give(self, connection: Connection) -> None:
        self._busy -= 1
        self._places.release()
        if self._open and connection.pgconn.transaction_status == TransactionStatus.IDLE:
            self._idle.append(connection)
        else:
            drop(connection)
        self._moved.set()
        self._moved.clear()

    def doubt(self, connection: Connection) -> None:
        drop(connection)
        self._drop_idle()

    def _drop_idle(self) -> None:
        while self._idle:
            drop(self._idle.pop())

    async def close(self) -> None:
        self._open = False
        self._drop_idle()

    @asynccontextmanager
    async def block(self) -> AsyncIterator[Connection]:
        """Connect for one block: it may run on another loop than the calls, and must not keep a renewal waiting."""
        loop = asyncio.get_running_loop()
        places = self._blocks.setdefault(loop, asyncio.Semaphore(self.options.max_connections))
        end_s = loop.time() + self.options.limit_ms / 1000
        try:
            async with asyncio.timeout_at(end_s):
                await places.acquire()
        except TimeoutError:
            msg = f"{self.place}: {self.options.max_connections} transaction blocks are open already: raise max"
            raise BackendTimeout(msg) from None
        try:
            connection = await self._connect(end_s)
            try:
                yield connection
            finally:
                drop(connection)
        finally:
            places.release()

    async def _connect(self, end_s: float) -> Connection:
        try:
            async with asyncio.timeout_at(end_s):
                return await self._try_connect()
        except TimeoutError:
            msg = f"{self.place} did not answer within {self.options.limit_ms} ms: check the host, a firewall, or its load"
            raise BackendTimeout(msg) from None
        except psycopg.Error as error:
            raise explain_connect(error, self.place) from error

    async def _try_connect(self) -> Connection:
        if not self._plain:
            try:
                return await self._make(self._start_settings())
            except psycopg.OperationalError as error:
                if not refuses_options(error):
                    raise
            self._plain = True  # a pooler in between; every call sets what it needs for its transaction anyway
        return await self._make(None)

    def _start_settings(self) -> str:
        limit_ms = self.options.limit_ms
        return (
            f"-c statement_timeout={limit_ms} -c lock_timeout={self.options.lock_wait_ms} "
            r"-c default_transaction_isolation=read\ committed"
        )

    async def _make(self, settings: str | None) -> Connection:
        known: dict[str, Any] = {
            "application_name": "anarchon",
            "gssencmode": "disable",
            "keepalives_idle": KEEPALIVE_IDLE_S,
            "keepalives_interval": KEEPALIVE_INTERVAL_S,
            "keepalives_count": KEEPALIVE_COUNT,
            "tcp_user_timeout": self.options.call_timeout_ms,
            "connect_timeout": max(2, -(-self.options.call_timeout_ms // 1000)),
            **dict(self.options.parameters),
            "client_encoding": "UTF8",
        }
        if settings is not None:
            known["options"] = settings
        # No prepared statements: behind a pooler each transaction may meet another server process.
        return await OwnConnection.connect(autocommit=True, prepare_threshold=None, **known)
