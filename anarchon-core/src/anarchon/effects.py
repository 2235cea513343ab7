"""Exactly-once effects: a handler's writes and the end of its run in one transaction of the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from anarchon.backend import JoinsTransactions, TransactionalBackend
from anarchon.errors import BackendError, BackendTimeout, LeaseLost
from anarchon.run import Run
from anarchon.store import Store
from anarchon.types import RunResult, RunStatus

__all__ = ["Effects"]

T = TypeVar("T")
RECORDS_MAX = 1_000

_log = logging.getLogger("anarchon.run")


class _Grant(Protocol):
    committed: bool


class Effects:
    """What `Run.transaction` and `Run.finish_in` do; made on the engine's loop, called on the handler's."""

    def __init__(self, store: Store, grant: _Grant, run: Run, *, limit_ms: int) -> None:
        self._store = store
        self._grant = grant
        self._run = run
        self._limit_ms = limit_ms
        self._engine_loop = asyncio.get_running_loop()

    def _backend(self) -> TransactionalBackend:
        backend = self._store.backend
        if not isinstance(backend, TransactionalBackend):
            msg = f"{type(backend).__name__} has no transactions to share: use anarchon-sqlite or anarchon-postgres"
            raise BackendError(msg)
        return backend

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """See `Run.transaction`."""
        run, result, left = self._run, RunResult(RunStatus.SUCCESS), False
        run.raise_if_lost()
        try:
            async with self._backend().transaction(run.key, run.token, result, limit_ms=self._limit_ms) as connection:
                yield connection
                left = True
        except BackendError as error:
            # Only an answer of the commit that was lost leaves the end open: then the run is read.
            if not left or isinstance(error, BackendTimeout) or not await self._on_engine(self._finished()):
                raise
            _log.info("%s: the commit's answer was lost, and the run is finished", run.job)
        self._grant.committed = True

    async def finish_in(self, connection: Any) -> None:
        """See `Run.finish_in`."""
        run, backend = self._run, self._store.backend
        run.raise_if_lost()
        if not isinstance(backend, JoinsTransactions):
            msg = f"{type(backend).__name__} cannot finish a run in a transaction of yours: use anarchon-postgres"
            raise BackendError(msg)
        if not await backend.finish_in(connection, run.key, run.token, RunResult(RunStatus.SUCCESS)):
            msg = f"{run.job}: attempt {run.attempt} of slot {run.slot_ms} no longer holds the run: roll back"
            raise LeaseLost(msg)

    async def _finished(self) -> bool:
        run = self._run
        records = await self._store.history(run.job, limit=RECORDS_MAX, since_ms=run.slot_ms)
        return any(record.token == run.token and record.status is RunStatus.SUCCESS for record in records)

    async def _on_engine(self, work: Coroutine[Any, Any, T]) -> T:
        if asyncio.get_running_loop() is self._engine_loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._engine_loop))
