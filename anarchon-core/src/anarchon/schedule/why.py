"""Why an instant is, or is not, a slot: the first question after a job did not run."""

from __future__ import annotations

from typing import Final

from anarchon.schedule import evaluate
from anarchon.schedule.at import At
from anarchon.schedule.civil import DAY_S, FIRST_S, LAST_S, date_of, stamp
from anarchon.schedule.combine import AnyOf, Excluding
from anarchon.schedule.cron import Cron
from anarchon.schedule.daylight import is_calendar_jump
from anarchon.schedule.every import Every
from anarchon.schedule.fields import FIELDS, Fields
from anarchon.schedule.neighbours import is_slot, slot_before
from anarchon.schedule.protocol import Schedule, text_of
from anarchon.schedule.words import clock_text
from anarchon.schedule.zones import zone

__all__ = ["why_no_slot"]

PARTS_NAMED: Final = 5


def why_no_slot(schedule: Schedule, t_ms: int) -> str:
    """Return why there is no slot at an instant, and the slots around it; of a slot, that it is one."""
    if is_slot(schedule, t_ms):
        return f"{_moment(schedule, t_ms)} is a slot{_stands_for(schedule, t_ms)}."
    return f"{_reason(schedule, t_ms)} {_around(schedule, t_ms)}"


def _reason(schedule: Schedule, t_ms: int) -> str:
    if isinstance(schedule, Excluding):
        if is_slot(schedule.schedule, t_ms):
            return f"{_moment(schedule, t_ms)} is left out by excluding(...)."
        return _reason(schedule.schedule, t_ms)
    if isinstance(schedule, AnyOf):
        return " ".join(_reason(part, t_ms) for part in schedule.parts[:PARTS_NAMED])
    if t_ms % 1000 and isinstance(schedule, Cron | Every | At):
        return f"{t_ms} ms is no whole second, and slots are whole seconds."
    if isinstance(schedule, Cron):
        return _cron_reason(schedule, t_ms // 1000)
    if isinstance(schedule, Every):
        if schedule.anchor_s is not None and t_ms // 1000 < schedule.anchor_s:
            return f"{stamp(t_ms // 1000)} is before the anchor {stamp(schedule.anchor_s)}, which is the first slot."
        return f"{stamp(t_ms // 1000)} is not on the grid of '{schedule.text}'."
    if isinstance(schedule, At):
        return f"{stamp(t_ms // 1000)} is not one of the moments of '{schedule.text}'."
    return f"{text_of(schedule)} names no slot at {stamp(t_ms // 1000)}."


def _cron_reason(schedule: Cron, s: int) -> str:
    if not FIRST_S <= s < LAST_S:
        return f"The second {s} is outside the years 1900 to 9989."
    fields, place = schedule.fields, zone(schedule.zone)
    naive_s = s + place.offset_s(s)
    shown = f"The clock of {place.name} shows {clock_text(naive_s)} at {stamp(s)}"
    change = place.last_change(s)
    if evaluate.first(fields, naive_s) == naive_s:
        # Named and yet no slot: only the second pass of a fold does that, to a wall-clock schedule.
        assert change is not None
        earlier_s = naive_s - change.before_s
        return f"{shown} for the second time; a wall-clock schedule runs in the first pass, at {stamp(earlier_s)}."
    skipped = ""
    if change is not None and change.gap_s > 0 and s < change.at_s + change.gap_s:
        meant_s = s + change.before_s
        if evaluate.first(fields, meant_s) == meant_s:
            skipped = f" {clock_text(meant_s)} was skipped by the change of the clock at {stamp(change.at_s)}" + (
                ", and a skipped time has no slot of its own."
                if fields.every_hour or is_calendar_jump(change)
                else f" (daylight saving); its slot is the end of the gap, {stamp(change.at_s)}."
            )
    return f"{shown}, and {_mismatch(fields, naive_s)}.{skipped}"


def _mismatch(fields: Fields, naive_s: int) -> str:
    day, second = divmod(naive_s, DAY_S)
    date = date_of(day)
    rows = (
        (FIELDS[4].name, date.month, fields.months),
        (FIELDS[2].name, second // 3600, fields.hours),
        (FIELDS[1].name, second // 60 % 60, fields.minutes),
        (FIELDS[0].name, second % 60, fields.seconds),
    )
    for name, value, named in rows:
        if value not in named:
            return f"the {name} {value} is not among {','.join(map(str, named))}"
    return f"{date:%A} {date.day} is no day of '{fields.text}'"


def _stands_for(schedule: Schedule, t_ms: int) -> str:
    """Say which skipped time a slot at the end of a gap stands for."""
    if not isinstance(schedule, Cron) or schedule.fields.every_hour:
        return ""
    place, s = zone(schedule.zone), t_ms // 1000
    change = place.last_change(s)
    if change is None or change.at_s != s or change.gap_s <= 0 or is_calendar_jump(change):
        return ""
    named = evaluate.first(schedule.fields, s + change.before_s)
    if named is None or named >= s + change.after_s:
        return ""
    return f": it stands for {clock_text(named)}, which was skipped by the change of the clock (daylight saving)"


def _around(schedule: Schedule, t_ms: int) -> str:
    before, after = slot_before(schedule, t_ms), schedule.next_after(t_ms)
    earlier = "there is no slot before it" if before is None else f"the slot before is {_moment(schedule, before)}"
    later = "there is none after it" if after is None else f"the next one is {_moment(schedule, after)}"
    return f"{earlier[0].upper()}{earlier[1:]}, {later}."


def _moment(schedule: Schedule, t_ms: int) -> str:
    s = t_ms // 1000
    if isinstance(schedule, Cron) and schedule.zone != "UTC":
        return f"{stamp(s)} ({clock_text(s + zone(schedule.zone).offset_s(s))} {schedule.zone})"
    return stamp(s)
