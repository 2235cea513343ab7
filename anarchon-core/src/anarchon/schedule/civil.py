"""Integer calendar arithmetic on whole seconds, so that no float ever touches an instant."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final

from anarchon.errors import ScheduleError

__all__ = [
    "DAY_S",
    "FIRST_S",
    "LAST_S",
    "aware",
    "date_of",
    "instant_s",
    "stamp",
    "start_s",
    "year_of",
    "year_start_s",
]

DAY_S: Final = 86_400
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()


def date_of(day: int) -> date:
    """Return the date of a day counted from 1970-01-01."""
    return date.fromordinal(day + EPOCH_ORDINAL)


def year_of(s: int) -> int:
    """Return the calendar year of a count of seconds from 1970-01-01T00:00:00."""
    return date.fromordinal(s // DAY_S + EPOCH_ORDINAL).year


def year_start_s(year: int) -> int:
    """Return the first second of a year."""
    return (date(year, 1, 1).toordinal() - EPOCH_ORDINAL) * DAY_S


FIRST_S: Final = year_start_s(1900)
"""Nothing is scheduled before this instant: an earlier question is answered as if asked here."""
LAST_S: Final = year_start_s(9990)
"""Nothing is scheduled from this instant on: the calendar of Python ends soon after."""


def start_s(t_ms: int) -> int:
    """Return the first whole second strictly after `t_ms`, not before the calendar begins."""
    return max(t_ms // 1000 + 1, FIRST_S)


def aware(t_ms: int) -> datetime:
    """Return an instant as an aware datetime in UTC, exact to the millisecond."""
    return EPOCH + timedelta(milliseconds=t_ms)


def instant_s(moment: datetime, what: str) -> int:
    """Return the Unix second of an aware datetime.

    Raises ScheduleError for anything else, naive datetimes and fractions of a second among it: a fraction nearly
    always comes from "now", which differs on each instance.
    """
    if not isinstance(moment, datetime):
        raise ScheduleError(f"{what} is {moment!r:.60}, not a datetime; give an aware datetime such as {EPOCH!r}.")
    if moment.utcoffset() is None:
        raise ScheduleError(f"{what} {moment.isoformat()} has no time zone; give an aware datetime (tzinfo=...).")
    span = moment - EPOCH
    if span.microseconds:
        raise ScheduleError(
            f"{what} {moment.isoformat()} has a fraction of a second, which would differ on every instance if it "
            "comes from now(); write a fixed moment in whole seconds."
        )
    second = span.days * DAY_S + span.seconds
    if not FIRST_S <= second < LAST_S:
        raise ScheduleError(f"{what} {moment.isoformat()} is outside the years 1900 to 9989; write one inside.")
    return second


def stamp(s: int) -> str:
    """Return an instant as ISO 8601 text in UTC with a Z."""
    return (EPOCH + timedelta(seconds=s)).strftime("%Y-%m-%dT%H:%M:%SZ")
