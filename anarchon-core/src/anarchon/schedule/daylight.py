"""What happens to an expression when the local clock jumps: pure functions over a zone and an evaluator.

Let the clock of the zone show L(u) at the instant u, and let N be the local times that the expression names.

- *Every-hour* schedules (all 24 hours named) keep real time: the slots are all u with L(u) in N.
- *Wall-clock* schedules (all others) give each n in N one slot, the first instant at which the clock shows n or later:
  the end of the gap for a skipped time, the first pass for a repeated one.
- Jumps of more than three hours are changes of the calendar: skipped local times have no slot, repeated ones count again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from anarchon.schedule.zones import Change, Zone

__all__ = ["CALENDAR_JUMP_S", "First", "every_hour_s", "is_calendar_jump", "wall_clock_s"]

CALENDAR_JUMP_S: Final = 3 * 3600
"""A jump beyond this length is a change of the calendar, not of the clock."""

First = Callable[[int], int | None]
"""Answer the first named local second at or after one; see `evaluate.first`."""


def is_calendar_jump(change: Change) -> bool:
    """Tell whether a change is too large to be daylight saving."""
    return abs(change.gap_s) > CALENDAR_JUMP_S


def every_hour_s(first: First, zone: Zone, s: int) -> int | None:
    """Return the first slot at or after the instant `s` of an every-hour schedule."""
    offset = zone.offset_s(s)
    while True:
        named = first(s + offset)
        if named is None:
            return None
        change = zone.first_change(s, named - offset)
        if change is None:
            return named - offset
        # The clock jumped before it could show the named time: look again from the jump on, with the new offset.
        s, offset = change.at_s, change.after_s


def wall_clock_s(first: First, zone: Zone, s: int) -> int | None:
    """Return the first slot at or after the instant `s` of a wall-clock schedule."""
    offset = zone.offset_s(s)
    named = first(_earliest_unserved(zone, s, offset))
    while named is not None:
        if named - offset < s:
            # The named time lies in the gap that ends at `s`.
            return s
        change = zone.first_change(s, named - offset)
        if change is None:
            return named - offset
        shown = change.at_s + change.after_s
        if change.gap_s > 0 and named < shown:
            if not is_calendar_jump(change):
                return change.at_s
            named = first(shown)
        elif change.gap_s < 0 and is_calendar_jump(change):
            named = first(shown)
        s, offset = change.at_s, change.after_s
    return None


def _earliest_unserved(zone: Zone, s: int, offset: int) -> int:
    """Return the earliest local time that has no slot before `s`."""
    change = zone.last_change(s)
    if change is None or is_calendar_jump(change):
        return s + offset
    if change.gap_s < 0:
        # In the second pass of a fold everything up to its end was served by the first pass.
        return max(s + offset, change.at_s + change.before_s)
    if change.at_s == s:
        return change.at_s + change.before_s
    return s + offset
