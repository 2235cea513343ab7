"""Every call to the store: timed, bounded, mapped to errors, told to the observers. Claims of one moment go together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from anarchon.backend import Backend, LeaseBackend
from anarchon.clock import Clock
from anarchon.errors import BackendError, BackendTimeout, BackendUnavailable, StoreSetupError
from anarchon.plugins import Observers
from anarchon.storetime import StoreTime
from anarchon.types import CLAIM_MANY_MAX, Claim, ClaimRequest, JobView, RunKey, RunRecord, RunResult, RunView
from anarchon.url import redact

__all__ = ["Store"]

T = TypeVar("T")
_log = logging.getLogger("anarchon.store")


class Store:
    """A backend as the engine uses it. All methods raise `BackendError` and nothing else."""

    def __init__(self, backend: Backend, clock: Clock, observers: Observers, instance: str) -> None:
        self.backend = backend
        self.limits = backend.limits
        self.time = StoreTime(clock)
        self.failing = False
        self.returned = asyncio.Event()
        self._clock = clock
        self._observers = observers
        self._instance = instance
        self._waiting: list[tuple[ClaimRequest, asyncio.Future[Claim]]] = []
        self._batches: set[asyncio.Task[None]] = set()

    @property
    def lease(self) -> LeaseBackend | None:
        """The backend if it knows who is alive."""
        return self.backend if isinstance(self.backend, LeaseBackend) else None

    @property
    def leased(self) -> LeaseBackend:
        """The backend, where the caller knows that it is a lease backend."""
        if not isinstance(self.backend, LeaseBackend):
            msg = "a lease call on a claim-only backend"
            raise TypeError(msg)
        return self.backend

    async def call(self, operation: str, run: Callable[[], Awaitable[T]], *, timeout_ms: float | None = None) -> T:
        """Make one call within its timeout (C23) and map whatever it raises.

        Raises:
            BackendError: the call failed, or did not answer in time.
        """
        limit_ms = timeout_ms if timeout_ms is not None else self.limits.call_timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                answer = await run()
        except TimeoutError as error:
            msg = f"{operation}: the store did not answer within {limit_ms:.0f} ms"
            raise self._failed(operation, BackendTimeout(msg)) from error
        except BackendError as error:
            self._failed(operation, error)
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled us: a driver lets its own waits end like this when its connection goes.
            msg = f"{operation}: the driver gave the call up"
            raise self._failed(operation, BackendUnavailable(msg)) from error
        except Exception as error:  # border: backend call
            msg = f"{operation}: {type(error).__name__}: {redact(str(error))}"
            raise self._failed(operation, BackendError(msg)) from error
        if self.failing:
            self.failing = False
            self.returned.set()
            _log.info("the store answers again")
        return answer

    def _failed(self, operation: str, error: BackendError) -> BackendError:
        if not self.failing and not isinstance(error, StoreSetupError):
            self.failing = True
            _log.warning("the store fails: %s", error)
        self._observers.tell("backend_error", instance=self._instance, operation=operation, error=error)
        return error

    async def open(self) -> None:
        """Open the backend and learn its time."""
        await self.call("open", self.backend.open, timeout_ms=4 * self.limits.call_timeout_ms)
        await self.measure()

    async def close(self, *, timeout_ms: float) -> None:
        """Close the backend; a claim that is still under way has `timeout_ms` and is then given up."""
        if self._batches:
            _, late = await asyncio.wait(self._batches, timeout=timeout_ms / 1000)
            for batch in late:
                batch.cancel()
        await self.call("close", self.backend.close, timeout_ms=timeout_ms)

    async def measure(self) -> None:
        """Ask the store for its time; a store without a clock teaches nothing.

        Raises:
            BackendError: it did not answer; a step of the clock that was seen stays to be dealt with.
        """
        sent_ms = self._clock.monotonic_ms()
        now_ms = await self.call("now", self.backend.now_ms)
        self.time.settle()
        if now_ms is not None:
            self.time.learn(now_ms, sent_ms, self._clock.monotonic_ms())

    async def claim(self, request: ClaimRequest) -> Claim:
        """Claim; requests of the same moment travel in one call, in the order of their names."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Claim] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._send)
        self._waiting.append((request, answer))
        return await answer

    def _send(self) -> None:
        waiting = sorted((item for item in self._waiting if not item[1].done()), key=lambda item: item[0].key)
        self._waiting = []
        for start in range(0, len(waiting), CLAIM_MANY_MAX):
            batch = asyncio.get_running_loop().create_task(self._claim_batch(waiting[start : start + CLAIM_MANY_MAX]))
            self._batches.add(batch)
            batch.add_done_callback(self._batches.discard)

    async def _claim_batch(self, batch: list[tuple[ClaimRequest, asyncio.Future[Claim]]]) -> None:
        requests = [request for request, _ in batch]
        sent_ms = self._clock.monotonic_ms()
        answers: Sequence[Claim | BackendError]
        try:
            if len(requests) == 1:
                answers = [await self.call("claim", lambda: self.backend.claim(requests[0]))]
            else:
                answers = await self.call("claim", lambda: self.backend.claim_many(requests))
                if len(answers) != len(requests):
                    msg = f"claim: the backend gave {len(answers)} answers to {len(requests)} claims"
                    raise BackendError(msg)
        except BackendError as error:
            answers = [error] * len(requests)
        received_ms = self._clock.monotonic_ms()
        for (_, future), answer in zip(batch, answers, strict=True):
            if isinstance(answer, Claim) and answer.store_now_ms is not None:
                self.time.learn(answer.store_now_ms, sent_ms, received_ms)
            if future.done():
                continue
            if isinstance(answer, Claim):
                future.set_result(answer)
            elif isinstance(answer, BackendError):
                future.set_exception(answer)
            else:
                future.set_exception(BackendError(f"claim: the backend answered {answer!r:.80}"))

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        """See `Backend.finish`."""
        return await self.call("finish", lambda: self.backend.finish(key, token, result))

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        """See `Backend.history`."""
        return await self.call("history", lambda: self.backend.history(job, limit=limit, since_ms=since_ms))

    async def release(
        self, key: RunKey, token: str, *, delay_ms: int = 0, counted: bool = False, error: str | None = None
    ) -> bool:
        """See `LeaseBackend.release`."""
        lease = self.leased
        return await self.call("release", lambda: lease.release(key, token, delay_ms=delay_ms, counted=counted, error=error))

    async def renew_many(self, items: Sequence[tuple[RunKey, str, int]], *, timeout_ms: float) -> Sequence[bool | BackendError]:
        """Renew runs, at most `CLAIM_MANY_MAX`; one run is one plain renewal."""
        lease = self.leased
        if len(items) == 1:
            key, token, lease_ms = items[0]
            return [await self.call("renew", lambda: lease.renew(key, token, lease_ms), timeout_ms=timeout_ms)]
        return await self.call("renew", lambda: lease.renew_many(items), timeout_ms=timeout_ms)

    async def check(self, keys: Sequence[RunKey]) -> list[RunView | None]:
        """See `LeaseBackend.check`."""
        lease = self.leased
        return await self.call("check", lambda: lease.check(keys))

    async def unfinished(self, jobs: Sequence[str]) -> list[RunView]:
        """See `LeaseBackend.unfinished`."""
        lease = self.leased
        return await self.call("unfinished", lambda: lease.unfinished(jobs))

    async def jobs(self) -> list[JobView]:
        """See `LeaseBackend.jobs`."""
        lease = self.leased
        return await self.call("jobs", lease.jobs)

    async def set_paused(self, job: str, *, paused: bool) -> None:
        """See `LeaseBackend.set_paused`."""
        lease = self.leased
        await self.call("pause", lambda: lease.set_paused(job, paused))
