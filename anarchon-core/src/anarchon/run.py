"""`Run`: what a handler is given about the attempt that it carries out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from anarchon.errors import LeaseLost
from anarchon.types import RunKey

__all__ = ["Run"]

_log = logging.getLogger("anarchon.job")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _RunLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: str, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        return f"{self.extra['head'] if self.extra else ''} {msg}", kwargs


@dataclass(frozen=True, slots=True, eq=False)
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
    deadline_ms: Callable[[], float] = field(default=lambda: 0.0, repr=False)

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
        return _EPOCH + timedelta(milliseconds=self.deadline_ms())

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry job, slot and attempt."""
        head = f"[{self.job} {self.slot:%Y-%m-%dT%H:%M:%SZ} attempt {self.attempt}]"
        return _RunLog(_log, {"head": head})

    def raise_if_lost(self) -> None:
        """Raise `LeaseLost` if another instance may be running this slot by now; call it before each effect."""
        if self.lost.is_set():
            msg = f"{self.job}: attempt {self.attempt} of {self.slot.isoformat()} lost its lease; stop here"
            raise LeaseLost(msg)
