"""Where a call gets its connection: our own, made at need, or one that the application lent us.

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
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
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

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

__all__ = ["BorrowedConnection", "BorrowedPool", "Connection", "Lanes", "OwnConnection", "OwnLanes", "cut", "drop", "fetch"]

Connection: TypeAlias = AsyncConnection[Any]
T = TypeVar("T")

KEEPALIVE_IDLE_S = 5
KEEPALIVE_INTERVAL_S = 2
KEEPALIVE_COUNT = 3
STALE_MOST = 64
"""The most dead connections that one call throws out of a borrowed pool before it gives up."""


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


def _stale(connection: Connection) -> bool:
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
        self._places = asyncio.Semaphore(options.max_connections)

    def begin(self) -> None:
        self._places = asyncio.Semaphore(self.options.max_connections)
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
            while self._idle:
                connection = self._idle.pop()
                if not _stale(connection):
                    return connection
                drop(connection)
            return await self._connect(end_s)
        except BaseException:
            self._places.release()
            raise

    async def give(self, connection: Connection) -> None:
        self._places.release()
        if self._open and connection.pgconn.transaction_status == TransactionStatus.IDLE:
            self._idle.append(connection)
        else:
            drop(connection)

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


class BorrowedConnection(Lanes):
    """One connection of the application: calls take turns on it."""

    def __init__(self, options: Options, connection: Connection) -> None:
        super().__init__(options, "the borrowed PostgreSQL connection")
        self._connection = connection
        self._turn = asyncio.Lock()

    def begin(self) -> None:
        self._turn = asyncio.Lock()

    async def take(self, end_s: float) -> Connection:
        try:
            async with asyncio.timeout_at(end_s):
                await self._turn.acquire()
        except TimeoutError:
            raise BackendTimeout(f"{self.place} was busy until the call's limit") from None
        connection = self._connection
        if connection.closed:
            self._turn.release()
            raise BackendUnavailable(f"{self.place} is closed: lend an open one, or a pool")
        if not connection.autocommit or connection.pgconn.transaction_status != TransactionStatus.IDLE:
            self._turn.release()
            raise BackendUnavailable(f"{self.place} is inside a transaction: set autocommit, and use it for nothing else")
        return connection

    async def give(self, connection: Connection) -> None:
        try:
            if connection.pgconn.transaction_status not in {TransactionStatus.IDLE, TransactionStatus.UNKNOWN}:
                await connection.rollback()
        except psycopg.Error:
            cut(connection)
        finally:
            self._turn.release()

    async def close(self) -> None:
        """Leave the connection open: it is not ours (C24)."""

    def block(self) -> AbstractAsyncContextManager[Connection]:
        """Refuse.

        Raises:
            BackendUnavailable: always; the calls of the backend would wait for the block.
        """
        msg = "a transaction block needs a connection of its own: give the backend a URL or a pool, or use finish_in"
        raise BackendUnavailable(msg)


class BorrowedPool(Lanes):
    """A pool of the application; each call borrows one of its connections."""

    def __init__(self, options: Options, pool: AsyncConnectionPool[Any]) -> None:
        super().__init__(options, "PostgreSQL behind the borrowed pool")
        self._pool = pool
        self._manual: set[Connection] = set()

    def begin(self) -> None:
        """The pool belongs to a loop already."""

    async def take(self, end_s: float) -> Connection:
        for _ in range(STALE_MOST):
            left_s = end_s - asyncio.get_running_loop().time()
            try:
                connection: Connection = await self._pool.getconn(timeout=max(0.001, left_s))
            except psycopg.OperationalError as error:  # PoolTimeout, PoolClosed, TooManyRequests among them
                raise BackendUnavailable(f"{self.place}: {type(error).__name__}: {error}") from error
            if _stale(connection):
                drop(connection)
                await self._pool.putconn(connection)
                continue
            if not connection.autocommit:
                await connection.set_autocommit(True)  # tells nothing to the server
                self._manual.add(connection)
            return connection
        raise BackendUnavailable(f"{self.place}: {STALE_MOST} of its connections were dead")

    async def give(self, connection: Connection) -> None:
        try:
            status = connection.pgconn.transaction_status
            if status == TransactionStatus.ACTIVE:
                drop(connection)
            elif status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
                await connection.rollback()
            if connection in self._manual and not connection.closed:
                await connection.set_autocommit(False)
        except psycopg.Error:
            drop(connection)
        finally:
            self._manual.discard(connection)
            await self._pool.putconn(connection)

    async def close(self) -> None:
        """Leave the pool open: it is not ours (C24)."""

    @asynccontextmanager
    async def block(self) -> AsyncIterator[Connection]:
        """Borrow one for a block, on the pool's loop."""
        loop = asyncio.get_running_loop()
        connection = await self.take(loop.time() + self.options.limit_ms / 1000)
        try:
            yield connection
        finally:
            await self.give(connection)
