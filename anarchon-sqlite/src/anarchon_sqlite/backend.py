"""The backend: an async shell around `Steps`, each call one hop to a worker's thread."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Self

import aiosqlite
from anarchon.backend import LeaseBackend
from anarchon.clock import Clock, SystemClock
from anarchon.errors import BackendError
from anarchon.types import Claim, ClaimRequest, JobView, Limits, RunKey, RunRecord, RunResult, RunView
from anarchon.url import BackendUrl

from anarchon_sqlite.database import Database
from anarchon_sqlite.effects import Effects
from anarchon_sqlite.link import Call, Link
from anarchon_sqlite.options import (
    BUSY_TIMEOUT_MS,
    CONNECTIONS,
    TABLE,
    Synchronous,
    make_options,
    options_from_url,
)
from anarchon_sqlite.places import file_system_of, place_warnings
from anarchon_sqlite.steps import Steps

__all__ = ["SQLiteBackend"]

NORMAL_WARNING = (
    "synchronous=normal: a power failure or a crash of the machine may undo the last claims, so that a slot runs again"
)


class SQLiteBackend(LeaseBackend):
    """A lease backend in one SQLite file, for any number of processes on one host."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout: float | timedelta = BUSY_TIMEOUT_MS / 1000,
        synchronous: str = Synchronous.FULL,
        table: str = TABLE,
        max_connections: int = CONNECTIONS,
        clock: Clock | None = None,
    ) -> None:
        """Take the options; nothing is opened.

        `clock` replaces the machine's clock as the store's clock, for tests; all instances must share it.

        Raises:
            OptionError: an option is refused.
        """
        options = make_options(
            path, busy_timeout=busy_timeout, synchronous=synchronous, table=table, max_connections=max_connections
        )
        self._database = Database(options)
        self._steps = Steps(self._database.sql, clock or SystemClock())
        self._effects = Effects(self._database, self._steps)
        # Two connections: a call that waits for the write lock must not keep the reads waiting.
        self._writer = Link(self._database)
        self._reader = Link(self._database)
        self._opening = asyncio.Lock()
        weak = (NORMAL_WARNING,) if options.synchronous is Synchronous.NORMAL else ()
        self.limits = Limits(call_timeout_ms=options.call_timeout_ms, notes=("all instances run on the host of the file", *weak))

    @classmethod
    def from_url(cls, url: BackendUrl) -> Self:
        options = options_from_url(url)
        return cls(
            options.path,
            busy_timeout=options.busy_timeout_ms / 1000,
            synchronous=options.synchronous,
            table=options.table,
            max_connections=options.max_connections,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._database.path!r})"

    @property
    def path(self) -> Path:
        """The database file."""
        return Path(self._database.path)

    async def open(self) -> None:
        """Make the file and its tables if need be, and connect; an open backend stays as it is.

        Raises:
            StoreSetupError: the place or the file cannot carry a store, or holds another schema version.
            StoreDamaged: the file is no database or is damaged.
            BackendTimeout: other processes kept it locked.
        """
        async with self._opening:  # C21: twice at once is once
            if self._writer.is_open:
                return
            self._database.begin()
            try:
                await self._writer.open()
                await self._reader.open()
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Give up calls that wait for the lock, close the connections and end their threads (C24)."""
        self._database.closing.set()
        try:
            await self._reader.close()
        finally:
            await self._writer.close()
            self._database.place = None
            self._opening = asyncio.Lock()  # the next life may be on another event loop

    async def claim(self, request: ClaimRequest) -> Claim:
        def body(call: Call, db: sqlite3.Connection) -> Claim:
            known = call.read(db, lambda db: self._steps.peek(db, request))
            return known or call.write(db, lambda db: self._steps.claim(db, request))

        return await self._writer.run(body)

    async def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Claim | BackendError]:
        def body(call: Call, db: sqlite3.Connection) -> list[Claim | BackendError]:
            answers: list[Claim | BackendError | None] = [*call.read(db, lambda db: self._steps.peek_each(db, requests))]
            asked = [request for request, answer in zip(requests, answers, strict=True) if answer is None]
            decided = iter(call.write(db, lambda db: self._steps.claim_each(db, asked)) if asked else ())
            return [next(decided) if answer is None else answer for answer in answers]

        return await self._writer.run(body)

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        return await self._writer.write(lambda db: self._steps.finish(db, key, token, result))

    async def renew(self, key: RunKey, token: str, lease_ms: int) -> bool:
        answers = await self._writer.write(lambda db: self._steps.renew(db, [(key, token, lease_ms)]))
        return answers[0]

    async def renew_many(self, items: Sequence[tuple[RunKey, str, int]]) -> list[bool | BackendError]:
        return [*await self._writer.write(lambda db: self._steps.renew(db, items))]

    async def release(
        self, key: RunKey, token: str, *, delay_ms: int = 0, counted: bool = False, error: str | None = None
    ) -> bool:
        return await self._writer.write(
            lambda db: self._steps.release(db, key, token, delay_ms=delay_ms, counted=counted, error=error)
        )

    async def check(self, keys: Sequence[RunKey]) -> list[RunView | None]:
        return await self._reader.read(lambda db: self._steps.check(db, keys))

    async def unfinished(self, jobs: Sequence[str]) -> list[RunView]:
        return await self._reader.read(lambda db: self._steps.unfinished(db, jobs))

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        return await self._reader.read(lambda db: self._steps.history(db, job, limit, since_ms))

    async def jobs(self) -> list[JobView]:
        return await self._reader.read(self._steps.jobs)

    async def set_paused(self, job: str, paused: bool) -> None:  # noqa: FBT001 - see LeaseBackend
        await self._writer.write(lambda db: self._steps.set_paused(db, job, paused=paused))

    async def now_ms(self) -> int:
        """Return the store's clock after a round trip to the file."""
        return await self._reader.read(self._steps.look)

    async def forget(self, job: str) -> None:
        """Remove a job with its runs and its history."""
        await self._writer.write(lambda db: self._steps.forget(db, job))

    async def warnings(self) -> list[str]:
        """Return what about the options and the file's place weakens the promises."""
        found = [NORMAL_WARNING] if self._database.options.synchronous is Synchronous.NORMAL else []
        kind = await self._reader.read(lambda _: file_system_of(self._database.path))
        return found + place_warnings(self._database.path, kind)

    def transaction(
        self, key: RunKey, token: str, result: RunResult, *, limit_ms: int = 5_000
    ) -> AbstractAsyncContextManager[aiosqlite.Connection]:
        """Open a block whose writes and the finish of a run commit together or not at all.

        The block gets an aiosqlite connection of its own inside a transaction. Its end finishes the run, guarded by the
        token, and commits; whatever the block raises rolls everything back. Everybody else waits for the write lock
        meanwhile, so open it last and keep it short: after `limit_ms` it is rolled back.

        Raises:
            LeaseLost: the token does not hold the run; nothing was written.
            BackendTimeout: the lock was not free in time, or the block took longer than `limit_ms`; nothing was written.
        """
        return self._effects.transaction(key, token, result, limit_ms=limit_ms)
