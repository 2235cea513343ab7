"""Schedules made of schedules: the slots of several, or all but some."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime
from typing import Final

from anarchon.errors import ScheduleError
from anarchon.schedule.base import BaseSchedule, short_hash
from anarchon.schedule.civil import DAY_S, instant_s, stamp
from anarchon.schedule.protocol import Schedule, text_of, zones_of
from anarchon.schedule.zones import zone

__all__ = ["AnyOf", "Excluding", "any_of", "excluding"]

PARTS_LIMIT: Final = 100
EXCLUSIONS_LIMIT: Final = 10_000
IN_A_ROW_LIMIT: Final = 100_000
"""How many slots in a row a callable may leave out (a whole day of seconds) before it counts as an error."""


class AnyOf(BaseSchedule):
    """The slots of all its parts, each once. Made by `a | b`."""

    __slots__ = ("_parts",)

    def __init__(self, parts: tuple[Schedule, ...]) -> None:
        self._parts = parts

    def __repr__(self) -> str:
        return " | ".join(map(repr, self._parts))

    @property
    def parts(self) -> tuple[Schedule, ...]:
        """Return the schedules whose slots these are."""
        return self._parts

    @property
    def text(self) -> str:
        """Return the texts of the parts, each with its zone."""
        return " | ".join(" ".join((text_of(part), *zones_of(part))) for part in self._parts)

    @property
    def zones(self) -> tuple[str, ...]:
        """Return the zones of all parts."""
        return tuple(sorted({name for part in self._parts for name in zones_of(part)}))

    @property
    def digest(self) -> str:
        """Return the hash of the digests of the parts."""
        return short_hash("any", *(part.digest for part in self._parts))

    def next_after(self, t_ms: int, /) -> int | None:
        """Return the smallest slot of any part strictly after `t_ms`."""
        found = [slot for part in self._parts if (slot := part.next_after(t_ms)) is not None]
        return min(found, default=None)


class Excluding(BaseSchedule):
    """The slots of a schedule but those of some local dates, some moments, or those that a callable leaves out."""

    __slots__ = ("_dates", "_digest", "_leave_out", "_moments_s", "_schedule")

    def __init__(
        self,
        schedule: Schedule,
        *,
        days: frozenset[date] = frozenset(),
        moments_s: frozenset[int] = frozenset(),
        leave_out: Callable[[datetime], bool] | None = None,
        digest: str = "",
    ) -> None:
        self._schedule = schedule
        self._dates = days
        self._moments_s = moments_s
        self._leave_out = leave_out
        self._digest = digest or short_hash(*sorted(map(str, days)), *map(str, sorted(moments_s)))

    def __repr__(self) -> str:
        return f"{self._schedule!r}.excluding({self._what})"

    @property
    def schedule(self) -> Schedule:
        """Return the schedule whose slots are left."""
        return self._schedule

    @property
    def text(self) -> str:
        """Return the text of the schedule, and what is left out, by number and hash."""
        return f"{text_of(self._schedule)} excluding {self._what}"

    @property
    def zones(self) -> tuple[str, ...]:
        """Return the zones of the schedule; local dates are dates of the first one."""
        return zones_of(self._schedule)

    @property
    def digest(self) -> str:
        """Return the hash of the schedule's digest and of what is left out."""
        return short_hash("excluding", self._schedule.digest, self._what)

    @property
    def _what(self) -> str:
        if self._leave_out is not None:
            return f"callable {self._digest}"
        return f"{len(self._dates) + len(self._moments_s)} moments {self._digest}"

    def excluded(self, slot_ms: int) -> bool:
        """Tell whether a slot of the schedule is left out."""
        local = zone(self.zone).local(slot_ms)
        if self._leave_out is not None:
            return bool(self._leave_out(local))
        return local.date() in self._dates or (slot_ms % 1000 == 0 and slot_ms // 1000 in self._moments_s)

    def next_after(self, t_ms: int, /) -> int | None:
        """Return the smallest slot strictly after `t_ms` that is not left out.

        Raises ScheduleError if a callable leaves out 100,000 slots in a row, which it would do for ever.
        """
        for _ in range(IN_A_ROW_LIMIT):
            slot_ms = self._schedule.next_after(t_ms)
            if slot_ms is None or not self.excluded(slot_ms):
                return slot_ms
            t_ms = self._before_next(slot_ms)
        raise ScheduleError(
            f"The schedule '{self.text}' left out {IN_A_ROW_LIMIT} slots in a row up to {stamp(t_ms // 1000)}; "
            "exclude less, or remove the job."
        )

    def _before_next(self, slot_ms: int) -> int:
        """Return an instant before the first slot that could be left: a whole excluded date is passed in one step."""
        if self._leave_out is not None or zone(self.zone).local(slot_ms).date() not in self._dates:
            return slot_ms
        slot_s, place = slot_ms // 1000, zone(self.zone)
        last_s = slot_s + DAY_S - (slot_s + place.offset_s(slot_s)) % DAY_S - 1
        change = place.first_change(slot_s, last_s)
        # The end of the date is known while the clock does not jump; after a jump the date is looked at again.
        return max(slot_ms, (last_s if change is None else change.at_s - 1) * 1000)


def any_of(*schedules: Schedule | str) -> Schedule:
    """Return the schedule that has the slots of all of these; texts are expressions in UTC.

    The order and repetitions do not matter: equal sets of parts are equal schedules.
    """
    from anarchon.schedule.parse import parse

    parts: dict[str, Schedule] = {}
    for schedule in map(parse, schedules):
        for part in schedule.parts if isinstance(schedule, AnyOf) else (schedule,):
            parts[part.digest] = part
    if len(parts) > PARTS_LIMIT:
        raise ScheduleError(f"{len(parts)} schedules were joined with |, and {PARTS_LIMIT} is the most; use fewer.")
    if len(parts) == 1:
        return next(iter(parts.values()))
    return AnyOf(tuple(parts[digest] for digest in sorted(parts)))


def excluding(
    schedule: Schedule, what: Iterable[date | datetime] | Callable[[datetime], bool], *, digest: str | None = None
) -> BaseSchedule:
    """Return a schedule, one of the user's own too, without some slots; see `BaseSchedule.excluding`."""
    if isinstance(schedule, AnyOf):
        # Local dates are dates of each part's own zone.
        what = what if callable(what) else tuple(what)
        return AnyOf(tuple(excluding(part, what, digest=digest) for part in schedule.parts))
    if callable(what):
        if not isinstance(digest, str) or not digest:
            raise ScheduleError(
                "excluding(callable) needs digest='…', a text that changes when its answers do, so that instances "
                "with different rules notice each other."
            )
        return Excluding(schedule, leave_out=what, digest=digest)
    if digest is not None:
        raise ScheduleError("excluding(dates) makes its own digest; leave digest= out, it is for a callable.")
    return _excluding_moments(schedule, what)


def _excluding_moments(schedule: Schedule, what: Iterable[date | datetime]) -> Excluding:
    if isinstance(what, str | bytes | date) or not isinstance(what, Iterable):
        raise ScheduleError(f"excluding({what!r:.60}) is no collection; give a list of dates, or a callable.")
    days: set[date] = set()
    moments_s: set[int] = set()
    for moment in what:
        if isinstance(moment, datetime):
            moments_s.add(instant_s(moment, "A moment of excluding(...)"))
        elif isinstance(moment, date):
            days.add(moment)
        else:
            raise ScheduleError(f"excluding(...) holds {moment!r:.60}; give dates or aware datetimes.")
        if len(days) + len(moments_s) > EXCLUSIONS_LIMIT:
            raise ScheduleError(f"excluding(...) holds more than {EXCLUSIONS_LIMIT} dates; give a callable instead.")
    return Excluding(schedule, days=frozenset(days), moments_s=frozenset(moments_s))
