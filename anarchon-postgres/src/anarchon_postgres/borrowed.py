"""Connections that the application lent us: one for calls in turn, or a pool. They are never closed by us (C24)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from anarchon.errors import BackendTimeout, BackendUnavailable
from psycopg.pq import TransactionStatus

from anarchon_postgres.lanes import Connection, Lanes, cut, drop, is_stale
from anarchon_postgres.options import Options

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

__all__ = ["BorrowedConnection", "BorrowedPool"]

STALE_MOST = 64
"""The most dead connections that one call throws out of a borrowed pool before it gives up."""


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
            if is_stale(connection):
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
