"""The one place where a cron expression is evaluated, and the only module that imports croniter.

croniter is asked for one thing: the next *naive* local whole second that explicit numbers name. Measured on 7.0.0,
that part is stateless and agreed with a set-based evaluator of our own on each of some 6,000 random expressions (the
schedule tests repeat a part of it), whereas with aware datetimes it fires fixed times twice in the autumn hour and
depends on where it started. Daylight saving, macros, `H`, names and refusals are therefore ours (`daylight`,
`grammar`, `spread`), and nothing of croniter's own reading of text is used.

Speed (`tests/bench/bench_schedule.py`): 25-90 µs a question with a kept object, 120-410 µs with a fresh one, 4-25 µs
for the set-based evaluator, which is three to four times faster in the median. Jobs share one evaluation per schedule
and slot, so 900 schedules due together cost less than 0.1 s: no requirement needs more, and croniter stays. Its code
is in wide use, ours would be one more reading of the same fields.

An object shared between threads answers wrongly, hence the objects are kept per thread; a lock would be inherited
locked by a fork. The import takes 26-100 ms and starts a subprocess (`file`), so it happens at the first question.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from anarchon.schedule.civil import DAY_S
from anarchon.schedule.fields import FIELDS, LAST, Fields

if TYPE_CHECKING:
    from croniter import croniter

__all__ = ["first"]

OBJECTS_PER_THREAD: Final = 1024
YEARS_LIMIT: Final = 50
NAIVE_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - naive on purpose: a local clock, not an instant


class _Kept(threading.local):
    """The croniter objects of one thread, the least recently used dropped."""

    def __init__(self) -> None:
        self.object_for: Callable[[Fields], croniter] = lru_cache(maxsize=OBJECTS_PER_THREAD)(_build)


def first(fields: Fields, naive_s: int) -> int | None:
    """Return the first local second at or after `naive_s` that the fields name, or None within 50 years.

    Both are naive: seconds that a local clock shows, counted from 1970-01-01T00:00:00 on that clock.
    """
    from croniter import CroniterBadDateError

    try:
        found = _kept.object_for(fields).get_next(datetime, start_time=NAIVE_EPOCH + timedelta(seconds=naive_s - 1))
    except (CroniterBadDateError, OverflowError, ValueError):
        # Beyond year 9999 datetime gives up before croniter does.
        return None
    span = found - NAIVE_EPOCH
    return int(span.days * DAY_S + span.seconds)


def _build(fields: Fields) -> croniter:
    from croniter import croniter

    return croniter(
        _numbers(fields),
        NAIVE_EPOCH,
        ret_type=datetime,
        day_or=not fields.both_days,
        max_years_between_matches=YEARS_LIMIT,
    )


def _numbers(fields: Fields) -> str:
    """Return the fields in croniter's order and spelling: plain numbers, seconds last, a star for a full field."""
    rows = (fields.seconds, fields.minutes, fields.hours, fields.days, fields.months, fields.weekdays)
    second, minute, hour, day, month, weekday = (
        "*" if values == span.full else ",".join(map(str, values)) for span, values in zip(FIELDS, rows, strict=True)
    )
    if fields.nearest is not None:
        day = f"{fields.nearest}W"
    elif fields.last_day:
        day = f"{day},L".lstrip(",")
    if fields.nth:
        weekday = ",".join(f"L{value}" if k == LAST else f"{value}#{k}" for value, k in fields.nth)
    return f"{minute} {hour} {day} {month} {weekday} {second}"


_kept = _Kept()
