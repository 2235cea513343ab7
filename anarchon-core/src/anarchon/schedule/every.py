"""A fixed distance between slots, on a grid that all instances share."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from anarchon.errors import ScheduleError
from anarchon.schedule.base import BaseSchedule
from anarchon.schedule.civil import DAY_S, LAST_S, instant_s, stamp, start_s

__all__ = ["EVERY_MACRO", "Every", "every_of"]

EVERY_MACRO: Final = "@every"
PERIOD_LIMIT_S: Final = 50 * 366 * DAY_S
"""Fifty years, the longest wait that any schedule may have."""
UNITS_S: Final = {"d": DAY_S, "h": 3600, "m": 60, "s": 1}
DURATION: Final = r"(?:(\d{1,10})d)?(?:(\d{1,10})h)?(?:(\d{1,10})m)?(?:(\d{1,10})s)?"


class Every(BaseSchedule):
    """Slots at a fixed distance, counted from the epoch, or from `anchor` on.

    The parts are whole numbers and are added up. The grid does not depend on when an instance started, nor on a time
    zone: `Every(days=1)` is midnight UTC; for midnight of a place write `Cron("0 0 * * *", tz=…)`. An anchor is an
    aware datetime in whole seconds; it is the first slot. Raises ScheduleError for anything else.
    """

    __slots__ = ("_anchor_s", "_period_s")

    def __init__(
        self, *, seconds: int = 0, minutes: int = 0, hours: int = 0, days: int = 0, anchor: datetime | None = None
    ) -> None:
        parts = {"seconds": seconds, "minutes": minutes, "hours": hours, "days": days}
        for part, value in parts.items():
            if type(value) is not int or value < 0:
                raise ScheduleError(
                    f"Every({part}={value!r:.40}): {part} is no whole number from 0 on; "
                    "write whole seconds, so that all instances share one grid."
                )
        period_s = seconds + 60 * minutes + 3600 * hours + DAY_S * days
        if not 1 <= period_s <= PERIOD_LIMIT_S:
            raise ScheduleError(
                f"Every(...) adds up to {period_s} seconds; write a distance from 1 second to 50 years, "
                "for example Every(seconds=30)."
            )
        self._period_s = period_s
        self._anchor_s = None if anchor is None else instant_s(anchor, "The anchor of Every(...)")

    def __repr__(self) -> str:
        return f"Every({self.text.removeprefix(EVERY_MACRO + ' ')})"

    @property
    def period_s(self) -> int:
        """Return the distance between two slots in seconds."""
        return self._period_s

    @property
    def anchor_s(self) -> int | None:
        """Return the first slot in Unix seconds, or None for the grid from the epoch."""
        return self._anchor_s

    @property
    def text(self) -> str:
        """Return `@every 30s`, with the anchor if there is one."""
        plain = f"{EVERY_MACRO} {self._period_s}s"
        return plain if self._anchor_s is None else f"{plain} from {stamp(self._anchor_s)}"

    @property
    def zones(self) -> tuple[str, ...]:
        """Return nothing: the grid is the same in all zones."""
        return ()

    def next_after(self, t_ms: int, /) -> int | None:
        """Return the smallest slot strictly after `t_ms`, or None beyond the year 9989."""
        origin_s = self._anchor_s or 0
        begin_s = start_s(t_ms)
        if self._anchor_s is not None:
            begin_s = max(begin_s, origin_s)
        # Rounded up to the grid with integers: floor division of the negated distance.
        slot_s = origin_s - (origin_s - begin_s) // self._period_s * self._period_s
        return slot_s * 1000 if slot_s < LAST_S else None


def every_of(folded: str) -> Every:
    """Return the schedule of `@every 30s`, `@every 1h30m`; the text is tidied (lower case, single blanks)."""
    words = folded.split()
    match = re.fullmatch(DURATION, words[1]) if len(words) == 2 and words[0] == EVERY_MACRO else None
    if match is None or not any(match.groups()):
        raise ScheduleError(
            f"'{folded[:60]}' has no distance that can be read; write '@every 30s', '@every 5m' or '@every 1h30m'."
        )
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return Every(seconds=seconds, minutes=minutes, hours=hours, days=days)
