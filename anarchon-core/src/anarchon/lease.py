"""The keeper: renews every lease that this instance holds, and knows when to stop believing in one (K1, K7)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from anarchon.clock import Moment
from anarchon.context import Context
from anarchon.errors import BackendError
from anarchon.job import Job
from anarchon.run import Run
from anarchon.types import CLAIM_MANY_MAX, RunKey

__all__ = ["Held", "Keeper", "margin_ms"]

MARGIN_LEAST_MS = 50
RETRY_SHARE = 10
IDLE_MS = 10_000

Confirmation = bool | BackendError

_log = logging.getLogger("anarchon.lease")


def margin_ms(lease_ms: int) -> float:
    """Return how long before the store may end a lease its holder stops believing in it (K1)."""
    return min(max(lease_ms / 10, MARGIN_LEAST_MS), lease_ms / 2)


@dataclass(slots=True, eq=False)
class Held:
    """A run that this instance holds. `granted` is from before the send of the claim or of the last good renewal.

    `signal` is set whenever the one who supervises the handler should look again.
    """

    job: Job
    run: Run
    granted: Moment
    next_ms: float
    signal: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False
    why: str = ""
    failures: int = 0
    asking: bool = False
    asked_late: bool = False

    @property
    def trusted_ms(self) -> float:
        """For how long after `granted` the lease is believed in."""
        return self.job.lease_ms - margin_ms(self.job.lease_ms)

    def lose(self, why: str) -> None:
        """Stop believing in the lease; for good."""
        if not self.lost:
            self.lost, self.why = True, why
            self.run.lost.set()
            self.signal.set()


class Keeper:
    """Renews what is due in one call, and looks at every deadline when it wakes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store = context.store
        self._clock = context.clock
        self._held: dict[RunKey, Held] = {}
        self._wake = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()

    def hold(self, job: Job, run: Run, granted: Moment) -> Held:
        """Take a won run into care until `drop`."""
        held = Held(job, run, granted, granted.monotonic_ms + job.heartbeat_ms)
        if self._store.lease is not None:
            self._held[run.key] = held
            self._wake.set()
        return held

    def drop(self, held: Held) -> None:
        """Stop renewing a run."""
        if self._held.get(held.run.key) is held:
            del self._held[held.run.key]

    def trusted(self, held: Held) -> bool:
        """Whether the lease may still be believed in."""
        return not held.lost and self.left_ms(held) > 0

    def left_ms(self, held: Held) -> float:
        """Return for how much longer the lease is believed in."""
        return held.trusted_ms - self._clock.elapsed_ms(held.granted)

    async def serve(self, stopped: Callable[[], bool]) -> None:
        """Renew until `stopped` and nothing is held."""
        planned_ms = self._clock.monotonic_ms()
        while not (stopped() and not self._held):
            woke_ms = self._clock.monotonic_ms()
            self._judge(late_ms=woke_ms - planned_ms)
            self._renew_due(woke_ms)
            wait_ms = self._wait_ms(woke_ms)
            planned_ms = self._clock.monotonic_ms() + wait_ms
            self._wake.clear()
            if await self._clock.wait(self._wake, wait_ms):
                planned_ms = min(planned_ms, self._clock.monotonic_ms())
        for call in self._calls:
            call.cancel()

    async def confirm(self, held: Held) -> bool:
        """Ask the store once whether a lease that is past its local deadline still holds (K1)."""
        held.asked_late = held.asking = True
        await self._renew([held], float(self._store.limits.call_timeout_ms))
        return self.trusted(held)

    def wake(self) -> None:
        """Look again now."""
        self._wake.set()

    def _wait_ms(self, now_ms: float) -> float:
        wait_ms = float(IDLE_MS)
        for held in self._held.values():
            if not held.asking:
                wait_ms = min(wait_ms, held.next_ms - now_ms)
            if not held.asked_late:
                wait_ms = min(wait_ms, self.left_ms(held) + 1)
        return max(wait_ms, 1)

    def _judge(self, *, late_ms: float) -> None:
        """Find the leases past their local deadline: lost, unless this instance only now wakes (K1)."""
        for held in list(self._held.values()):
            if held.lost or held.asked_late or self.left_ms(held) > 0:
                continue
            slept = late_ms > margin_ms(held.job.lease_ms) / 2
            if (held.failures or held.asking) and not slept:
                held.lose("the store did not confirm the lease in time")
            else:
                held.asked_late = True
                self._ask([held], timeout_ms=max(50.0, min(self._store.limits.call_timeout_ms, held.job.lease_ms / 2)))

    def _renew_due(self, now_ms: float) -> None:
        free = [h for h in self._held.values() if not h.asking and not h.lost]
        if not any(h.next_ms <= now_ms for h in free):
            return
        # What is due within a tenth of its heartbeat rides along: many runs cost one call a heartbeat.
        due = [h for h in free if h.next_ms <= now_ms + h.job.heartbeat_ms / 10]
        for start in range(0, len(due), CLAIM_MANY_MAX):
            self._ask(due[start : start + CLAIM_MANY_MAX], timeout_ms=self._store.limits.call_timeout_ms)

    def _ask(self, batch: list[Held], *, timeout_ms: float) -> None:
        for held in batch:
            held.asking = True
        call = asyncio.get_running_loop().create_task(self._renew(batch, timeout_ms))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _renew(self, batch: list[Held], timeout_ms: float) -> None:
        sent = self._clock.moment()
        items = [(held.run.key, held.run.token, held.job.lease_ms) for held in batch]
        try:
            answers = await self._store.renew_many(items, timeout_ms=timeout_ms)
        except BackendError as error:
            answers = [error] * len(batch)
        for held, answer in zip(batch, answers, strict=True):
            self._take(held, answer, sent)
        self._wake.set()

    def _take(self, held: Held, answer: Confirmation, sent: Moment) -> None:
        held.asking = False
        if held.lost or self._held.get(held.run.key) is not held:
            return
        now_ms = self._clock.monotonic_ms()
        if answer is True:
            held.granted, held.failures, held.asked_late = sent, 0, False
            held.next_ms = max(now_ms, sent.monotonic_ms + held.job.heartbeat_ms)
            self._context.tell("lease_renewed", key=held.run.key, attempt=held.run.attempt)
        elif answer is False:
            held.lose("the store says that this token no longer holds the run")
        elif held.asked_late:
            held.lose("this instance slept past its lease and the store did not confirm it")
        else:
            held.failures += 1
            held.next_ms = now_ms + min(held.job.heartbeat_ms, held.job.lease_ms / RETRY_SHARE)
            _log.warning("%s: renewal %d failed: %s", held.run.job, held.failures, answer)
