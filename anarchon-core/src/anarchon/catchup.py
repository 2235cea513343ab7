"""Slots that passed while no instance looked: claimed where the job wants it, noted as missed where not (K13).

`plan` decides, purely; `CatchUpSweeper` asks the store what is accounted for and carries the plan out in the background,
one job after the other, so that a thousand jobs after a long night flood nothing (K9).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from anarchon.context import Context
from anarchon.errors import BackendError
from anarchon.job import CatchUp, Job
from anarchon.notes import Notes
from anarchon.schedule import Schedule
from anarchon.ticker import Due
from anarchon.types import NOTE, SLOT, JobView, RunKey, RunRecord

__all__ = ["CatchUpSweeper", "Plan", "newest_slot", "plan", "slots_between"]

WINDOW_FIRST_MS = 1_000
SLOTS_MAX = 100_000
NOTES_MAX = 100
"""The most missed slots of a job that one sweep writes down; the log says how many there were."""
SETTLE_MS = 1_000
HISTORY_MAX = 20_000

_log = logging.getLogger("anarchon.catchup")


def newest_slot(schedule: Schedule, since_ms: int, until_ms: int) -> int | None:
    """Return the newest slot in [since_ms, until_ms], or None. Widens a window backwards, so it never scans far."""
    span_ms = WINDOW_FIRST_MS
    while True:
        after_ms = max(since_ms - 1, until_ms - span_ms)
        found = schedule.next_after(after_ms)
        if found is not None and found <= until_ms:
            break
        if after_ms < since_ms:
            return None
        span_ms *= 4
    for _ in range(SLOTS_MAX):
        later = schedule.next_after(found)
        if later is None or later > until_ms:
            break
        found = later
    return found


def slots_between(schedule: Schedule, after_ms: int, until_ms: int, *, most: int) -> tuple[list[int], int]:
    """Return the newest `most` slots in (after_ms, until_ms], oldest first, and how many older ones there are.

    The span is walked backwards in pieces, so that a job that runs every second is not walked for years; the count of
    the older ones ends at `SLOTS_MAX`.
    """
    found: list[int] = []
    span_ms, end_ms = WINDOW_FIRST_MS, until_ms
    while end_ms > after_ms and len(found) <= SLOTS_MAX:
        start_ms = max(after_ms, end_ms - span_ms)
        piece: list[int] = []
        slot_ms = schedule.next_after(start_ms)
        while slot_ms is not None and slot_ms <= end_ms and len(piece) <= SLOTS_MAX:
            piece.append(slot_ms)
            slot_ms = schedule.next_after(slot_ms)
        found[:0] = piece
        end_ms, span_ms = start_ms, span_ms * 4
    return found[-most:], max(0, len(found) - most)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about the slots that passed. `later` are still within their late window and looked at once more."""

    claim: tuple[int, ...] = ()
    missed: tuple[int, ...] = ()
    later: tuple[int, ...] = ()


def plan(job: Job, slots: Iterable[int], accounted: frozenset[int], now_ms: int) -> Plan:
    """Decide about passed slots, oldest first, of which `accounted` have a run or a note.

    `none` claims nothing here (the newest slot within `max_late` is claimed at once at start), `latest` the newest open
    slot, `all` the newest `catch_up_limit`. What is not claimed is missed once no claim of it can come in time any more.
    """
    most = {CatchUp.NONE: 0, CatchUp.LATEST: 1, CatchUp.ALL: job.catch_up_limit}[job.catch_up]
    open_slots = [slot for slot in slots if slot not in accounted]
    rest = open_slots[: max(0, len(open_slots) - most)]
    over_ms = now_ms - job.jitter_most_ms - job.max_late_ms - job.clock_allowance_ms - SETTLE_MS
    if most:
        return Plan(claim=tuple(open_slots[-most:]), missed=tuple(rest))
    return Plan(missed=tuple(s for s in rest if s < over_ms), later=tuple(s for s in rest if s >= over_ms))


class CatchUpSweeper:
    """Looks, for one job after the other, at what passed unseen.

    `claim` claims one passed slot and returns when its run has ended or cannot begin: catch-up is one run at a time.
    """

    def __init__(self, context: Context, notes: Notes, claim: Callable[[Job, int], Awaitable[None]]) -> None:
        self._context = context
        self._store = context.store
        self._notes = notes
        self._claim = claim
        self._busy: set[str] = set()
        self._again: set[str] = set()

    async def newest(self, jobs: list[Job], now_ms: float) -> list[Due]:
        """Return, for each job without catch-up that the store knows, the newest slot that may still be claimed.

        A job that the store has never seen does not look back: its first slot is a coming one.
        """
        found: list[Due] = []
        asked: dict[tuple[str, int], int | None] = {}  # jobs of one schedule and window share one evaluation
        for job in jobs:
            which = (job.schedule.digest, job.max_late_ms)
            if job.catch_up is CatchUp.NONE and which not in asked:
                asked[which] = self._newest(job, int(now_ms))
            slot_ms = asked[which] if job.catch_up is CatchUp.NONE else None
            if slot_ms is not None:
                found.append(Due(job, slot_ms, now_ms))
        if not found:
            return []
        known = await self._known([due.job for due in found])
        return [due for due in found if due.job.name in known]

    def _newest(self, job: Job, now_ms: int) -> int | None:
        try:
            return newest_slot(job.schedule, now_ms - job.max_late_ms, now_ms)
        except Exception:  # border: handler - the user's own schedule; the ticker tells about it (K5)
            return None

    async def _known(self, jobs: list[Job]) -> set[str]:
        views = await self._views()
        if views is not None:
            return {job.name for job in jobs if _merged(job, views) is not None}
        return {job.name for job in jobs if await self._store.history(job.name, limit=1)}

    async def sweep_all(self, jobs: list[Job]) -> None:
        """Look at every job that the store knows, in the background of the start."""
        try:
            views = await self._views()
        except BackendError as error:
            _log.warning("passed slots could not be looked for: %s", error)
            return
        for job in jobs:
            view = _merged(job, views)
            if views is None or view is not None:
                await self._sweep(job, view)

    async def sweep(self, job: Job) -> bool:
        """Look at one job, after a time in which this instance could not look; return whether it was looked at."""
        try:
            views = await self._views()
        except BackendError as error:
            _log.warning("%s: passed slots could not be looked for: %s", job.name, error)
            return False
        return await self._sweep(job, _merged(job, views))

    async def _views(self) -> dict[str, JobView] | None:
        if self._store.lease is None:
            return None
        return {view.job: view for view in await self._store.jobs()}

    async def _sweep(self, job: Job, view: JobView | None) -> bool:
        """Find the open slots of a job and deal with them; at most one sweep of a job at a time."""
        if job.name in self._busy:
            self._again.add(job.name)
            return True
        self._busy.add(job.name)
        try:
            decided = await self._deal_with(job, view)
            while job.name in self._again:  # K13: more passed meanwhile, for a catch-up takes its time
                self._again.discard(job.name)
                decided = await self._deal_with(job, _merged(job, await self._views()))
        except BackendError as error:
            _log.warning("%s: passed slots could not be looked for: %s", job.name, error)
            return False
        finally:
            self._busy.discard(job.name)
            self._again.discard(job.name)
        if decided.later:
            self._context.spawn_idle(self._look_again(job, view, decided.later[-1]))
        return True

    async def _deal_with(self, job: Job, view: JobView | None) -> Plan:
        decided = await self._decide(job, view)
        await self._note(job, decided.missed)
        for slot_ms in decided.claim:
            await self._claim(job, slot_ms)
        return decided

    async def _look_again(self, job: Job, view: JobView | None, newest_ms: int) -> None:
        """Note what was still within its late window, once that is over."""
        window_ms = job.jitter_most_ms + job.max_late_ms + job.clock_allowance_ms + 2 * SETTLE_MS
        await self._context.clock.sleep_ms(newest_ms + window_ms - self._store.time.now_ms())
        try:
            decided = await self._decide(job, view)
        except BackendError as error:
            _log.warning("%s: passed slots could not be looked for: %s", job.name, error)
            return
        await self._note(job, tuple(slot for slot in decided.missed if slot <= newest_ms))

    async def _decide(self, job: Job, view: JobView | None) -> Plan:
        now_ms = int(self._store.time.now_ms())
        since_ms = now_ms - job.catch_up_window_ms
        if view is not None:
            since_ms = max(since_ms, view.first_ms, view.resumed_ms or 0, view.floor_ms or 0)
        records: list[RunRecord] = []
        for name in job.names:  # a renamed job may have run under its earlier name
            records += await self._store.history(name, limit=HISTORY_MAX, since_ms=since_ms)
        if view is None:
            if not records:
                return Plan()
            since_ms = max(since_ms, min(record.slot_ms for record in records))
        accounted = frozenset(record.slot_ms for record in records if record.space in {SLOT, NOTE})
        most = max(job.catch_up_limit, NOTES_MAX)
        slots, older = self._slots(job, since_ms, now_ms, most)
        if older:
            _log.warning("%s: %d slots passed while nobody looked; the newest %d are dealt with", job.name, most + older, most)
        return plan(job, slots, accounted, now_ms)

    def _slots(self, job: Job, since_ms: int, now_ms: int, most: int) -> tuple[list[int], int]:
        try:
            return slots_between(job.schedule, since_ms, now_ms, most=most)
        except Exception:  # border: handler - the user's own schedule; the ticker tells about it (K5)
            return [], 0

    async def _note(self, job: Job, slots: tuple[int, ...]) -> None:
        for slot_ms in slots[-NOTES_MAX:]:
            await self._notes.missed(job, RunKey(job.name, slot_ms), "no instance claimed it in time")


def _merged(job: Job, views: dict[str, JobView] | None) -> JobView | None:
    """Return what the store knows of a job under all its names, or None if it has seen none of them."""
    seen = [views[name] for name in job.names if name in views] if views is not None else []
    if not seen:
        return None
    return JobView(
        job.name,
        first_ms=min(view.first_ms for view in seen),
        resumed_ms=max(view.resumed_ms or 0 for view in seen) or None,
        floor_ms=max(view.floor_ms or 0 for view in seen) or None,
    )
