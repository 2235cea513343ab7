"""Which slots are due. Pure given the time: no clock, no store, no tasks.

Jobs with equal schedules share one evaluation per slot, so that a hundred thousand jobs over a few hundred schedules
cost a few hundred heap entries.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from anarchon.job import Job
from anarchon.schedule import Schedule

__all__ = ["Due", "Gap", "Ticker"]

SLOTS_PER_POP_MAX = 100_000
"""The most slots of one schedule that one `pop` yields; the next one goes on."""
STALE_LEAST = 100
"""From this many heap entries on, the ones of removed schedules are cleared away when they outnumber the others."""


@dataclass(frozen=True, slots=True)
class Due:
    """A slot of a job, to be claimed at `at_ms`: the slot's time and the jitter drawn for it."""

    job: Job
    slot_ms: int
    at_ms: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Slots of a job that passed unseen (suspend, a stopped process, a clock step): those in (after_ms, until_ms]."""

    job: Job
    after_ms: int
    until_ms: int


@dataclass(slots=True)
class _Group:
    schedule: Schedule
    next_ms: int | None
    jobs: dict[str, Job] = field(default_factory=dict)

    @property
    def horizon_ms(self) -> int:
        return max(job.max_late_ms for job in self.jobs.values())


class Ticker:
    """One heap for all schedules, one for the slots that wait for their jitter.

    `draw` returns a random duration up to its argument. `fail` is told about a schedule that raises (K5).
    """

    def __init__(self, draw: Callable[[float], float], fail: Callable[[Job, Exception], None]) -> None:
        self._draw = draw
        self._fail = fail
        self._order = count()
        self._groups: dict[str, _Group] = {}
        self._jobs: dict[str, str] = {}
        self._heap: list[tuple[int, int, _Group]] = []
        self._waiting: list[tuple[float, int, Due]] = []

    def add(self, job: Job, now_ms: float) -> None:
        """Take in a job: its first slot is the next one after `now_ms`."""
        digest = job.schedule.digest
        group = self._groups.get(digest)
        if group is None:
            group = self._groups[digest] = _Group(job.schedule, None)
            group.jobs[job.name] = job
            self._push(group, self._next(group, int(now_ms)))
        group.jobs[job.name] = job
        self._jobs[job.name] = digest

    def remove(self, name: str) -> None:
        """Drop a job; slots of it that wait for their jitter are dropped too."""
        digest = self._jobs.pop(name, None)
        if digest is None:
            return
        group = self._groups[digest]
        group.jobs.pop(name, None)
        if not group.jobs:
            del self._groups[digest]
            if len(self._heap) > max(STALE_LEAST, 2 * len(self._groups)):  # K9: jobs may come and go for ever
                self._heap = [entry for entry in self._heap if self._current(entry)]
                heapq.heapify(self._heap)

    def next_ms(self) -> float | None:
        """Return when `pop` will have something to say, or None."""
        while self._heap and not self._current(self._heap[0]):
            heapq.heappop(self._heap)
        times = [heap[0][0] for heap in (self._heap, self._waiting) if heap]
        return min(times) if times else None

    def pop(self, now_ms: float) -> tuple[list[Due], list[Gap]]:
        """Return every slot that is due by now, oldest first, and the gaps that are too old to be claimed."""
        gaps: list[Gap] = []
        while (at_ms := self._next_slot_ms()) is not None and at_ms <= now_ms:
            _, _, group = heapq.heappop(self._heap)
            self._expand(group, now_ms, gaps)
        due: list[Due] = []
        while self._waiting and self._waiting[0][0] <= now_ms:
            item = heapq.heappop(self._waiting)[2]
            if self._holds(item.job):
                due.append(item)
        due.sort(key=lambda item: item.slot_ms)
        return due, gaps

    def put_back(self, due: Due) -> None:
        """Let a slot wait for its time, for the first time or once more (the store said that it is early)."""
        heapq.heappush(self._waiting, (due.at_ms, next(self._order), due))

    def reposition(self, now_ms: float) -> None:
        """Start every schedule again from now: after a step of the clock to the past (slots seen again are refused)."""
        self._heap = []
        for group in list(self._groups.values()):
            self._push(group, self._next(group, int(now_ms)))

    def _next_slot_ms(self) -> int | None:
        while self._heap and not self._current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _holds(self, job: Job) -> bool:
        """Whether this job is still here: not removed, nor replaced by another one of its name."""
        digest = self._jobs.get(job.name)
        return digest is not None and self._groups[digest].jobs[job.name].handler is job.handler

    def _current(self, entry: tuple[int, int, _Group]) -> bool:
        slot_ms, _, group = entry
        return bool(group.jobs) and group.next_ms == slot_ms

    def _push(self, group: _Group, slot_ms: int | None) -> None:
        group.next_ms = slot_ms
        if slot_ms is not None:
            heapq.heappush(self._heap, (slot_ms, next(self._order), group))

    def _next(self, group: _Group, after_ms: int) -> int | None:
        try:
            slot_ms = group.schedule.next_after(after_ms)
            if slot_ms is not None and (type(slot_ms) is not int or slot_ms <= after_ms):
                msg = f"next_after({after_ms}) returned {slot_ms!r:.80}, which is no later whole number of milliseconds"
                raise ValueError(msg)
        except Exception as error:  # border: handler - a schedule may be the user's own code (K5)
            for job in group.jobs.values():
                self._fail(job, error)
            return None
        return slot_ms

    def _expand(self, group: _Group, now_ms: float, gaps: list[Gap]) -> None:
        slot_ms = group.next_ms
        assert slot_ms is not None
        for job in group.jobs.values():  # K13: each job of a schedule has its own late window
            if slot_ms < now_ms - job.max_late_ms:
                gaps.append(Gap(job, slot_ms - 1, math.ceil(now_ms - job.max_late_ms) - 1))
        oldest_ms = math.ceil(now_ms - group.horizon_ms)
        if slot_ms < oldest_ms:
            # K9: after a gap of years only the slots that can still be claimed are looked at.
            slot_ms = self._next(group, oldest_ms - 1)
        for _ in range(SLOTS_PER_POP_MAX):
            if slot_ms is None or slot_ms > now_ms:
                break
            after_ms = self._next(group, slot_ms)
            for due in self._draws(group, slot_ms, after_ms, now_ms=now_ms):
                self.put_back(due)
            slot_ms = after_ms
        self._push(group, slot_ms)

    def _draws(self, group: _Group, slot_ms: int, after_ms: int | None, *, now_ms: float) -> Iterator[Due]:
        for job in group.jobs.values():
            if slot_ms < now_ms - job.max_late_ms:
                continue
            most_ms = float(job.jitter_most_ms)
            if job.jitter_ms is None and after_ms is not None:
                most_ms = min(most_ms, (after_ms - slot_ms) / 10)
            yield Due(job, slot_ms, slot_ms + self._draw(most_ms))
