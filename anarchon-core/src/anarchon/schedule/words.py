"""In words: which rules a schedule falls under, and what the next jumps of the clock do to it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Final

from anarchon.schedule import evaluate
from anarchon.schedule.at import At
from anarchon.schedule.civil import DAY_S, EPOCH, FIRST_S, LAST_S, stamp
from anarchon.schedule.combine import AnyOf, Excluding
from anarchon.schedule.cron import Cron
from anarchon.schedule.daylight import is_calendar_jump
from anarchon.schedule.every import Every
from anarchon.schedule.fields import Fields
from anarchon.schedule.protocol import Schedule, text_of
from anarchon.schedule.zones import SYSTEM_PREFIX, Change, Zone, zone

__all__ = ["clock_text", "explain"]

LOOK_AHEAD_S: Final = 2 * 366 * DAY_S
"""How far ahead the next gap and the next fold are looked for."""


def explain(schedule: Schedule, *, after_ms: int | None = None) -> list[str]:
    """Return sentences that say how a schedule is read.

    The zone's next gap and fold are those after `after_ms` (default: now), within two years.
    """
    if after_ms is None:
        from anarchon.clock import SystemClock

        after_ms = int(SystemClock().wall_ms())
    return list(_sentences(schedule, min(max(after_ms // 1000, FIRST_S), LAST_S - 1)))


def clock_text(naive_s: int) -> str:
    """Return what a local clock shows, as text; the seconds only where they are not 0."""
    shown = EPOCH + timedelta(seconds=naive_s)
    return shown.strftime("%Y-%m-%d %H:%M:%S" if shown.second else "%Y-%m-%d %H:%M")


def _sentences(schedule: Schedule, after_s: int) -> Iterator[str]:
    if isinstance(schedule, Cron):
        place = zone(schedule.zone)
        data = "this machine's own" if place.name.startswith(SYSTEM_PREFIX) else "the pinned"
        yield f"Written out: '{schedule.text}' in {place.name}, with {data} zone data."
        yield _day_rule(schedule.fields)
        yield _clock_rule(schedule.fields)
        yield from _jumps(schedule.fields, place, after_s)
    elif isinstance(schedule, Every):
        since = "the epoch" if schedule.anchor_s is None else stamp(schedule.anchor_s)
        yield f"Every {schedule.period_s} s of real time, counted from {since}; no time zone has a part in it."
    elif isinstance(schedule, At):
        yield f"One-off slots: {schedule.text.removeprefix('@at ')}; after the last one the job is idle."
    elif isinstance(schedule, AnyOf):
        yield f"The slots of {len(schedule.parts)} schedules, each slot once."
        for part in schedule.parts:
            yield from _sentences(part, after_s)
    elif isinstance(schedule, Excluding):
        yield from _sentences(schedule.schedule, after_s)
        yield f"Without some of these slots ({schedule.text.rsplit(' excluding ', 1)[1]}; dates in {schedule.zone})."
    else:
        yield f"A schedule of your own: {text_of(schedule)}; its slots are what its next_after says."


def _day_rule(fields: Fields) -> str:
    if fields.any_day and fields.any_weekday:
        return "Days: every day of the months named."
    if fields.any_weekday:
        return "Days: the day of month decides, on any day of the week."
    if fields.any_day:
        return "Days: the day of week decides, on any day of the month."
    if fields.both_days:
        return "Days: AND, day of month and day of week must both match, because one of them begins with a star."
    return "Days: OR, day of month or day of week is enough, because both are restricted and neither begins with a star."


def _clock_rule(fields: Fields) -> str:
    if fields.every_hour:
        return (
            "Every-hour schedule (all 24 hours are named): it keeps real time, so skipped local times do not exist "
            "and repeated ones run twice."
        )
    return (
        "Wall-clock schedule (some hours only): each local time named runs once, at the end of the gap if it is "
        "skipped, in the first pass if it is repeated."
    )


def _jumps(fields: Fields, place: Zone, after_s: int) -> Iterator[str]:
    seen: set[bool] = set()
    for change in place.changes(after_s, after_s + LOOK_AHEAD_S):
        is_gap = change.gap_s > 0
        if is_gap not in seen:
            seen.add(is_gap)
            yield _gap(fields, change) if is_gap else _fold(fields, change)
    if not seen:
        yield f"The clock of {place.name} does not jump in the two years from {stamp(after_s)} on."


def _gap(fields: Fields, change: Change) -> str:
    begin_s, end_s = change.at_s + change.before_s, change.at_s + change.after_s
    named = _named(fields, begin_s, end_s)
    head = f"Next gap: {clock_text(begin_s)} to {clock_text(end_s)} is skipped at {stamp(change.at_s)}; "
    if named is None:
        return head + "no time named lies in it."
    if fields.every_hour:
        return head + f"times in it, the first {clock_text(named)}, do not exist, and the distance stays real time."
    if is_calendar_jump(change):
        return head + f"times in it, the first {clock_text(named)}, are no days of that calendar and have no slot."
    return head + f"times in it, the first {clock_text(named)}, run once together at {clock_text(end_s)}."


def _fold(fields: Fields, change: Change) -> str:
    begin_s, end_s = change.at_s + change.after_s, change.at_s + change.before_s
    named = _named(fields, begin_s, end_s)
    head = f"Next fold: {clock_text(begin_s)} to {clock_text(end_s)} is repeated at {stamp(change.at_s)}; "
    if named is None:
        return head + "no time named lies in it."
    if fields.every_hour or is_calendar_jump(change):
        return head + f"times in it, the first {clock_text(named)}, run in both passes."
    return head + f"times in it, the first {clock_text(named)}, run in the first pass only."


def _named(fields: Fields, begin_s: int, end_s: int) -> int | None:
    named = partial(evaluate.first, fields)(begin_s)
    return named if named is not None and named < end_s else None
