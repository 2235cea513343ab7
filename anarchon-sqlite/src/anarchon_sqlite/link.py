"""One connection under discipline: every call is one hop to the thread, one transaction, one deadline."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import TypeVar

from anarchon.errors import BackendError, BackendTimeout, BackendUnavailable

from anarchon_sqlite.database import PAUSE_MOST_MS, Database
from anarchon_sqlite.failures import explain, is_busy
from anarchon_sqlite.worker import Worker

__all__ = ["Call", "Link", "Step"]

T = TypeVar("T")
Step = Callable[[sqlite3.Connection], T]


class Call:
    """One call under way: who waits for it until when. Shared by the loop (which sets) and the thread (which reads)."""

    __slots__ = ("_database", "_deadline_ms", "_limit_ms", "abandoned")

    def __init__(self, database: Database, limit_ms: float) -> None:
        self._database = database
        self._limit_ms = limit_ms
        self._deadline_ms = database.monotonic_ms() + limit_ms
        self.abandoned = False

    def wanted(self) -> bool:
        """Whether somebody still waits for the answer."""
        return not (self.abandoned or self._database.closing.is_set())

    def write(self, connection: sqlite3.Connection, step: Step[T]) -> T:
        """Run a step in a transaction that holds the write lock from its first statement (C3)."""

        def attempt() -> T:
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._database.check_place()
                answer = step(connection)
                if not self.wanted():  # C22: nobody will see the answer, so let nothing have happened
                    raise BackendUnavailable(_CLOSED)
                connection.execute("COMMIT")
                return answer
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

        return self.retry(attempt)

    def read(self, connection: sqlite3.Connection, step: Step[T]) -> T:
        """Run a step that only reads; it never waits for a writer."""

        def attempt() -> T:
            self._database.check_place()
            return step(connection)

        return self.retry(attempt)

    def retry(self, attempt: Callable[[], T]) -> T:
        """Repeat an attempt that met a lock until it gets through, the deadline passes, or nobody waits any more.

        Raises:
            BackendTimeout: the lock was not free in time.
            BackendUnavailable: the store was closed meanwhile, or fails.
            StoreDamaged: the file cannot be read.
        """
        while True:
            if not self.wanted():
                raise BackendUnavailable(_CLOSED)
            try:
                return attempt()
            except (OverflowError, UnicodeError) as error:
                msg = f"{self._database.path} cannot hold this value: {error}"
                raise BackendError(msg) from error
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise explain(error, self._database.path) from error
                if self._database.monotonic_ms() >= self._deadline_ms:
                    msg = (
                        f"{self._database.path} stayed locked by another process or transaction block for "
                        f"{self._limit_ms:.0f} ms (busy_timeout): look for a stopped process or a long transaction"
                    )
                    raise BackendTimeout(msg) from error
            self._database.pause(PAUSE_MOST_MS)


_CLOSED = "the call was given up before it took effect"


class Link:
    """A worker with the rules of `Call`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._worker: Worker | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._worker is not None

    async def open(self) -> None:
        """Connect and set the file up; see `Database.connect`."""
        abandoned = False
        worker = Worker(lambda: self._database.connect(lambda: not abandoned))
        try:
            await worker.start()
        except BaseException:
            abandoned = True
            raise
        self._worker = worker

    async def close(self) -> None:
        """Close the connection and end its thread."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.end()

    async def write(self, step: Step[T]) -> T:
        """Run a step in a transaction of its own; see `Call.write`."""
        return await self.run(lambda call, connection: call.write(connection, step))

    async def read(self, step: Step[T]) -> T:
        """Run a step that reads; see `Call.read`."""
        return await self.run(lambda call, connection: call.read(connection, step))

    async def run(self, body: Callable[[Call, sqlite3.Connection], T]) -> T:
        """Run several steps in one hop and under one deadline.

        Raises:
            BackendTimeout: the lock, or the disk, was not free in time (C23).
            BackendUnavailable: the store is not open, or fails.
            StoreDamaged: the file cannot be read.
        """
        if self._worker is None:
            msg = "the SQLite backend is not open: call open() first"
            raise BackendUnavailable(msg)
        options = self._database.options
        call = Call(self._database, options.lock_wait_ms)
        try:
            async with asyncio.timeout(options.call_timeout_ms / 1000):  # C23: a disk that hangs
                return await self._worker.run(lambda connection: body(call, connection))
        except TimeoutError as error:
            msg = f"{self._database.path} did not answer within {options.call_timeout_ms} ms: look at its disk"
            raise BackendTimeout(msg) from error
        finally:
            call.abandoned = True
