"""Slots that passed while no instance looked: found at start, claimed oldest first."""

from __future__ import annotations

from collections.abc import Iterable

from anarchon.errors import BackendError
from anarchon.job import Job
from anarchon.schedule import Schedule
from anarchon.store import Store
from anarchon.ticker import Due

__all__ = ["newest_slot", "slots_passed"]

WINDOW_FIRST_MS = 1_000
SLOTS_MAX = 100_000


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


async def slots_passed(store: Store, jobs: Iterable[Job], now_ms: float) -> list[Due]:
    """Return, for each job that the store knows, the newest slot that may still be claimed.

    A job that the store has never seen does not look back: its first slot is a coming one.
    """
    candidates: list[Due] = []
    newest: dict[tuple[str, int], int | None] = {}
    for job in jobs:
        place = (job.schedule.digest, job.max_late_ms)
        if place not in newest:
            try:
                newest[place] = newest_slot(job.schedule, int(now_ms) - job.max_late_ms, int(now_ms))
            except Exception:  # border: handler - the user's own schedule; the ticker tells about it (K5)
                newest[place] = None
        slot_ms = newest[place]
        if slot_ms is not None:
            candidates.append(Due(job, slot_ms, now_ms))
    known = await _known(store, [due.job for due in candidates])
    return [due for due in candidates if due.job.name in known]


async def _known(store: Store, jobs: list[Job]) -> set[str]:
    if not jobs:
        return set()
    try:
        if store.lease is not None:
            return {view.job for view in await store.jobs()}
        return {job.name for job in jobs if await store.history(job.name, limit=1)}
    except BackendError:
        return set()
