"""Asking the store for a run: one token a claim, the same token again when the answer is lost, every name of a job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from anarchon.attempt import Attempts, Grant
from anarchon.clock import Moment
from anarchon.context import Context
from anarchon.errors import BackendError
from anarchon.job import Job
from anarchon.lease import Held
from anarchon.types import Claim, ClaimRequest, Outcome, RunKey, RunResult, RunStatus, new_token

__all__ = ["Answer", "Claims"]

RETRY_FIRST_MS = 50
RETRY_MOST_MS = 1_000
STOPPING_CALLS = 2

_log = logging.getLogger("anarchon.slot")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the store said about a run, and the grant if it was won. `key` is the run that decided: of a renamed job it
    may be the one under an earlier name."""

    claim: Claim
    key: RunKey
    grant: Grant | None = None
    error: BackendError | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """One claim: its token, the moment before it was first sent (K1), and the answer."""

    key: RunKey
    token: str
    sent: Moment
    claim: Claim
    error: BackendError | None = None


class Claims:
    """Claims runs; each claim occupies one of the instance's places from the first send to the handler's end."""

    def __init__(
        self,
        context: Context,
        attempts: Attempts,
        *,
        info: Callable[[Job, int], str],
        disagrees: Callable[[Job, str, str], None],
    ) -> None:
        self._context = context
        self._store = context.store
        self._clock = context.clock
        self._attempts = attempts
        self._info = info
        self._disagrees = disagrees
        self.stopping = False

    def window_ms(self, job: Job, key: RunKey) -> float:
        """Return how long a first claim of a slot may still come."""
        return job.max_late_ms - (self._store.time.now_ms() - key.slot_ms)

    async def ask(self, job: Job, key: RunKey, patience_ms: float, *, abandoned: bool = False) -> Answer:
        """Claim a run; an unknown answer is asked for again for `patience_ms` (K2). `abandoned` allows no attempt (K12).

        A renamed job is claimed under each of its names, oldest first, and won only if all are. Cancelling the wait does
        not stop the claim: what it wins is carried out, or handed over by an instance that stops (K6).
        """
        asking = asyncio.get_running_loop().create_task(self._ask(job, key, patience_ms, abandoned=abandoned))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            self._context.spawn(self._see_to(asking))
            raise

    async def _see_to(self, asking: asyncio.Task[Answer]) -> None:
        answer = await asking
        if answer.grant is not None:
            await self._attempts.carry_out(answer.grant)

    async def _ask(self, job: Job, key: RunKey, patience_ms: float, *, abandoned: bool) -> Answer:
        if not self._store.limits.store_clock and not key.manual and self.window_ms(job, key) < 0:
            return Answer(Claim(Outcome.LATE), key)  # C9
        await self._attempts.take_place()
        grant: Grant | None = None
        held: list[Held] = []
        reply = Answer(Claim(Outcome.UNKNOWN), key)
        try:
            if self.stopping:
                return reply
            for each in self._names(job, key):
                asked = await self._one(job, each, patience_ms, abandoned=abandoned)
                reply = Answer(asked.claim, each, error=asked.error)
                if not asked.claim.won:
                    return reply
                if each.job == job.name or key.manual:
                    grant = self._attempts.granted(job, each, asked.token, asked.claim, sent=asked.sent, also=tuple(held))
                else:
                    held.append(self._attempts.hold(job, each, asked.token, asked.claim, sent=asked.sent))
            return replace(reply, grant=grant)
        finally:
            if grant is None:
                self._attempts.give_place()
                for old in held:
                    await self._give_up(old, reply)

    def _names(self, job: Job, key: RunKey) -> list[RunKey]:
        if key.manual or not job.was:
            return [key]
        return [replace(key, job=name) for name in job.names]

    async def _give_up(self, held: Held, reply: Answer) -> None:
        """Let go of a run won under an earlier name, because the run under the present name was not won."""
        self._attempts.let_go(held)
        key, token = held.run.key, held.run.token
        try:
            if reply.claim.outcome is Outcome.UNKNOWN:
                await self._store.release(key, token)
            else:
                result = RunResult(RunStatus.SKIPPED, f"renamed to {reply.key.job}: {reply.claim.outcome} there")
                await self._store.finish(key, token, result)
        except BackendError as error:
            _log.warning("%s: slot %d could not be given up: %s", key.job, key.slot_ms, error)

    async def _one(self, job: Job, key: RunKey, patience_ms: float, *, abandoned: bool) -> _Asked:
        request = self._request(job, key, abandoned=abandoned)
        sent = self._clock.moment()  # K1: before the first send of this token
        pause_ms = RETRY_FIRST_MS
        while True:
            try:
                claim = await self._store.claim(request)
            except BackendError as error:
                # K6: what may have been won must not be left behind by an instance that stops.
                limit_ms = min(patience_ms, STOPPING_CALLS * self._store.limits.call_timeout_ms) if self.stopping else patience_ms
                waited_ms = self._clock.elapsed_ms(sent)
                if not self._store.limits.resolves_unknown or waited_ms + pause_ms > limit_ms:
                    _log.warning("%s: the claim of %d has no answer: %s", key.job, key.slot_ms, error)
                    return _Asked(key, request.token, sent, Claim(Outcome.UNKNOWN), error)
            else:
                if claim.other_info and request.info:
                    self._disagrees(job, request.info, claim.other_info)
                return _Asked(key, request.token, sent, claim)
            await self._clock.sleep_ms(pause_ms / 2 + self._clock.uniform_ms(pause_ms / 2))
            pause_ms = min(2 * pause_ms, RETRY_MOST_MS)

    def _request(self, job: Job, key: RunKey, *, abandoned: bool) -> ClaimRequest:
        return ClaimRequest(
            key=key,
            token=new_token(),
            instance=self._context.instance,
            attempt_limit=0 if abandoned else job.max_attempts,
            lease_ms=job.lease_ms,
            max_late_ms=job.max_late_ms,
            exclusive=job.exclusive,
            keep_ms=job.keep_ms,
            history_size=job.history_size,
            history_ttl_ms=job.history_ttl_ms,
            info=self._info(job, key.slot_ms),
        )
