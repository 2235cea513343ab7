"""The backend: each call one statement on one connection, decided by the server."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import psycopg
from anarchon.backend import LeaseBackend
from anarchon.clock import SystemClock
from anarchon.errors import BackendError, OptionError
from anarchon.types import (
    Claim,
    ClaimRequest,
    JobView,
    Limits,
    RunKey,
    RunRecord,
    RunResult,
    RunStatus,
    RunView,
)
from anarchon.url import BackendUrl

from anarchon_postgres.advice import FAILOVER, advice
from anarchon_postgres.borrowed import BorrowedConnection, BorrowedPool
from anarchon_postgres.calls import Calls, Ready
from anarchon_postgres.claims import Claims
from anarchon_postgres.codec import (
    clean,
    key_values,
    many_arguments,
    record_of,
    view_of,
)
from anarchon_postgres.endings import Endings
from anarchon_postgres.lanes import Connection, Lanes, OwnLanes, fetch
from anarchon_postgres.options import CALL_TIMEOUT_MS, CONNECTIONS, TABLE, make_options, options_from_url
from anarchon_postgres.schema import Names
from anarchon_postgres.store import Facts, look

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

__all__ = ["PostgresBackend"]

SUCCESS = RunResult(RunStatus.SUCCESS)


class PostgresBackend(LeaseBackend):
    """A lease backend in a PostgreSQL database, for any number of instances on any number of hosts."""

    def __init__(
        self,
        conninfo: str = "",
        *,
        connection: psycopg.AsyncConnection[Any] | None = None,
        pool: AsyncConnectionPool[Any] | None = None,
        table: str = TABLE,
        schema: str | None = None,
        max_connections: int = CONNECTIONS,
        call_timeout: float | timedelta = CALL_TIMEOUT_MS / 1000,
    ) -> None:
        """Take the options; nothing is opened. `connection` (in autocommit mode) or `pool` is lent and stays open.

        Raises:
            OptionError: an option is refused.
        """
        options = make_options(conninfo, table=table, schema=schema, max_connections=max_connections, call_timeout=call_timeout)
        if sum((bool(conninfo), connection is not None, pool is not None)) > 1:
            msg = "conninfo, connection and pool exclude each other: write one of them"
            raise OptionError(msg)
        self._options = options
        self._lanes: Lanes
        if connection is not None:
            self._lanes = BorrowedConnection(options, connection)
        elif pool is not None:
            self._lanes = BorrowedPool(options, pool)
        else:
            self._lanes = OwnLanes(options)
        self._calls = Calls(self._lanes)
        self._claims = Claims(self._calls)
        self._endings = Endings(self._calls)
        self.limits = Limits(call_timeout_ms=options.call_timeout_ms, notes=(FAILOVER,))

    @classmethod
    def from_url(cls, url: BackendUrl) -> Self:
        options = options_from_url(url)
        return cls(
            options.conninfo,
            table=options.table,
            schema=options.schema,
            max_connections=options.max_connections,
            call_timeout=options.call_timeout_ms / 1000,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._lanes.place}, table {self._options.table}>"

    async def open(self) -> None:
        """Connect, make the tables and the function if need be; an open backend stays as it is.

        Raises:
            StoreSetupError: the server, the user's rights or the tables' version cannot carry a store.
            BackendUnavailable: the server cannot be reached, or cannot be written now.
        """
        await self._calls.open()

    async def close(self) -> None:
        """Close own connections (C24)."""
        await self._endings.close()
        await self._calls.close()

    # -- claim ---------------------------------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> Claim:
        """Decide a claim in one round trip, or in one short transaction where no function may be made."""
        return await self._claims.claim(request)

    async def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Claim | BackendError]:
        """Decide many claims in one round trip; what others hold up is claimed alone."""
        return await self._claims.claim_many(requests)

    # -- lease and end -------------------------------------------------------------------------------------------------

    async def renew(self, key: RunKey, token: str, lease_ms: int) -> bool:
        answers = await self._renew([(key, token, lease_ms)])
        return answers[0]

    async def renew_many(self, items: Sequence[tuple[RunKey, str, int]]) -> list[bool | BackendError]:
        """Renew many runs in one round trip."""
        return [*await self._renew(items)]

    async def _renew(self, items: Sequence[tuple[RunKey, str, int]]) -> list[bool]:
        rows = [(key.job, key.slot_ms, key.space, token, lease_ms) for key, token, lease_ms in items]
        text = many_arguments(("job", "slot_ms", "space", "token", "lease_ms"), rows)
        values = {"wait": str(self._options.lock_wait_ms), "items": text}

        async def act(connection: Connection, ready: Ready) -> list[Any]:
            return await fetch(connection, ready.statements.renew, values)

        renewed = {tuple(row) for row in await self._calls.write(act)}
        return [(key.job, key.slot_ms, key.space, token) in renewed for key, token, _ in items]

    async def release(
        self, key: RunKey, token: str, *, delay_ms: int = 0, counted: bool = False, error: str | None = None
    ) -> bool:
        values = {
            **key_values(key, token),
            "wait": str(self._options.lock_wait_ms),
            "delay_ms": delay_ms,
            "uncounted": int(not counted),
            "attempt_status": str(RunStatus.FAILED if counted else RunStatus.HANDED_OVER),
            "error": None if error is None else clean(error),
        }

        async def act(connection: Connection, ready: Ready) -> bool:
            cursor = await connection.execute(ready.statements.release, values, prepare=False)
            return cursor.rowcount == 1

        return await self._calls.write(act)

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        return await self._endings.finish(key, token, result)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def check(self, keys: Sequence[RunKey]) -> list[RunView | None]:
        """Look at many runs with one SELECT (C17)."""
        rows = [(place, key.job, key.slot_ms, key.space) for place, key in enumerate(keys)]
        text = many_arguments(("place", "job", "slot_ms", "space"), rows)
        views: list[RunView | None] = [None] * len(keys)
        for place, *row in await self._calls.read(lambda statements: statements.check, (text,)):
            views[place] = view_of(keys[place], row)
        return views

    async def unfinished(self, jobs: Sequence[str]) -> list[RunView]:
        rows = await self._calls.read(lambda statements: statements.unfinished, (list(jobs),))
        return [view_of(RunKey(job, slot_ms, space), row) for job, slot_ms, space, *row in rows]

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        values = {"job": job, "limit": max(0, limit), "since_ms": since_ms}
        return [record_of(row) for row in await self._calls.read(lambda statements: statements.history, values)]

    async def jobs(self) -> list[JobView]:
        return [JobView(*row) for row in await self._calls.read(lambda statements: statements.jobs)]

    async def now_ms(self) -> int:
        rows = await self._calls.read(lambda statements: statements.now_ms)
        return int(rows[0][0])

    async def warnings(self) -> list[str]:
        """Return what about the server, the user's rights and the clocks weakens the promises."""
        ready = await self._calls.ready()

        async def act(connection: Connection) -> tuple[Facts, Names]:
            return await look(connection, self._options.table, ready.names.schema)

        facts, names = await self._lanes.call(act)
        clock = SystemClock()
        before_ms = clock.wall_ms()
        server_ms = await self.now_ms()
        return advice(facts, names, (before_ms + clock.wall_ms()) / 2 - server_ms)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    async def set_paused(self, job: str, paused: bool) -> None:  # noqa: FBT001 - see LeaseBackend
        values = {"job": job, "wait": str(self._options.lock_wait_ms)}

        async def act(connection: Connection, ready: Ready) -> None:
            statement = ready.statements.pause if paused else ready.statements.resume
            await connection.execute(statement, values, prepare=False)

        await self._calls.write(act)

    async def forget(self, job: str) -> None:
        """Remove a job with its runs and its history."""
        ready = await self._calls.ready()
        statements = ready.statements

        async def act(connection: Connection) -> None:
            await self._calls.begin(connection)
            for statement in (statements.lock_job, statements.forget_runs, statements.forget_attempts, statements.forget_job):
                await connection.execute(statement, (job,), prepare=False)
            await connection.execute("COMMIT", prepare=False)

        await self._lanes.call(act)

    # -- effects -------------------------------------------------------------------------------------------------------

    def transaction(
        self, key: RunKey, token: str, result: RunResult = SUCCESS, *, limit_ms: int = CALL_TIMEOUT_MS
    ) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]:
        """Open a block whose writes and the finish of a run commit together or not at all.

        The block gets a psycopg connection of its own inside a transaction. Its end finishes the run, guarded by the token,
        and commits; whatever the block raises rolls everything back, and so does the end of `limit_ms`. It may run on any
        event loop (with a borrowed pool: on the pool's).

        Raises:
            LeaseLost: the token does not hold the run; nothing was written.
            BackendTimeout: the block took longer than `limit_ms`; nothing was written.
            BackendUnavailable: the connection was lost; nothing was written, unless the message says that a commit's reply
                could not be looked up.
        """
        return self._calls.ready_now().effects.transaction(key, token, result, limit_ms=limit_ms)

    async def finish_in(self, connection: object, key: RunKey, token: str, result: RunResult = SUCCESS) -> bool:
        """Finish a run as part of the transaction that is open on a connection of the user's own, who then commits it.

        `connection` is a psycopg AsyncConnection, or an AsyncSession or AsyncConnection of SQLAlchemy, on this database.
        False if the token does not hold the run: roll back (C15).

        Raises:
            OptionError: this is no such connection, or no transaction is open on it.
        """
        return await self._calls.ready_now().effects.finish_in(connection, key, token, result)
