"""The backend: each call one statement on one connection, decided by the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from anarchon.backend import LeaseBackend
from anarchon.clock import SystemClock
from anarchon.errors import BackendError, BackendUnavailable, OptionError
from anarchon.types import (
    CLAIM_MANY_MAX,
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
from anarchon_postgres.codec import (
    arguments,
    claim_of,
    clean,
    key_values,
    many_arguments,
    record_of,
    result_values,
    setting,
    view_of,
)
from anarchon_postgres.decision import ARGUMENTS, BLOCK, WRONG_ISOLATION
from anarchon_postgres.effects import Effects
from anarchon_postgres.lanes import BorrowedConnection, BorrowedPool, Connection, Lanes, OwnLanes
from anarchon_postgres.options import CALL_TIMEOUT_MS, CONNECTIONS, TABLE, make_options, options_from_url
from anarchon_postgres.schema import Names
from anarchon_postgres.statements import Statements
from anarchon_postgres.store import Facts, begin_transaction, ensure, look

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

__all__ = ["PostgresBackend"]

T = TypeVar("T")

BATCH_WAIT_MS = 250
"""How long a batch waits for a locked job, before each job that is left waits for its lock alone."""
LOCK_NOT_AVAILABLE = "55P03"
LOST_STATES = frozenset({"42P01", "42883"})
SUCCESS = RunResult(RunStatus.SUCCESS)


@dataclass(slots=True)
class _Ready:
    """What `open` learnt. `plain`: a statement needs no transaction around it, for the default is READ COMMITTED."""

    names: Names
    statements: Statements
    effects: Effects
    function: bool
    plain: bool
    block: str


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
        self._ready: _Ready | None = None
        self._opened = False
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
        if self._opened:
            return
        self._lanes.begin()
        try:
            await self._prepare()
        except BaseException:
            await self._lanes.close()
            raise
        self._opened = True

    async def close(self) -> None:
        """Close own connections (C24)."""
        self._opened = False
        await self._lanes.close()

    async def _prepare(self) -> _Ready:
        facts, names = await ensure(self._lanes)
        statements = Statements.of(names)
        self._ready = _Ready(
            names=names,
            statements=statements,
            effects=Effects(self._lanes, statements),
            function=facts.has_function,
            plain=facts.isolation == "read committed",
            block=names.fill(BLOCK),
        )
        return self._ready

    async def _now_ready(self) -> _Ready:
        """Return what `open` learnt; look again if the tables or the function vanished since."""
        if not self._opened:
            raise BackendUnavailable("the PostgreSQL backend is not open: call open() first")
        return self._ready or await self._prepare()

    async def _write(self, act: Callable[[Connection, _Ready], Awaitable[T]]) -> T:
        """Make a call that writes, in a statement of its own where that is READ COMMITTED, else in a transaction."""
        ready = await self._now_ready()
        try:
            return await self._lanes.call(lambda connection: self._committed(connection, ready, act))
        except BackendError as error:
            if _state(error) in LOST_STATES:
                self._ready = None
            raise

    async def _committed(self, connection: Connection, ready: _Ready, act: Callable[[Connection, _Ready], Awaitable[T]]) -> T:
        if ready.plain:
            try:
                return await act(connection, ready)
            except psycopg.Error as error:
                if error.sqlstate != WRONG_ISOLATION:
                    raise
                ready.plain = False  # somebody changed the default: nothing was written, begin properly
        await self._start(connection)
        answer = await act(connection, ready)
        await connection.execute("COMMIT", prepare=False)
        return answer

    async def _start(self, connection: Connection) -> None:
        options = self._options
        wait_ms, limit_ms = options.lock_wait_ms, options.limit_ms
        await begin_transaction(connection, lock_wait_ms=wait_ms, statement_ms=limit_ms, idle_ms=limit_ms)

    async def _read(self, statement: Callable[[Statements], str], values: Any = None) -> list[Any]:
        ready = await self._now_ready()

        async def act(connection: Connection) -> list[Any]:
            return await _rows(connection, statement(ready.statements), values)

        return await self._lanes.call(act)

    # -- claim ---------------------------------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> Claim:
        """Decide a claim in one round trip, or in one short transaction where no function may be made."""
        values = arguments(request, self._options.lock_wait_ms, skip_locked=False)

        async def act(connection: Connection, ready: _Ready) -> str:
            rows = await _rows(connection, ready.statements.claim, values)
            return str(rows[0][0])

        async def act_without_function(connection: Connection, ready: _Ready) -> str:
            return await self._claim_in_block(connection, ready, values)

        ready = await self._now_ready()
        claim = claim_of(await self._write(act if ready.function else act_without_function))
        assert claim is not None, "a claim that waits for its lock meets none to skip"
        return claim

    async def _claim_in_block(self, connection: Connection, ready: _Ready, values: Sequence[object]) -> str:
        """Decide with the same text as a DO block. A pause of ours while it holds the job is ended by the server."""
        alone = ready.plain
        if alone:
            await self._start(connection)
        await _rows(connection, ready.statements.put_arguments, [setting(value) for value in values])
        await connection.execute(ready.block, prepare=False)
        rows = await _rows(connection, ready.statements.get_answer)
        if alone:
            await connection.execute("COMMIT", prepare=False)
        return str(rows[0][0])

    async def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Claim | BackendError]:
        """Decide many claims in one round trip, in the order of their names.

        Jobs whose row is locked are left out; they are asked for once more together, with a short wait, since mostly another
        instance is claiming the same batch and its commit answers them all. What is left then is claimed one by one.
        """
        ready = await self._now_ready()
        answers: dict[int, Claim | BackendError] = {}
        left = sorted(range(len(requests)), key=lambda place: requests[place].key)
        for wait_ms in (None, min(BATCH_WAIT_MS, self._options.lock_wait_ms)):
            if not ready.function or len(left) < 2:
                break
            for start in range(0, len(left), CLAIM_MANY_MAX):
                answers |= await self._claim_batch(requests, left[start : start + CLAIM_MANY_MAX], wait_ms)
            left = [place for place in left if place not in answers]
        for place in left:
            try:
                answers[place] = await self.claim(requests[place])
            except BackendError as error:
                answers[place] = error
        return [answers[place] for place in range(len(requests))]

    async def _claim_batch(
        self, requests: Sequence[ClaimRequest], places: Sequence[int], wait_ms: int | None
    ) -> dict[int, Claim | BackendError]:
        """Return the answers of one statement; without a wait, those whose job was not locked.

        None at all where one item spoils it for the others: it can be waited for no longer, or cannot be stored.
        """
        rows = [
            arguments(requests[place], wait_ms or self._options.lock_wait_ms, skip_locked=wait_ms is None) for place in places
        ]

        async def act(connection: Connection, ready: _Ready) -> list[Any]:
            return await _rows(connection, ready.statements.claim_many, (many_arguments(ARGUMENTS, rows),))

        try:
            found = await self._write(act)
        except BackendError as error:
            if isinstance(error, BackendUnavailable) and _state(error) != LOCK_NOT_AVAILABLE:
                return dict.fromkeys(places, error)
            return {}
        decided = zip(places, (claim_of(answer) for (answer,) in found), strict=True)
        return {place: claim for place, claim in decided if claim is not None}

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

        async def act(connection: Connection, ready: _Ready) -> list[Any]:
            return await _rows(connection, ready.statements.renew, values)

        renewed = {tuple(row) for row in await self._write(act)}
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

        async def act(connection: Connection, ready: _Ready) -> bool:
            cursor = await connection.execute(ready.statements.release, values, prepare=False)
            return cursor.rowcount == 1

        return await self._write(act)

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        values = {**key_values(key, token), **result_values(result), "wait": str(self._options.lock_wait_ms)}

        async def act(connection: Connection, ready: _Ready) -> bool:
            cursor = await connection.execute(ready.statements.finish, values, prepare=False)
            if cursor.rowcount == 1:
                return True
            # C18: a statement of its own, so that it sees a finish that this one may have waited for.
            rows = await _rows(connection, ready.statements.was_finished, values)
            return bool(rows and rows[0][0])

        return await self._write(act)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def check(self, keys: Sequence[RunKey]) -> list[RunView | None]:
        """Look at many runs with one SELECT (C17)."""
        rows = [(place, key.job, key.slot_ms, key.space) for place, key in enumerate(keys)]
        text = many_arguments(("place", "job", "slot_ms", "space"), rows)
        views: list[RunView | None] = [None] * len(keys)
        for place, *row in await self._read(lambda statements: statements.check, (text,)):
            views[place] = view_of(keys[place], row)
        return views

    async def unfinished(self, jobs: Sequence[str]) -> list[RunView]:
        rows = await self._read(lambda statements: statements.unfinished, (list(jobs),))
        return [view_of(RunKey(job, slot_ms, space), row) for job, slot_ms, space, *row in rows]

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        values = {"job": job, "limit": max(0, limit), "since_ms": since_ms}
        return [record_of(row) for row in await self._read(lambda statements: statements.history, values)]

    async def jobs(self) -> list[JobView]:
        return [JobView(*row) for row in await self._read(lambda statements: statements.jobs)]

    async def now_ms(self) -> int:
        rows = await self._read(lambda statements: statements.now_ms)
        return int(rows[0][0])

    async def warnings(self) -> list[str]:
        """Return what about the server, the user's rights and the clocks weakens the promises."""
        ready = await self._now_ready()

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

        async def act(connection: Connection, ready: _Ready) -> None:
            statement = ready.statements.pause if paused else ready.statements.resume
            await connection.execute(statement, values, prepare=False)

        await self._write(act)

    async def forget(self, job: str) -> None:
        """Remove a job with its runs and its history."""
        ready = await self._now_ready()
        statements = ready.statements

        async def act(connection: Connection) -> None:
            await self._start(connection)
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
        return self._known_effects().transaction(key, token, result, limit_ms=limit_ms)

    async def finish_in(self, connection: object, key: RunKey, token: str, result: RunResult = SUCCESS) -> bool:
        """Finish a run as part of the transaction that is open on a connection of the user's own, who then commits it.

        `connection` is a psycopg AsyncConnection, or an AsyncSession or AsyncConnection of SQLAlchemy, on this database.
        False if the token does not hold the run: roll back (C15).

        Raises:
            OptionError: this is no such connection, or no transaction is open on it.
        """
        return await self._known_effects().finish_in(connection, key, token, result)

    def _known_effects(self) -> Effects:
        if self._ready is None or not self._opened:
            raise BackendUnavailable("the PostgreSQL backend is not open: call open() first")
        return self._ready.effects


async def _rows(connection: Connection, statement: str, values: Any = None) -> list[Any]:
    cursor = connection.cursor(row_factory=psycopg.rows.tuple_row)
    await cursor.execute(statement, values, prepare=False)
    return await cursor.fetchall()


def _state(error: BackendError) -> str | None:
    """Return the SQLSTATE of the failure behind an error."""
    return error.__cause__.sqlstate if isinstance(error.__cause__, psycopg.Error) else None
