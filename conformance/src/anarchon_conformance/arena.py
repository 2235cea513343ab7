"""The clients of one target for the length of one test: opened on demand, on job names of their own, always closed."""

from __future__ import annotations

import math
import secrets
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from anarchon.backend import Backend, LeaseBackend
from anarchon.types import ClaimRequest, Limits, RunKey, RunResult, RunStatus, new_token

from anarchon_conformance.history import Timebase
from anarchon_conformance.target import Target

__all__ = ["Arena"]

_TRIPS = 3
_NO_CLOCK_MS = 5_000.0
"""How far the kit's wall clock may be off from that of a store which does not tell its time."""


class Arena:
    """Opens clients of a target and closes them all at the end of the `async with`."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._open: list[Backend] = []
        self._limits: Limits | None = None
        self._lease: bool | None = None
        self._timebase = Timebase(0.0)
        self.trip_ms = 0.0

    async def __aenter__(self) -> Self:
        first = await self.client()
        self._limits = first.limits
        self._lease = isinstance(first, LeaseBackend)
        await self.measure()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        async with AsyncExitStack() as stack:  # one that cannot be closed must not keep the others open
            for backend in self._open:
                stack.push_async_callback(backend.close)
            self._open.clear()

    async def measure(self) -> None:
        """Measure how the store's clock relates to the kit's: the shortest of a few round trips is the truest."""
        clock, best_ms = self.target.clock, math.inf
        for _ in range(_TRIPS):
            sent_ms = clock.monotonic_ms()
            store_ms = await self.first.now_ms()
            trip_ms = clock.monotonic_ms() - sent_ms
            if store_ms is None:
                offset_ms, slack_ms = clock.wall_ms() - sent_ms, _NO_CLOCK_MS
            else:
                offset_ms, slack_ms = store_ms - sent_ms - trip_ms / 2, trip_ms / 2 + 1
            if trip_ms < best_ms:
                best_ms = trip_ms
                exact = self.target.simulated
                self._timebase = Timebase(offset_ms, 0 if exact else slack_ms, exact=exact)
        self.trip_ms = best_ms

    async def claim_ms(self) -> float:
        """Measure how long a claim takes at best; it leaves a few finished runs of a job of its own."""
        clock, best_ms, job = self.target.clock, math.inf, self.job("pace")
        for number in range(_TRIPS):
            request = self.request(self.key(job, ago_ms=1_000 - number))
            sent_ms = clock.monotonic_ms()
            await self.first.claim(request)
            best_ms = min(best_ms, clock.monotonic_ms() - sent_ms)
            await self.first.finish(request.key, request.token, RunResult(RunStatus.SUCCESS))
        return best_ms

    @property
    def timebase(self) -> Timebase:
        """How the kit's clock maps to the store's, as last measured."""
        return self._timebase

    @property
    def first(self) -> Backend:
        """The client that was opened first."""
        return self._open[0]

    @property
    def limits(self) -> Limits:
        """The limits of the target's backend."""
        assert self._limits is not None, "enter the arena first"
        return self._limits

    @property
    def lease(self) -> bool:
        """Whether the target is a lease backend."""
        assert self._lease is not None, "enter the arena first"
        return self._lease

    @property
    def resolves_unknown(self) -> bool:
        """Whether a claim without an answer can be asked again; where it cannot, its slot is skipped (C5)."""
        return self.lease or self.limits.resolves_unknown

    async def client(self, backend: Backend | None = None) -> Backend:
        """Open a client of the target's own URL, or the given unopened one; it is closed with the arena."""
        made = backend if backend is not None else self.target.make(self.target.url)
        self._open.append(made)
        await made.open()
        return made

    async def lease_client(self, backend: Backend | None = None) -> LeaseBackend:
        """Open a client of a lease backend."""
        made = await self.client(backend)
        assert isinstance(made, LeaseBackend), f"{type(made).__name__} is no lease backend"
        return made

    def job(self, hint: str = "job") -> str:
        """Return a job name that nobody else uses and that the backend accepts."""
        for name in (f"{hint}-{secrets.token_hex(6)}", f"{hint.replace('-', '')}{secrets.token_hex(6)}"):
            try:
                self.limits.check_job_name(name)
            except ValueError:
                continue
            return name
        msg = f"no job name of the kit matches limits.job_name = {self.limits.job_name!r}"
        raise ValueError(msg)

    def store_now_ms(self) -> int:
        """Return the store's clock as measured at the start of the arena: good to a round trip unless it was stepped."""
        return int(self.target.clock.monotonic_ms() + self._timebase.offset_ms)

    def key(self, job: str, *, ago_ms: int = 1_000, space: str = "") -> RunKey:
        """Return a slot of a job that lies `ago_ms` before the store's now."""
        return RunKey(job, self.store_now_ms() - ago_ms, space)

    def request(
        self, key: RunKey, *, token: str = "", instance: str = "a", lease_ms: int = 30_000, **options: int
    ) -> ClaimRequest:
        """Return a claim request with a new token unless one is given; `options` are further fields of the request."""
        return ClaimRequest(key=key, token=token or new_token(), instance=instance, lease_ms=lease_ms, **options)  # type: ignore[arg-type]  # fields by name
