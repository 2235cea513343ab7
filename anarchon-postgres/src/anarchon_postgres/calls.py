"""What every call goes through: the set-up that it needs, READ COMMITTED, and one connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from anarchon.errors import BackendError, BackendUnavailable

from anarchon_postgres.decision import BLOCK, WRONG_ISOLATION
from anarchon_postgres.effects import Effects
from anarchon_postgres.lanes import Connection, Lanes, fetch
from anarchon_postgres.schema import Names
from anarchon_postgres.statements import Statements
from anarchon_postgres.store import begin_transaction, ensure

__all__ = ["Calls", "Ready", "state_of"]

T = TypeVar("T")

LOST_STATES = frozenset({"42P01", "42883"})
"""What is said when a table or the function is not there: dropped since the backend was opened."""


@dataclass(slots=True)
class Ready:
    """What `open` learnt. `plain`: a statement needs no transaction around it, for the default is READ COMMITTED."""

    names: Names
    statements: Statements
    effects: Effects
    function: bool
    plain: bool
    block: str


Act = Callable[[Connection, Ready], Awaitable[T]]


class Calls:
    """The calls of one backend."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.options = lanes.options
        self._ready: Ready | None = None
        self._opened = False

    async def open(self) -> None:
        """See `PostgresBackend.open`."""
        if self._opened:
            return
        self.lanes.begin()
        try:
            await self._prepare()
        except BaseException:
            await self.lanes.close()
            raise
        self._opened = True

    async def close(self) -> None:
        """Close own connections (C24)."""
        self._opened = False
        await self.lanes.close()

    async def _prepare(self) -> Ready:
        facts, names = await ensure(self.lanes)
        statements = Statements.of(names)
        self._ready = Ready(
            names=names,
            statements=statements,
            effects=Effects(self.lanes, statements),
            function=facts.has_function,
            plain=facts.isolation == "read committed",
            block=names.fill(BLOCK),
        )
        return self._ready

    async def ready(self) -> Ready:
        """Return what `open` learnt; look again if the tables or the function vanished since."""
        return self._ready if self._opened and self._ready else await self._ready_again()

    async def _ready_again(self) -> Ready:
        if not self._opened:
            raise _not_open()
        return await self._prepare()

    def ready_now(self) -> Ready:
        """Return what `open` learnt, without a look at the server.

        Raises:
            BackendUnavailable: the backend is not open.
        """
        if self._ready is None or not self._opened:
            raise _not_open()
        return self._ready

    async def write(self, act: Act[T]) -> T:
        """Make a call that writes, in a statement of its own where that is READ COMMITTED, else in a transaction."""
        ready = await self.ready()
        try:
            return await self.lanes.call(lambda connection: self._committed(connection, ready, act))
        except BackendError as error:
            if state_of(error) in LOST_STATES:
                self._ready = None
            raise

    async def _committed(self, connection: Connection, ready: Ready, act: Act[T]) -> T:
        if ready.plain:
            try:
                return await act(connection, ready)
            except psycopg.Error as error:
                if error.sqlstate != WRONG_ISOLATION:
                    raise
                ready.plain = False  # somebody changed the default: nothing was written, begin properly
        await self.begin(connection)
        answer = await act(connection, ready)
        await connection.execute("COMMIT", prepare=False)
        return answer

    async def begin(self, connection: Connection) -> None:
        """Begin a transaction with the limits of a call."""
        wait_ms, limit_ms = self.options.lock_wait_ms, self.options.limit_ms
        await begin_transaction(connection, lock_wait_ms=wait_ms, statement_ms=limit_ms, idle_ms=limit_ms)

    async def read(self, statement: Callable[[Statements], str], values: Any = None) -> list[tuple[Any, ...]]:
        """Return the rows of one SELECT."""
        ready = await self.ready()

        async def act(connection: Connection) -> list[tuple[Any, ...]]:
            return await fetch(connection, statement(ready.statements), values)

        return await self.lanes.call(act)


def state_of(error: BackendError) -> str | None:
    """Return the SQLSTATE of the failure behind an error."""
    return error.__cause__.sqlstate if isinstance(error.__cause__, psycopg.Error) else None


def _not_open() -> BackendUnavailable:
    return BackendUnavailable("the PostgreSQL backend is not open: call open() first")
