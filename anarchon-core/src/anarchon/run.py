"""`Run`: what a handler is given about the attempt that it carries out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from anarchon.errors import LeaseLost, SchedulerStateError
from anarchon.types import RunKey

__all__ = ["Run"]

_log = logging.getLogger("anarchon.job")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TransactionalEffects(Protocol):
    """What a run needs to write its effects and its end together."""

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """See `Run.transaction`."""
        ...

    async def finish_in(self, connection: Any) -> None:
        """See `Run.finish_in`."""
        ...


class _RunLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: str, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        return f"{self.extra['head'] if self.extra else ''} {msg}", kwargs


@dataclass(slots=True, eq=False)
class Run:
    """One attempt of one run.

    `lost` is set once this instance may no longer hold the run: by then another instance may be running it. `fence`
    orders slots and attempts: hand it to a resource that refuses what is older than what it has seen.
    """

    key: RunKey
    attempt: int
    token: str = field(repr=False)
    instance: str
    lost: threading.Event = field(default_factory=threading.Event, repr=False)
    _deadline_ms: Callable[[], float] | None = field(default=None, init=False, repr=False)
    _effects: TransactionalEffects | None = field(default=None, init=False, repr=False)

    def bind(self, *, deadline_ms: Callable[[], float], effects: TransactionalEffects) -> None:
        """Connect the run to the engine that holds it."""
        self._deadline_ms = deadline_ms
        self._effects = effects

    @property
    def job(self) -> str:
        """The job's name."""
        return self.key.job

    @property
    def slot_ms(self) -> int:
        """The slot in Unix milliseconds; for a manual run the time it was asked for."""
        return self.key.slot_ms

    @property
    def slot(self) -> datetime:
        """The slot as an aware datetime in UTC."""
        return _EPOCH + timedelta(milliseconds=self.key.slot_ms)

    @property
    def fence(self) -> int:
        """The fencing number of this attempt."""
        return self.key.fence(self.attempt)

    @property
    def deadline(self) -> datetime:
        """Until when this instance trusts its lease as it stands now; each renewal moves it (K1)."""
        deadline_ms = self._deadline_ms() if self._deadline_ms is not None else 0.0
        return _EPOCH + timedelta(milliseconds=deadline_ms)

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry job, slot and attempt."""
        head = f"[{self.job} {self.slot:%Y-%m-%dT%H:%M:%SZ} attempt {self.attempt}]"
        return _RunLog(_log, {"head": head})

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a transaction of the store in which the handler's writes and the end of its run commit together.

        `async with run.transaction() as connection:` gives a connection of the store's driver. When the block ends, the
        run is finished as a success and everything is committed, or, if this attempt no longer holds the run, nothing:
        the effects happen exactly once. The block is rolled back when it raises, or takes longer than 5 s or a third of
        the lease. Open it last: after it the run is final.

        Raises:
            LeaseLost: another attempt holds the run; nothing was written.
            BackendError: the store cannot do this, or failed.
        """
        return self._bound().transaction()

    async def finish_in(self, connection: Any) -> None:
        """Finish the run as the last statement of a transaction of your own; your commit makes it final.

        Raises:
            LeaseLost: another attempt holds the run; roll back.
            BackendError: the store cannot do this, or failed.
        """
        await self._bound().finish_in(connection)

    def _bound(self) -> TransactionalEffects:
        if self._effects is None:
            msg = "this run belongs to no engine"
            raise SchedulerStateError(msg)
        return self._effects

    def raise_if_lost(self) -> None:
        """Raise `LeaseLost` if another instance may be running this slot by now; call it before each effect."""
        if self.lost.is_set():
            msg = f"{self.job}: attempt {self.attempt} of {self.slot.isoformat()} lost its lease; stop here"
            raise LeaseLost(msg)
