"""The flow of one slot, from its time to its record; the one place where the outcomes of a claim are answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from anarchon.attempt import Attempts, Grant
from anarchon.context import Context
from anarchon.errors import BackendError
from anarchon.job import Job, Overlap
from anarchon.notes import Notes
from anarchon.queue import SlotQueue
from anarchon.ticker import Due
from anarchon.types import SLOT, Claim, ClaimRequest, Outcome, RunKey, new_token
from anarchon.watch import Watch, Watched

__all__ = ["Runner"]

RETRY_FIRST_MS = 50
RETRY_MOST_MS = 1_000
MANUAL_PATIENCE_MS = 15_000

_log = logging.getLogger("anarchon.slot")


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the store said to one token, and the grant if it won."""

    claim: Claim
    grant: Grant | None = None
    error: BackendError | None = None


class Runner:
    """Claims slots, ended runs and manual runs, and hands what it wins to `attempts`.

    Claims of a job that refuses overlap are made one after the other on an instance (K11).
    """

    def __init__(
        self,
        context: Context,
        *,
        attempts: Attempts,
        watch: Watch,
        notes: Notes,
        put_back: Callable[[Due], None],
        info: Callable[[Job, int], str],
        disagrees: Callable[[Job, str, str], None],
    ) -> None:
        self._context = context
        self._store = context.store
        self._clock = context.clock
        self._attempts = attempts
        self._watch = watch
        self._notes = notes
        self._put_back = put_back
        self._info = info
        self._disagrees = disagrees
        self._queue = SlotQueue()
        self._turns: dict[str, asyncio.Lock] = {}
        self._stopped = asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Whether no new claims are made."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Make no new claims."""
        self._stopped.set()

    # -- the three ways in ------------------------------------------------------------------------------------------

    async def slot(self, due: Due) -> None:
        """Carry a slot of the schedule from its time to its record."""
        job, key = due.job, RunKey(due.job.name, due.slot_ms)
        self._context.tell("slot_due", key=key)
        async with self._turn(job):
            if self.stopping or key in self._attempts:
                return
            answer = await self._blocked_by_older(job, key) or await self._ask(job, key, self._window_ms(job, key))
        if answer.grant:
            await self._attempts.carry_out(answer.grant)
        elif not self.stopping:
            await self._refused(due, key, answer)

    async def take_over(self, watched: Watched) -> None:
        """Claim a run whose lease has ended or that was released (C12, C16)."""
        job, key = watched.job, watched.key
        async with self._turn(job):
            if self.stopping or key in self._attempts or self._watch.get(key) is not watched:
                self._watch.settle(watched, None)
                return
            answer = await self._ask(job, key, job.lease_ms, abandoned=watched.abandoned)
            self._seen(watched, answer)
        if answer.grant:
            await self._attempts.carry_out(answer.grant)

    async def catch_up(self, job: Job, slot_ms: int) -> None:
        """Claim a slot of the past with the catch-up window for `max_late`, and carry it out before the next one.

        An overlap means wait: the slot is asked for again until its window is over (K11).
        """
        patient = replace(job, max_late_ms=job.catch_up_window_ms)
        key = RunKey(job.name, slot_ms)
        due = Due(patient, slot_ms, self._store.time.now_ms())
        while not self.stopping and key not in self._attempts:
            async with self._turn(job):
                answer = await self._blocked_by_older(patient, key) or await self._ask(patient, key, job.lease_ms)
            if answer.grant:
                self._context.spawn(self._attempts.carry_out(answer.grant))
                await answer.grant.ended.wait()
                return
            if answer.claim.outcome is not Outcome.OVERLAP:
                await self._refused(due, key, answer)
                return
            self._watch_blocker(job, answer.claim)
            await self._clock.sleep_ms(max(job.heartbeat_ms / 2, RETRY_MOST_MS))

    async def manual(self, job: Job, key: RunKey, *, force: bool) -> tuple[Claim, Grant | None]:
        """Claim a run that somebody asked for; the caller hands the grant to `attempts`.

        Raises:
            BackendError: the store did not answer.
        """
        async with self._turn(job):
            answer = await self._ask(replace(job, overlap=Overlap.ALLOW) if force else job, key, MANUAL_PATIENCE_MS)
        if answer.error is not None:
            raise answer.error
        return answer.claim, answer.grant

    # -- asking -----------------------------------------------------------------------------------------------------

    def _turn(self, job: Job) -> asyncio.Lock:
        if not job.exclusive:
            return asyncio.Lock()
        return self._turns.setdefault(job.name, asyncio.Lock())

    def forget(self, name: str) -> None:
        """Drop what is kept about a removed job."""
        self._turns.pop(name, None)
        self._queue.drop(name)

    def _window_ms(self, job: Job, key: RunKey) -> float:
        return job.max_late_ms - (self._store.time.now_ms() - key.slot_ms)

    async def _blocked_by_older(self, job: Job, key: RunKey) -> _Answer | None:
        """Ask for every older watched run first; one that is alive or won by us makes the newer slot an overlap (K11)."""
        if not job.exclusive:
            return None
        for watched in self._watch.older(job.name, key.slot_ms):
            if watched.key in self._attempts:
                continue
            answer = await self._ask(job, watched.key, job.lease_ms, abandoned=watched.abandoned)
            self._seen(watched, answer)
            if answer.grant:
                self._context.spawn(self._attempts.carry_out(answer.grant))
            if answer.claim.outcome in {Outcome.WON, Outcome.RUNNING}:
                winner = self._context.instance if answer.grant else answer.claim.winner
                return _Answer(replace(answer.claim, outcome=Outcome.OVERLAP, other=watched.key, winner=winner))
        return None

    async def _ask(self, job: Job, key: RunKey, patience_ms: float, *, abandoned: bool = False) -> _Answer:
        """Claim under one token; an unknown answer is asked again with the same one for `patience_ms` (K2)."""
        if not self._store.limits.store_clock and not key.manual and self._window_ms(job, key) < 0:
            return _Answer(Claim(Outcome.LATE))  # C9
        await self._attempts.take_place()
        grant: Grant | None = None
        try:
            if self.stopping:
                return _Answer(Claim(Outcome.UNKNOWN))
            request = self._request(job, key, abandoned=abandoned)
            sent = self._clock.moment()  # K1: before the first send of this token
            answer = await self._ask_again(request, patience_ms)
            if answer.claim.other_info and request.info:
                self._disagrees(job, request.info, answer.claim.other_info)
            if answer.claim.won:
                grant = self._attempts.granted(job, key, request.token, answer.claim, sent=sent)
                return replace(answer, grant=grant)
            return answer
        finally:
            if grant is None:
                self._attempts.give_place()

    async def _ask_again(self, request: ClaimRequest, patience_ms: float) -> _Answer:
        sent = self._clock.moment()
        pause_ms = RETRY_FIRST_MS
        while True:
            try:
                return _Answer(await self._store.claim(request))
            except BackendError as error:
                waited_ms = self._clock.elapsed_ms(sent)
                if self.stopping or not self._store.limits.resolves_unknown or waited_ms + pause_ms > patience_ms:
                    _log.warning("%s: the claim of %d has no answer: %s", request.key.job, request.key.slot_ms, error)
                    return _Answer(Claim(Outcome.UNKNOWN), error=error)
            await self._clock.sleep_ms(pause_ms / 2 + self._clock.uniform_ms(pause_ms / 2))
            pause_ms = min(2 * pause_ms, RETRY_MOST_MS)

    def _request(self, job: Job, key: RunKey, *, abandoned: bool) -> ClaimRequest:
        return ClaimRequest(
            key=key,
            token=new_token(),
            instance=self._context.instance,
            attempt_limit=0 if abandoned else job.max_attempts,  # K12
            lease_ms=job.lease_ms,
            max_late_ms=job.max_late_ms,
            exclusive=job.exclusive,
            keep_ms=job.keep_ms,
            history_size=job.history_size,
            history_ttl_ms=job.history_ttl_ms,
            info=self._info(job, key.slot_ms),
        )

    # -- answers that are not a win ---------------------------------------------------------------------------------

    def _seen(self, watched: Watched, answer: _Answer) -> None:
        """Bring the watch of a run up to date with an answer about it."""
        match answer.claim.outcome:
            case Outcome.RUNNING:
                self._watch.settle(watched, answer.claim.left_ms)
            case Outcome.UNKNOWN:
                self._watch.settle(watched, None)
            case _:
                self._watch.drop(watched.key)

    async def _refused(self, due: Due, key: RunKey, answer: _Answer) -> None:
        job, claim = due.job, answer.claim
        match claim.outcome:
            case Outcome.EARLY:
                self._early(due, claim)
            case Outcome.RUNNING:
                self._watch.add(job, key, claim.left_ms)
            case Outcome.LATE:
                await self._late(job, key)
            case Outcome.PAUSED:
                await self._notes.skipped(job, key, "the job is paused")
            case Outcome.OVERLAP:
                await self._overlap(job, key, claim)
            case Outcome.UNKNOWN:
                await self._unknown(job, key, answer.error)
            case _:
                _log.debug("%s: slot %d is %s", job.name, key.slot_ms, claim.outcome)

    def _early(self, due: Due, claim: Claim) -> None:
        """Wait for the store's clock; the drawn jitter is kept, since `at_ms` is a time of the store."""
        at_ms = max(due.at_ms, self._store.time.now_ms() + 1)
        if claim.wait_ms is not None and claim.store_now_ms is None:
            at_ms = max(at_ms, self._store.time.now_ms() + claim.wait_ms)
        self._put_back(replace(due, at_ms=at_ms))

    async def _late(self, job: Job, key: RunKey) -> None:
        late_s = (self._store.time.now_ms() - key.slot_ms) / 1000
        if self._store.lease is None and await self._stands_in_history(key):
            return
        await self._notes.missed(job, key, f"claimed {late_s:.1f} s after its time, over max_late={job.max_late_ms / 1000:g} s")

    async def _overlap(self, job: Job, key: RunKey, claim: Claim) -> None:
        self._watch_blocker(job, claim)
        refused: int | None = key.slot_ms
        if job.overlap is Overlap.QUEUE:
            refused = self._queue.keep(job.name, key.slot_ms)
        if refused is None:
            return
        blocker = claim.other
        by = f" of {claim.winner}" if claim.winner else ""
        which = f"the run of slot {blocker.slot_ms}{by}" if blocker else "an earlier run"
        queued = ", and another slot is queued" if job.overlap is Overlap.QUEUE else ""
        reason = f"overlap: {which} was still running{queued}"
        self._context.spawn(self._note_overlap(job, replace(key, slot_ms=refused), reason))

    async def _note_overlap(self, job: Job, key: RunKey, reason: str) -> None:
        """Note a refused slot once the fleet's jitter is over: until then another instance may find the job free."""
        wait_ms = key.slot_ms + job.jitter_most_ms - self._store.time.now_ms()
        await self._clock.wait(self._stopped, wait_ms)
        if wait_ms > 0 and self._store.lease is not None:
            try:
                if (await self._store.check([key]))[0] is not None:
                    return
            except BackendError as error:
                _log.debug("%s: slot %d could not be looked at before its note: %s", job.name, key.slot_ms, error)
        await self._notes.skipped(job, key, reason)

    def _watch_blocker(self, job: Job, claim: Claim) -> None:
        blocker = claim.other
        if blocker is not None and blocker not in self._attempts:
            self._watch.add(job, blocker, claim.left_ms)  # K12

    # -- a queued slot ----------------------------------------------------------------------------------------------

    def blocker_ended(self, job: Job) -> None:
        """Claim the queued slot of a job, if there is one, now that a run of the job has ended."""
        if self._queue.get(job.name) is not None and not self.stopping:
            self._context.spawn(self._queued(job))

    async def _queued(self, job: Job) -> None:
        patient = replace(job, max_late_ms=job.catch_up_window_ms)
        async with self._turn(job):
            slot_ms = self._queue.get(job.name)
            if slot_ms is None or self.stopping:
                return
            key = RunKey(job.name, slot_ms)
            if await self._overtaken(key):
                self._queue.drop(job.name)
                await self._notes.skipped(job, key, "overlap: while it was queued, a run of a newer slot started")
                return
            answer = await self._blocked_by_older(patient, key) or await self._ask(patient, key, job.lease_ms)
            if answer.claim.outcome is Outcome.OVERLAP:  # K11: wait, never drop
                self._watch_blocker(job, answer.claim)
                return
            self._queue.drop(job.name)
        if answer.grant:
            await self._attempts.carry_out(answer.grant)
        else:
            await self._refused(Due(patient, slot_ms, self._store.time.now_ms()), key, answer)

    async def _overtaken(self, key: RunKey) -> bool:
        try:
            records = await self._store.history(key.job, limit=50, since_ms=key.slot_ms + 1)
        except BackendError:
            return False
        return any(record.space == SLOT for record in records)

    async def _unknown(self, job: Job, key: RunKey, error: BackendError | None) -> None:
        """After the late window: see what became of the slot; note it only if nothing did (K2)."""
        reason = f"the store gave no answer: {error}"
        if self._store.lease is None:
            await self._notes.skipped(job, key, reason)
            return
        try:
            view = (await self._store.check([key]))[0]
        except BackendError:
            self._watch.add(job, key, None)
            return
        if view is None:
            await self._notes.missed(job, key, reason)
        elif not view.status.final:
            self._watch.add(job, key, view.left_ms)

    async def _stands_in_history(self, key: RunKey) -> bool:
        try:
            records = await self._store.history(key.job, limit=100, since_ms=key.slot_ms)
        except BackendError:
            return False
        return any(record.key == key for record in records)
