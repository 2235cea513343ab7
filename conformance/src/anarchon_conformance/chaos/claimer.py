"""An instance without a scheduler: it claims the slots of a grid, watches what others hold, renews and finishes its own.

It follows the rules that the core follows (K1, K2): one token a claim, asked again while the answer is unknown; no belief
in a lease past its local deadline; nothing reported after that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from anarchon.backend import Backend, LeaseBackend
from anarchon.errors import BackendError
from anarchon.types import Claim, ClaimRequest, Outcome, RunKey, RunResult, RunStatus, new_token

from anarchon_conformance.chaos.journal import Journal, What
from anarchon_conformance.chaos.plan import OffClock, WorkerPlan

__all__ = ["Claimer"]

RETRY_MS = 40.0
SLOTS_MAX = 200
ASKS_MAX = 2_000
HUNG_MS = 1_500.0
JITTER_MS = 15.0
KEEP_MS = 600_000

T = TypeVar("T")


class Claimer:
    """Works through the slots of one job until it is told to stop."""

    def __init__(self, backend: Backend, plan: WorkerPlan, journal: Journal) -> None:
        self._backend = backend
        self._plan = plan
        self._journal = journal
        self._clock = OffClock(plan.skew_ms)
        self._random = random.Random(plan.seed)  # noqa: S311 - spreads claims, guards nothing
        self._call_ms = float(backend.limits.call_timeout_ms)
        self._why = ""
        """Why the call that failed last did; read before anything else is awaited."""
        remembers_ms = backend.limits.remembers_ms
        self._keep_ms = KEEP_MS if remembers_ms is None else min(KEEP_MS, remembers_ms // 2)
        self._margin_ms = max(plan.lease_ms / 10, 50)

    async def run(self, stop: asyncio.Event) -> None:
        """Claim every slot from now on; at `stop`, give what is under way a moment to end."""
        self._journal.tell(What.READY)
        slots: set[asyncio.Task[None]] = set()
        period_ms = self._plan.period_ms
        slot_ms = int(self._clock.wall_ms() - self._plan.look_back_ms) // period_ms * period_ms + period_ms
        while not stop.is_set():
            wait_ms = slot_ms - self._clock.wall_ms() + self._random.uniform(0, JITTER_MS)
            if await self._clock.wait(stop, wait_ms):
                break
            if len(slots) < SLOTS_MAX:
                slots.add(task := asyncio.create_task(self._slot(slot_ms, stop)))
                task.add_done_callback(slots.discard)
            slot_ms += period_ms
        if slots:
            _, late = await asyncio.wait(slots, timeout=(self._plan.work_ms + self._plan.lease_ms) / 1000)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _slot(self, slot_ms: int, stop: asyncio.Event) -> None:
        """Claim one slot, watch it, take it over, until it is final or too old."""
        plan = self._plan
        request = ClaimRequest(
            key=RunKey(plan.job, slot_ms),
            token=new_token(),
            instance=plan.instance,
            attempt_limit=50,
            lease_ms=plan.lease_ms,
            max_late_ms=plan.max_late_ms,
            exclusive=False,
            keep_ms=self._keep_ms,
            history_size=100_000,
        )
        for _ in range(ASKS_MAX):
            if self._clock.wall_ms() > slot_ms + plan.max_late_ms:
                return self._journal.tell(What.GAVE_UP, slot_ms=slot_ms, note="too old")
            sent_ms = self._clock.monotonic_ms()
            claim = await self._within(self._backend.claim(request))
            if claim is None or claim.outcome is Outcome.UNKNOWN:
                why = self._why if claim is None else ""
                self._journal.tell(What.UNKNOWN, slot_ms=slot_ms, token=request.token, sent_ms=sent_ms, note=why)
                if not self._backend.limits.resolves_unknown:
                    return None
                await self._clock.sleep_ms(RETRY_MS)
                continue
            if claim.won:
                return await self._hold(request, claim, sent_ms)
            if claim.outcome not in {Outcome.RUNNING, Outcome.EARLY} or stop.is_set():
                return self._journal.tell(What.REFUSED, slot_ms=slot_ms, sent_ms=sent_ms, note=claim.outcome.value)
            if claim.outcome is Outcome.EARLY:
                self._journal.tell(What.EARLY, slot_ms=slot_ms, sent_ms=sent_ms)
            await self._clock.wait(stop, max(claim.left_ms or claim.wait_ms or 0, 1) + self._random.uniform(0, JITTER_MS))
            if claim.outcome is Outcome.RUNNING:
                request = replace(request, token=new_token())  # a backup's next try is a claim of its own
        return None

    async def _hold(self, request: ClaimRequest, claim: Claim, sent_ms: float) -> None:
        """Hold a won run for its working time, then finish it."""
        plan, key, token = self._plan, request.key, request.token
        self._tell(What.WON, request, claim, sent_ms)
        done_ms = self._clock.monotonic_ms() + plan.work_ms
        trusted_ms = sent_ms + plan.lease_ms - self._margin_ms
        lease = self._backend if isinstance(self._backend, LeaseBackend) else None
        while (left_ms := done_ms - self._clock.monotonic_ms()) > 0:
            await self._clock.sleep_ms(min(left_ms, plan.lease_ms / 3))
            if lease is None:
                continue
            sent_ms = self._clock.monotonic_ms()
            held = await self._within(lease.renew(key, token, plan.lease_ms))
            if held:
                trusted_ms = sent_ms + plan.lease_ms - self._margin_ms
                self._tell(What.RENEWED, request, claim, sent_ms)
            elif held is False or self._clock.monotonic_ms() > trusted_ms:
                self._tell(What.FENCED if held is False else What.GAVE_UP, request, claim, sent_ms)
                return
        for _ in range(ASKS_MAX):
            sent_ms = self._clock.monotonic_ms()
            finished = await self._within(self._backend.finish(key, token, RunResult(RunStatus.SUCCESS)))
            if finished is not None:
                self._tell(What.FINISHED if finished else What.FENCED, request, claim, sent_ms)
                return
            if lease is not None and self._clock.monotonic_ms() > trusted_ms:
                break
            if self._clock.wall_ms() > key.slot_ms + plan.max_late_ms:
                break
            await self._clock.sleep_ms(RETRY_MS)
        self._tell(What.GAVE_UP, request, claim, sent_ms)

    def _tell(self, what: What, request: ClaimRequest, claim: Claim, sent_ms: float) -> None:
        key, token = request.key, request.token
        self._journal.tell(what, slot_ms=key.slot_ms, attempt=claim.attempt, token=token, sent_ms=sent_ms)

    async def _within(self, call: Awaitable[T]) -> T | None:
        """Make a call within the deadline that the core would set; None = unknown. A call that outlives it is told (C23)."""
        start_ms = self._clock.monotonic_ms()
        try:
            async with asyncio.timeout(self._call_ms / 1000):
                return await call
        except Exception as error:  # border: backend call - whatever it raises, the outcome is unknown (C5)
            if not isinstance(error, BackendError | TimeoutError):
                self._journal.tell(What.UNKNOWN, note=f"{type(error).__name__}: {error!s:.200}")
            self._why = f"{type(error).__name__}: {error!s:.120}"
            return None
        finally:
            took_ms = self._clock.monotonic_ms() - start_ms
            if took_ms > self._call_ms + HUNG_MS:
                self._journal.tell(What.HUNG, note=f"{took_ms:.0f} ms")
