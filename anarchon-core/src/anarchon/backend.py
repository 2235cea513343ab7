"""The border between the core and a store: two abstract classes that a backend extends.

A backend makes one store call atomic and says what it found. It does not retry, log, sleep or start tasks: the core
does that, and wraps every call with the backend's `limits.call_timeout_ms`. Clause numbers are those of
`anarchon.contract`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, Self, runtime_checkable

from anarchon.errors import BackendError
from anarchon.types import Claim, ClaimRequest, JobView, Limits, RunKey, RunRecord, RunResult, RunView
from anarchon.url import BackendUrl

__all__ = ["CONTRACT_VERSION", "Backend", "JoinsTransactions", "LeaseBackend", "TransactionalBackend"]

CONTRACT_VERSION = 1
"""The version of the claim contract that this core speaks; a plugin module states its own (C and K clauses)."""


class Backend(ABC):
    """A store that decides who is first (claim-only). Clauses marked [A] hold."""

    limits: Limits = Limits()

    @classmethod
    @abstractmethod
    def from_url(cls, url: BackendUrl) -> Self:
        """Build a backend from a URL without touching the store.

        Raises:
            UrlError: an option is unknown or its value cannot be used.
        """

    @abstractmethod
    async def open(self) -> None:
        """Connect and make the store ready; may be called by many instances at once on an empty store (C21).

        Raises:
            StoreSetupError: the store cannot do what the contract needs.
            BackendUnavailable: it cannot be reached now.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything that `open` made; a borrowed connection stays open (C24). May be called twice."""

    @abstractmethod
    async def claim(self, request: ClaimRequest) -> Claim:
        """Decide one claim in one atomic step of the store (C1-C10, C12, C13).

        Raises:
            BackendError: the outcome is unknown (C5); the core asks again with the same token (K2).
        """

    @abstractmethod
    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        """Record how a run ended: True if this token finished it, now or before; False if it does not hold it (C15, C18)."""

    @abstractmethod
    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        """Return the newest attempts and notes from `since_ms` on, newest slot first, then newest attempt (C19)."""

    async def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Claim | BackendError]:
        """Decide up to `CLAIM_MANY_MAX` claims; one answer an item, a failed item is its exception.

        The default asks one after the other. An override must keep C1-C13 for each item by itself.
        """
        answers: list[Claim | BackendError] = []
        for request in requests:
            try:
                answers.append(await self.claim(request))
            except BackendError as error:
                answers.append(error)
        return answers

    async def now_ms(self) -> int | None:
        """Return the store's clock, or None where it has none that can be asked for."""
        return None

    async def ping(self) -> None:
        """Make one round trip that changes nothing.

        Raises:
            BackendError: the store does not answer.
        """
        await self.now_ms()

    async def forget(self, job: str) -> None:
        """Remove everything stored for a job that no instance holds any more.

        Raises:
            BackendError: this store offers no such thing.
        """
        msg = f"{type(self).__name__} cannot forget job {job!r}: remove its data with the store's own tools"
        raise BackendError(msg)

    async def warnings(self) -> list[str]:
        """Return what about this store weakens the promises, one sentence each; for `anarchon check`."""
        return []


class LeaseBackend(Backend):
    """A store that also knows who is alive. Clauses marked [L] hold besides."""

    @abstractmethod
    async def renew(self, key: RunKey, token: str, lease_ms: int) -> bool:
        """Move the lease end to now + `lease_ms` on the store's clock; False if the token does not hold the run (C14, C15)."""

    @abstractmethod
    async def release(
        self, key: RunKey, token: str, *, delay_ms: int = 0, counted: bool = False, error: str | None = None
    ) -> bool:
        """Give a run back so that anybody may claim it `delay_ms` from now (C16).

        A hand-over is not counted against the attempt limit and recorded as handed_over; a retry is counted and
        recorded as failed with `error`. False if the token does not hold the run (C15).
        """

    @abstractmethod
    async def check(self, keys: Sequence[RunKey]) -> list[RunView | None]:
        """Look at runs without writing; None for a run that the store does not know (C17)."""

    @abstractmethod
    async def unfinished(self, jobs: Sequence[str]) -> list[RunView]:
        """Return every run (not note) of these jobs that is not final, oldest slot first (K12)."""

    @abstractmethod
    async def jobs(self) -> list[JobView]:
        """Return every job that this store has seen."""

    @abstractmethod
    async def set_paused(self, job: str, paused: bool) -> None:  # noqa: FBT001 - the state itself is the argument
        """Pause or resume first claims of a job for the whole fleet; repeating changes nothing (C10)."""

    async def renew_many(self, items: Sequence[tuple[RunKey, str, int]]) -> list[bool | BackendError]:
        """Renew several runs given as (key, token, lease_ms); the default asks one after the other (C14)."""
        answers: list[bool | BackendError] = []
        for key, token, lease_ms in items:
            try:
                answers.append(await self.renew(key, token, lease_ms))
            except BackendError as error:
                answers.append(error)
        return answers


@runtime_checkable
class TransactionalBackend(Protocol):
    """A lease backend over a database that its users write to as well; optional.

    It lets a handler's writes and the end of its run commit together, so that the effects happen exactly once. May be
    called from any thread's event loop.
    """

    def transaction(self, key: RunKey, token: str, result: RunResult, *, limit_ms: int) -> AbstractAsyncContextManager[Any]:
        """Give a connection inside a transaction whose last statement is the guarded finish of the run.

        Raises on leaving:
            LeaseLost: the token does not hold the run; everything is rolled back (C15).
            BackendTimeout: the block took longer than `limit_ms`; everything is rolled back.
            BackendUnavailable: the commit's answer is lost; the caller looks at the run.
        """
        ...


@runtime_checkable
class JoinsTransactions(Protocol):
    """A lease backend that can write the end of a run into a transaction of the user's own; optional."""

    async def finish_in(self, connection: Any, key: RunKey, token: str, result: RunResult) -> bool:
        """Finish the run inside the caller's open transaction; False if the token does not hold it (C15)."""
        ...
