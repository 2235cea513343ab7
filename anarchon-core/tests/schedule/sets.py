"""A set-based evaluator of cron fields: the independent check of `anarchon.schedule.evaluate`, and its measure in speed.

It shares the explicit values with the package and nothing else: days are enumerated month by month.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import date

from anarchon.schedule.fields import LAST, Fields

DAY_S = 86_400
EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
YEARS_LIMIT = 50


def first(fields: Fields, naive_s: int) -> int | None:
    """Return the first named local second at or after `naive_s`, or None within 50 years."""
    day, second = divmod(naive_s, DAY_S)
    today = date.fromordinal(day + EPOCH_ORDINAL)
    year, month, earliest = today.year, today.month, today.day
    for _ in range(YEARS_LIMIT * 12):
        if month in fields.months:
            for number in days_of(fields, year, month):
                if number < earliest:
                    continue
                base_s = (date(year, month, number).toordinal() - EPOCH_ORDINAL) * DAY_S
                found = time_of_day(fields, second if base_s <= naive_s else 0)
                if found is not None:
                    return base_s + found
        earliest, month = 1, month + 1
        if month > 12:
            year, month = year + 1, 1
    return None


def days_of(fields: Fields, year: int, month: int) -> list[int]:
    """Return the days of a month that the fields name."""
    length = (date(year + month // 12, month % 12 + 1, 1) - date(year, month, 1)).days
    first_weekday = date(year, month, 1).isoweekday() % 7
    if fields.nearest is not None:
        return [nearest_weekday(fields.nearest, (first_weekday + fields.nearest - 1) % 7, length)]
    if fields.nth:
        named = set()
        for weekday, k in fields.nth:
            days = list(range(1 + (weekday - first_weekday) % 7, length + 1, 7))
            named.update(days[-1:] if k == LAST else days[k - 1 : k])
        return sorted(named)
    return [number for number in range(1, length + 1) if matches(fields, number, first_weekday, length)]


def matches(fields: Fields, number: int, first_weekday: int, length: int) -> bool:
    by_day = number in fields.days or (fields.last_day and number == length)
    by_weekday = (first_weekday + number - 1) % 7 in fields.weekdays
    if fields.any_day or fields.any_weekday or fields.both_days:
        return by_day and by_weekday
    return by_day or by_weekday


def nearest_weekday(number: int, weekday: int, length: int) -> int:
    if weekday == 6:
        return number - 1 if number > 1 else number + 2
    if weekday == 0:
        return number + 1 if number < length else number - 2
    return number


def time_of_day(fields: Fields, second: int) -> int | None:
    """Return the first named second of a day at or after one."""
    for hour in fields.hours[bisect_left(fields.hours, second // 3600) :]:
        for minute in fields.minutes:
            base = hour * 3600 + minute * 60
            if base + 59 < second:
                continue
            for named in fields.seconds:
                if base + named >= second:
                    return base + named
    return None
