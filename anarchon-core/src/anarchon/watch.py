"""Runs that others hold: looked at once a heartbeat, taken over when their lease has ended (C12, K11, K12)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anarchon.clock import Moment
from anarchon.context import Context
from anarchon.errors import BackendError
from anarchon.job import Job
from anarchon.types import CLAIM_MANY_MAX, RunKey, RunView

__all__ = ["Watch", "Watched"]

WATCHED_MAX = 1_000
"""The most runs of one job that an instance watches (K9)."""
ABANDONED_MS = 86_400_000
"""A run whose lease ended longer ago than this is not run any more but marked interrupted (K12)."""
RECOVER_CHUNK = 1_000
IDLE_MS = 10_000

_log = logging.getLogger("anarchon.watch")


@dataclass(slots=True, eq=False)
class Watched:
    """A run under watch. `claiming` while this instance is asking for it."""

    job: Job
    key: RunKey
    next_ms: float
    claiming: bool = False
    abandoned: bool = False


class Watch:
    """Every run of this instance's jobs that somebody else holds or left behind.

    `take` starts a claim of a run whose lease has ended; it must call `settle` or `drop` when it knows more. `ended` is
    told about each watched run that came to its end. `runs_here` says whether this instance runs a job just now, `holds`
    whether it holds a run.
    """

    def __init__(
        self,
        context: Context,
        *,
        take: Callable[[Watched], None],
        ended: Callable[[RunKey], None],
        find_job: Callable[[str], Job | None],
        runs_here: Callable[[str], bool],
        holds: Callable[[RunKey], bool],
    ) -> None:
        self._store = context.store
        self._clock = context.clock
        self._take = take
        self._ended = ended
        self._find_job = find_job
        self._runs_here = runs_here
        self._holds = holds
        self._watched: dict[RunKey, Watched] = {}
        self._by_job: dict[str, set[RunKey]] = {}
        self._wake = asyncio.Event()
        self._recovered: Moment | None = None

    def __len__(self) -> int:
        return len(self._watched)

    def get(self, key: RunKey) -> Watched | None:
        """Return a watched run, or None."""
        return self._watched.get(key)

    def older(self, names: Sequence[str], slot_ms: int) -> list[Watched]:
        """Return the watched runs of a job, under all its names, that are older than a slot, oldest first (K11)."""
        keys = [key for name in names for key in self._by_job.get(name, ()) if key.slot_ms < slot_ms]
        keys.sort(key=lambda key: key.slot_ms)
        return [self._watched[key] for key in keys]

    def add(self, job: Job, key: RunKey, left_ms: float | None) -> Watched | None:
        """Watch a run; `left_ms` is how long it is taken at least. Beyond the limit of a job nothing is added (K9)."""
        if self._store.lease is None or key.note:
            return None
        known = self._watched.get(key)
        if known is None:
            keys = self._by_job.setdefault(key.job, set())
            if len(keys) >= WATCHED_MAX:
                _log.warning("%s: %d unfinished runs are watched already; %s is left to others", key.job, len(keys), key)
                return None
            keys.add(key)
            known = self._watched[key] = Watched(job, key, 0)
        self.settle(known, left_ms)
        return known

    def settle(self, watched: Watched, left_ms: float | None) -> None:
        """Look at a run again when its lease may have ended, but at least once a heartbeat (a hand-over has no end)."""
        watched.claiming = False
        beat_ms = watched.job.heartbeat_ms
        wait_ms = beat_ms if left_ms is None else min(beat_ms, max(left_ms + 1, 0))
        watched.next_ms = self._clock.monotonic_ms() + wait_ms
        self._wake.set()

    def drop(self, key: RunKey) -> None:
        """Stop watching a run."""
        if self._watched.pop(key, None) is not None:
            keys = self._by_job[key.job]
            keys.discard(key)
            if not keys:
                del self._by_job[key.job]
            self._ended(key)

    def drop_job(self, name: str) -> None:
        """Stop watching every run of a job."""
        for key in list(self._by_job.get(name, ())):
            self.drop(key)

    def wake(self) -> None:
        """Look again now."""
        self._wake.set()

    async def serve(self, stopped: Callable[[], bool]) -> None:
        """Look at what is due until `stopped`."""
        while not stopped():
            self._wake.clear()
            now_ms = self._clock.monotonic_ms()
            # What is due within a tenth of its heartbeat rides along: many runs cost one query a heartbeat.
            first = [item for item in self._watched.values() if item.next_ms <= now_ms and not item.claiming]
            if first:
                due = [i for i in self._watched.values() if i.next_ms <= now_ms + i.job.heartbeat_ms / 10 and not i.claiming]
                for start in range(0, len(due), CLAIM_MANY_MAX):
                    await self._look(due[start : start + CLAIM_MANY_MAX])
            times = [item.next_ms for item in self._watched.values() if not item.claiming]
            wait_ms = min([IDLE_MS, *(at_ms - self._clock.monotonic_ms() for at_ms in times)])
            await self._clock.wait(self._wake, wait_ms)

    async def _look(self, batch: list[Watched]) -> None:
        try:
            views = await self._store.check([item.key for item in batch])
        except BackendError:
            for item in batch:
                self.settle(item, None)
            return
        for item, view in zip(batch, views, strict=True):
            if self._watched.get(item.key) is item and not item.claiming:
                self._judge(item, view)

    def _judge(self, item: Watched, view: RunView | None) -> None:
        if view is None or view.status.final:
            self.drop(item.key)
        elif view.left_ms > 0:
            self.settle(item, view.left_ms)
        else:
            item.abandoned = view.left_ms < -ABANDONED_MS
            self._claim(item)

    def _claim(self, item: Watched) -> None:
        if item.job.exclusive:  # K11: one ended run at a time, the oldest first
            name = item.key.job
            keys = self._by_job[name]
            oldest = min(keys, key=lambda key: key.slot_ms)
            if oldest != item.key or self._runs_here(name) or any(self._watched[key].claiming for key in keys):
                self.settle(item, None)
                return
        item.claiming = True
        self._take(item)

    def recovery_is_due(self, lease_ms: int) -> bool:
        """Whether the last look for unfinished runs is over a lease ago (K12)."""
        return self._recovered is None or self._clock.elapsed_ms(self._recovered) > lease_ms

    async def recover(self, names: Sequence[str]) -> None:
        """Find every unfinished run under these names and watch it; what has ended is claimed at once (K12).

        Raises:
            BackendError: the store did not answer; nothing was recovered.
        """
        if self._store.lease is None or not names:
            return
        before, self._recovered = self._recovered, self._clock.moment()
        try:
            for start in range(0, len(names), RECOVER_CHUNK):
                for view in await self._store.unfinished(names[start : start + RECOVER_CHUNK]):
                    self._found(view)
        except BackendError:
            self._recovered = before
            raise

    def _found(self, view: RunView) -> None:
        job = self._find_job(view.key.job)
        if job is None or self._watched.get(view.key) is not None or self._holds(view.key):
            return  # K8: a run of this instance's own is renewed, which is enough
        item = self.add(job, view.key, max(view.left_ms, 0))
        if item is not None and view.left_ms <= 0:
            item.abandoned = view.left_ms < -ABANDONED_MS
            self._claim(item)
