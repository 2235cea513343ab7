"""One-off slots."""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime
from typing import Final

from anarchon.errors import ScheduleError
from anarchon.schedule.base import BaseSchedule, short_hash
from anarchon.schedule.civil import instant_s, stamp

__all__ = ["INSTANTS_LIMIT", "At"]

INSTANTS_LIMIT: Final = 10_000
WRITTEN_OUT: Final = 4


class At(BaseSchedule):
    """Slots at given moments: aware datetimes in whole seconds.

    Moments that have passed are accepted, all of them too, so that a service can restart the day after; the schedule
    is then idle. Raises ScheduleError for naive datetimes, fractions of a second, or none at all.
    """

    __slots__ = ("_slots_s",)

    def __init__(self, *moments: datetime) -> None:
        if not 1 <= len(moments) <= INSTANTS_LIMIT:
            raise ScheduleError(f"At(...) was given {len(moments)} moments; give from 1 to {INSTANTS_LIMIT} aware datetimes.")
        self._slots_s = tuple(sorted({instant_s(moment, "A moment of At(...)") for moment in moments}))

    def __repr__(self) -> str:
        return f"At({self.text.removeprefix('@at ')})"

    @property
    def text(self) -> str:
        """Return the moments in UTC; of more than four the ends, the number and a hash."""
        if len(self._slots_s) <= WRITTEN_OUT:
            return "@at " + " ".join(map(stamp, self._slots_s))
        every = short_hash(*map(str, self._slots_s))
        return f"@at {stamp(self._slots_s[0])} … {stamp(self._slots_s[-1])} ({len(self._slots_s)} moments, {every})"

    @property
    def zones(self) -> tuple[str, ...]:
        """Return nothing: a moment is the same in all zones."""
        return ()

    def next_after(self, t_ms: int, /) -> int | None:
        """Return the smallest slot strictly after `t_ms`, or None when all have passed."""
        found = bisect_right(self._slots_s, t_ms // 1000)
        return self._slots_s[found] * 1000 if found < len(self._slots_s) else None
