"""The flow of one slot, from its time to its record; the one place where the outcomes of a claim are answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from anarchon.attempt import Attempts, Grant
from anarchon.claiming import Answer, Claims
from anarchon.context import Context
from anarchon.errors import BackendError
from anarchon.job import Job, Overlap
from anarchon.notes import Notes
from anarchon.queue import SlotQueue
from anarchon.ticker import Due
from anarchon.types import SLOT, Claim, Outcome, RunKey
from anarchon.watch import Watch, Watched

__all__ = ["Runner"]

WAIT_LEAST_MS = 1_000
MANUAL_PATIENCE_MS = 15_000

_log = logging.getLogger("anarchon.slot")


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
        claims: Claims,
        put_back: Callable[[Due], None],
    ) -> None:
        self._context = context
        self._store = context.store
        self._clock = context.clock
        self._attempts = attempts
        self._watch = watch
        self._notes = notes
        self._put_back = put_back
        self._claims = claims
        self._queue = SlotQueue()
        self._turns: dict[str, asyncio.Lock] = {}
        self._stopped = asyncio.Event()
        self.doubted: set[str] = set()
        """Jobs with a slot of which nobody here knows whether it was claimed: the store could not be asked (K13)."""

    @property
    def stopping(self) -> bool:
        """Whether no new claims are made."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Make no new claims."""
        self._stopped.set()
        self._claims.stopping = True

    # -- the three ways in ------------------------------------------------------------------------------------------

    async def slot(self, due: Due) -> None:
        """Carry a slot of the schedule from its time to its record."""
        job, key = due.job, RunKey(due.job.name, due.slot_ms)
        self._context.tell("slot_due", key=key)
        async with self._turn(job):
            if self.stopping or key in self._attempts:
                return
            answer = await self._blocked_by_older(job, key) or await self._claims.ask(job, key, self._claims.window_ms(job, key))
        if answer.grant:
            await self._attempts.carry_out(answer.grant)
        elif not self.stopping:
            await self._refused(due, key, answer)

    async def take_over(self, watched: Watched) -> None:
        """Claim a run whose lease has ended or that was released (C12, C16)."""
        job, key = watched.job, watched.key
        async with self._turn(job):
            if self.stopping or replace(key, job=job.name) in self._attempts or self._watch.get(key) is not watched:
                self._watch.settle(watched, None)
                return
            answer = await self._claims.ask(job, key, job.lease_ms, abandoned=watched.abandoned)
            if answer.claim.outcome is Outcome.DONE and answer.key != key:
                # Done under an earlier name, and its runner died before it wrote that here: nothing is run again.
                answer = await self._claims.ask(replace(job, was=()), key, job.lease_ms, abandoned=True)
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
                answer = await self._blocked_by_older(patient, key) or await self._claims.ask(patient, key, job.lease_ms)
            if answer.grant:
                self._context.spawn(self._attempts.carry_out(answer.grant))
                await answer.grant.ended.wait()
                return
            if answer.claim.outcome is not Outcome.OVERLAP:
                await self._refused(due, key, answer)
                return
            self._watch_blocker(job, answer.claim)
            await self._clock.sleep_ms(max(job.heartbeat_ms / 2, WAIT_LEAST_MS))

    async def manual(self, job: Job, key: RunKey, *, force: bool) -> tuple[Claim, Grant | None]:
        """Claim a run that somebody asked for; the caller hands the grant to `attempts`.

        Raises:
            BackendError: the store did not answer.
        """
        async with self._turn(job):
            answer = await self._claims.ask(replace(job, overlap=Overlap.ALLOW) if force else job, key, MANUAL_PATIENCE_MS)
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
        self.doubted.discard(name)
        self._queue.drop(name)

    async def _blocked_by_older(self, job: Job, key: RunKey) -> Answer | None:
        """Ask for every older watched run first; one that is alive or won by us makes the newer slot an overlap (K11)."""
        if not job.exclusive:
            return None
        for watched in self._watch.older(job.names, key.slot_ms):
            if replace(watched.key, job=job.name) in self._attempts:
                continue
            answer = await self._claims.ask(job, watched.key, job.lease_ms, abandoned=watched.abandoned)
            self._seen(watched, answer)
            if answer.grant:
                self._context.spawn(self._attempts.carry_out(answer.grant))
            if answer.claim.outcome in {Outcome.WON, Outcome.RUNNING}:
                winner = self._context.instance if answer.grant else answer.claim.winner
                return Answer(replace(answer.claim, outcome=Outcome.OVERLAP, other=watched.key, winner=winner), key)
        return None

    # -- answers that are not a win ---------------------------------------------------------------------------------

    def _seen(self, watched: Watched, answer: Answer) -> None:
        """Bring the watch of a run up to date with an answer about it."""
        match answer.claim.outcome:
            case Outcome.RUNNING if answer.key == watched.key:
                self._watch.settle(watched, answer.claim.left_ms)
            case Outcome.RUNNING | Outcome.UNKNOWN:
                self._watch.settle(watched, None)
            case _:
                self._watch.drop(watched.key)

    async def _refused(self, due: Due, key: RunKey, answer: Answer) -> None:
        job, claim = due.job, answer.claim
        match claim.outcome:
            case Outcome.EARLY:
                self._early(due, claim)
            case Outcome.RUNNING:
                self._watch.add(job, answer.key, claim.left_ms)
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
            answer = await self._blocked_by_older(patient, key) or await self._claims.ask(patient, key, job.lease_ms)
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
            self.doubted.add(job.name)
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
