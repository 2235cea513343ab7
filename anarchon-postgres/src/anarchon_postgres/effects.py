"""Exactly-once effects: the user's writes and the finish of the run in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import psycopg
from anarchon.errors import BackendTimeout, BackendUnavailable, LeaseLost, OptionError
from anarchon.types import RunKey, RunResult
from psycopg.pq import TransactionStatus

from anarchon_postgres.codec import key_values, result_values
from anarchon_postgres.failures import explain, is_broken
from anarchon_postgres.lanes import Connection, Lanes, cut, fetch
from anarchon_postgres.statements import Statements, named_with_colons

__all__ = ["Effects"]

_LIMITS = """SELECT set_config('lock_timeout', %(limit)s, true), set_config('statement_timeout', %(limit)s, true),
    set_config('idle_in_transaction_session_timeout', %(limit)s, true)"""

_SERVER_LATER_MS: Final = 250
"""How much later than we the server ends a block by itself: it must, when the block holds up our event loop (K7)."""


class _Alchemy(Protocol):
    """What we use of SQLAlchemy's AsyncSession and AsyncConnection."""

    def execute(self, statement: Any, parameters: dict[str, Any]) -> Awaitable[Any]: ...


@dataclass(slots=True)
class _Progress:
    """How far a block got: from `finished` on, its fate is the server's."""

    finished: bool = False


class Effects:
    """Finishes runs inside transactions: blocks of our own making, and transactions of the user."""

    def __init__(self, lanes: Lanes, statements: Statements) -> None:
        self._lanes = lanes
        self._statements = statements

    @asynccontextmanager
    async def transaction(self, key: RunKey, token: str, result: RunResult, *, limit_ms: int) -> AsyncIterator[Connection]:
        """See `PostgresBackend.transaction`."""
        progress = _Progress()
        scope: asyncio.Timeout | None = None
        lost: BaseException
        try:
            async with self._lanes.block() as connection:
                loop = asyncio.get_running_loop()
                alarm = loop.call_later((limit_ms + self._lanes.options.limit_ms) / 1000, cut, connection)
                scope = asyncio.timeout(limit_ms / 1000)
                try:
                    async with scope, self._guarded(connection, key, token, result=result, limit_ms=limit_ms, progress=progress):
                        yield connection
                finally:
                    alarm.cancel()
            return
        except TimeoutError as error:
            if scope is None or not scope.expired():
                raise
            lost = error
        except psycopg.Error as error:
            if not is_broken(error):
                raise
            lost = error
        if progress.finished and await self._settled(key, token):
            return
        if isinstance(lost, psycopg.Error):
            raise explain(lost, self._lanes.place) from lost
        raise BackendTimeout(_too_long(limit_ms)) from lost

    @asynccontextmanager
    async def _guarded(
        self, connection: Connection, key: RunKey, token: str, *, result: RunResult, limit_ms: int, progress: _Progress
    ) -> AsyncIterator[None]:
        """A transaction that ends with the finish, or not at all (C15, C18)."""
        level = connection.isolation_level
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        try:
            async with connection.transaction():
                await connection.execute(_LIMITS, {"limit": str(limit_ms + _SERVER_LATER_MS)}, prepare=False)
                if await fetch(connection, self._statements.holds, key_values(key, token)) != [(True,)]:
                    raise LeaseLost(_lost(key))
                yield
                if not await self._finish(connection, key, token, result):
                    raise LeaseLost(_lost(key))
                progress.finished = True
        finally:
            if not connection.closed:
                await connection.set_isolation_level(level)

    async def _finish(self, connection: Connection, key: RunKey, token: str, result: RunResult) -> bool:
        values = {**key_values(key, token), **result_values(result)}
        cursor = await connection.execute(self._statements.finish_plain, values, prepare=False)
        return cursor.rowcount == 1

    async def _settled(self, key: RunKey, token: str) -> bool:
        """Whether a commit whose reply was lost took place; waits until the server has decided.

        Raises:
            BackendError: that cannot be learnt now.
        """
        limit = str(self._lanes.options.lock_wait_ms)

        async def act(connection: Connection) -> bool:
            values = {**key_values(key, token), "wait": limit}
            rows = await fetch(connection, self._statements.settle, values)
            return bool(rows and rows[0][0])

        async with self._lanes.block() as connection:
            alarm = asyncio.get_running_loop().call_later(self._lanes.options.limit_ms / 1000, cut, connection)
            try:
                return await act(connection)
            except psycopg.Error as error:
                msg = f"the reply to a commit was lost and cannot be looked up now: {explain(error, self._lanes.place)}"
                raise BackendUnavailable(msg) from error
            finally:
                alarm.cancel()

    async def finish_in(self, connection: object, key: RunKey, token: str, result: RunResult) -> bool:
        """See `PostgresBackend.finish_in`."""
        if isinstance(connection, psycopg.AsyncConnection):
            if connection.pgconn.transaction_status == TransactionStatus.IDLE and connection.autocommit:
                msg = "finish_in needs a transaction that holds your writes: use it inside 'async with connection.transaction()'"
                raise OptionError(msg)
            return await self._finish(connection, key, token, result)
        if not _is_alchemy(connection):
            msg = (
                f"finish_in cannot use {type(connection).__name__}: give it a psycopg AsyncConnection, or an AsyncSession or "
                "AsyncConnection of SQLAlchemy"
            )
            raise OptionError(msg)
        from sqlalchemy import text

        statement = text(named_with_colons(self._statements.finish_plain))
        values = {**key_values(key, token), **result_values(result)}
        done = await cast("_Alchemy", connection).execute(statement, values)
        return bool(done.rowcount == 1)


def _is_alchemy(connection: object) -> bool:
    """Whether this is an async session or connection of SQLAlchemy, or of a class made from one, or a scope of sessions."""
    return any(base.__module__.startswith("sqlalchemy.ext.asyncio") for base in type(connection).__mro__)


def _lost(key: RunKey) -> str:
    return f"job {key.job!r}, slot {key.slot_ms}: this attempt no longer holds the run, nothing was written"


def _too_long(limit_ms: int) -> str:
    return f"the transaction block took longer than {limit_ms} ms and was rolled back: make it shorter"
