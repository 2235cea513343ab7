"""A cron expression as explicit values, and its canonical text.

The canonical text is what is evaluated, shared between jobs, stored and put into the digest; expressions with equal
texts are the same schedule: `*` and `0-23`, `@daily` and `0 0 * * *`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

__all__ = ["FIELDS", "LAST", "Fields", "Range"]

LAST: Final = 0
"""The `k` of `dL`, the last such weekday of a month, among the `k` of `d#k`."""


@dataclass(frozen=True, slots=True)
class Range:
    """What one field of an expression may hold."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def full(self) -> tuple[int, ...]:
        """Return all the values of the field."""
        return tuple(range(self.low, self.high + 1))


MONTH_NAMES: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAY_NAMES: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
SECOND: Final = Range("second", 0, 59)
MINUTE: Final = Range("minute", 0, 59)
HOUR: Final = Range("hour", 0, 23)
DAY: Final = Range("day-of-month", 1, 31)
MONTH: Final = Range("month", 1, 12, MONTH_NAMES)
WEEKDAY: Final = Range("day-of-week", 0, 6, WEEKDAY_NAMES)
FIELDS: Final = (SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY)
"""The six fields in the order in which they are written; five-field expressions leave out the first."""

LONGEST_MONTH: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, slots=True)
class Fields:
    """The values of each field, sorted; a full day field counts as not restricted.

    `last_day` adds the last day of the month, `nearest` is the n of `nW`, `nth` the pairs of `d#k` and `dL`.
    `both_days` says that day of month and day of week must match together (a field that was written with a leading
    star), else either is enough. Made by the grammar, which keeps the combinations meaningful. The rest is derived:
    `any_day` and `any_weekday` (that field does not restrict), `every_hour` (all 24 hours are named, so the schedule
    keeps real time over a change of the clock), and the canonical `text`, with five fields if the second is 0.
    """

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    last_day: bool = False
    nearest: int | None = None
    nth: tuple[tuple[int, int], ...] = ()
    both_days: bool = False
    any_day: bool = field(init=False, compare=False, repr=False)
    any_weekday: bool = field(init=False, compare=False, repr=False)
    every_hour: bool = field(init=False, compare=False, repr=False)
    text: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "any_day", self.days == DAY.full and self.nearest is None)
        set_field(self, "any_weekday", self.weekdays == WEEKDAY.full and not self.nth)
        set_field(self, "every_hour", self.hours == HOUR.full)
        set_field(self, "text", self._text())

    @property
    def fires(self) -> bool:
        """Tell whether any day of the calendar matches.

        Decided without a search: within 400 years each date falls on each weekday, and the longest wait is 40 years
        (29 February on a given weekday, around a century year without one).
        """
        if self.any_day or self.last_day or self.nearest is not None:
            return True
        if not self.any_weekday and not self.both_days:
            return True
        return any(self.days[0] <= LONGEST_MONTH[month - 1] for month in self.months)

    def _text(self) -> str:
        day, weekday = self._day_text(), self._weekday_text()
        if self.both_days:
            starred = _starred(DAY, self.days)
            if starred is not None:
                day = ",".join([*starred, *(["L"] if self.last_day else [])])
            else:
                weekday = ",".join(_starred(WEEKDAY, self.weekdays) or [weekday])
        fields = [_plain(MINUTE, self.minutes), _plain(HOUR, self.hours), day, _plain(MONTH, self.months), weekday]
        if self.seconds != (0,):
            # A bare star is refused as a seconds field, so that the canonical text can be read again.
            fields.insert(0, "*/1" if self.seconds == SECOND.full else _plain(SECOND, self.seconds))
        return " ".join(fields)

    def _day_text(self) -> str:
        if self.nearest is not None:
            return f"{self.nearest}W"
        if self.any_day:
            return "*"
        return ",".join([*map(str, self.days), *(["L"] if self.last_day else [])])

    def _weekday_text(self) -> str:
        if self.nth:
            return ",".join(f"{day}L" if k == LAST else f"{day}#{k}" for day, k in self.nth)
        return _plain(WEEKDAY, self.weekdays)


def _plain(span: Range, values: tuple[int, ...]) -> str:
    return "*" if values == span.full else ",".join(map(str, values))


def _starred(span: Range, values: tuple[int, ...]) -> list[str] | None:
    """Write values with a leading star, the mark of "both day fields must match"; None if they hold no such step."""
    for step in range(2, (span.high - span.low) + 1):
        covered = range(span.low, span.high + 1, step)
        if set(covered) <= set(values):
            return [f"*/{step}", *(str(value) for value in values if value not in covered)]
    return None
