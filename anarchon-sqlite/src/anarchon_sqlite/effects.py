"""Exactly-once effects: a block of the user's writes and the finish of its run in one transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import BoundedSemaphore, Timer
from typing import Final, Never

import aiosqlite
from anarchon.clock import SystemClock
from anarchon.errors import BackendError, BackendTimeout, BackendUnavailable, LeaseLost
from anarchon.types import RunKey, RunResult

from anarchon_sqlite.database import Database
from anarchon_sqlite.failures import is_interrupted
from anarchon_sqlite.link import Call
from anarchon_sqlite.options import STANDING_CONNECTIONS
from anarchon_sqlite.steps import Steps
from anarchon_sqlite.worker import Worker

__all__ = ["Effects"]

PLACE_PAUSE_MS: Final = 20
"""How often a block looks for a free connection; blocks may live on several loops, which no loop's lock can serve."""


class _Block(Worker):
    """The connection that a block gets: an open transaction that only the block's end may close.

    A timer rolls it back when its time is over, on the connection's own thread: a handler that blocks its event loop
    must not keep the write lock of every process (K7). Afterwards, and for BEGIN, COMMIT and ROLLBACK at any time, an
    authorizer refuses: nothing the block writes can be committed without the finish.
    """

    def __init__(self, database: Database, steps: Steps, limit_ms: int) -> None:
        super().__init__(database.connect)
        self._database = database
        self._steps = steps
        self._limit_ms = limit_ms
        self._timer = Timer(limit_ms / 1000, self._time_over)
        self._timer.daemon = True
        self.expired = False

    async def begin(self, key: RunKey, token: str, *, wait_ms: float) -> None:
        """Take the write lock, make sure that the token holds the run, and start the clock."""
        call = Call(self._database, wait_ms)

        def begin(db: sqlite3.Connection) -> None:
            db.execute("BEGIN IMMEDIATE")
            self._database.check_place()
            if not self._steps.holds(db, key, token):
                raise LeaseLost(_lost(key))
            db.set_authorizer(self._authorize)
            self._timer.start()

        try:
            await self.run(lambda db: call.retry(lambda: begin(db)))
        finally:
            call.abandoned = True

    async def complete(self, key: RunKey, token: str, result: RunResult) -> None:
        """Finish the run as the last statement, and commit (C15, C18)."""
        call = Call(self._database, 0)

        def complete(db: sqlite3.Connection) -> None:
            self._timer.cancel()
            if self.expired:
                raise self.too_long()
            db.set_authorizer(None)
            if not self._steps.end(db, key, token, result):
                raise LeaseLost(_lost(key))
            if not call.wanted():
                raise BackendUnavailable("the block was given up before it was committed")
            db.execute("COMMIT")

        try:
            async with asyncio.timeout(self._database.options.call_timeout_ms / 1000):  # C23: a disk that hangs
                await self.run(lambda db: call.retry(lambda: complete(db)))
        except TimeoutError as error:
            # Not a BackendTimeout: that says "rolled back", and whether this commit arrives nobody knows yet (C5).
            raise BackendUnavailable(f"{self._database.path} did not answer the commit of a transaction block") from error
        except BackendError as error:
            if is_interrupted(error.__cause__):  # the timer met the last statements: nothing was committed
                raise self.too_long() from error
            raise
        finally:
            call.abandoned = True

    async def leave(self) -> None:
        """Roll back what is not committed, close the connection and end both threads (C24)."""
        self._timer.cancel()
        if self._timer.ident is not None:
            self._timer.join(1)  # before the connection goes that it may be about to interrupt
        for connection in self._made:
            connection.interrupt()  # a statement of a cancelled block may still run, and the end waits behind it
        await self.end()

    def too_long(self) -> BackendTimeout:
        """Return the error of a block whose time is over."""
        return BackendTimeout(f"the transaction block took longer than {self._limit_ms} ms and was rolled back: make it shorter")

    def _authorize(self, action: int, *_: object) -> int:
        refused = self.expired or action == sqlite3.SQLITE_TRANSACTION
        return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK

    def _time_over(self) -> None:
        self.expired = True

        def roll_back(db: sqlite3.Connection) -> None:
            if db.in_transaction:
                db.set_authorizer(None)
                db.execute("ROLLBACK")
                db.set_authorizer(self._authorize)

        self.post(roll_back)
        self._made[0].interrupt()  # a long statement of the block ends here and now

    async def commit(self) -> Never:
        """Refuse: the block commits when it ends."""
        raise BackendError("the transaction block commits by itself when it ends: remove commit()")

    async def rollback(self) -> Never:
        """Refuse: an exception rolls the block back."""
        raise BackendError("the transaction block rolls back when an exception leaves it: remove rollback()")

    async def close(self) -> Never:
        """Refuse: the block closes its connection."""
        raise BackendError("the transaction block closes its connection by itself: remove close()")


def _lost(key: RunKey) -> str:
    return f"job {key.job!r}, slot {key.slot_ms}: this attempt no longer holds the run, nothing was written"


class Effects:
    """Makes blocks, at most as many at once as connections are left."""

    def __init__(self, database: Database, steps: Steps) -> None:
        self._database = database
        self._steps = steps
        self._clock = SystemClock()
        self._places = BoundedSemaphore(database.options.max_connections - STANDING_CONNECTIONS)

    @asynccontextmanager
    async def transaction(
        self, key: RunKey, token: str, result: RunResult, *, limit_ms: int
    ) -> AsyncIterator[aiosqlite.Connection]:
        """See `SQLiteBackend.transaction`."""
        if self._database.place is None:
            raise BackendUnavailable("the SQLite backend is not open: call open() first")
        deadline_ms = self._database.monotonic_ms() + self._database.options.lock_wait_ms
        await self._take_place(deadline_ms)
        try:
            block = _Block(self._database, self._steps, limit_ms)
            await block.start()
            try:
                await block.begin(key, token, wait_ms=deadline_ms - self._database.monotonic_ms())
                try:
                    async with asyncio.timeout(limit_ms / 1000) as scope:
                        yield block
                except (TimeoutError, sqlite3.Error) as error:
                    if scope.expired() or block.expired:
                        raise block.too_long() from error
                    raise
                await block.complete(key, token, result)
            finally:
                await block.leave()
        finally:
            self._places.release()

    async def _take_place(self, deadline_ms: float) -> None:
        while not self._places.acquire(blocking=False):
            if self._database.monotonic_ms() >= deadline_ms:
                raise BackendTimeout("no connection for a transaction block came free in time: raise ?max=")
            await self._clock.sleep_ms(PLACE_PAUSE_MS)
