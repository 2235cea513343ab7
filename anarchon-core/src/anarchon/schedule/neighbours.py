"""The slots around an instant, for any schedule that answers `next_after`."""

from __future__ import annotations

from typing import Final

from anarchon.schedule.civil import DAY_S, FIRST_S
from anarchon.schedule.protocol import Schedule

__all__ = ["is_slot", "slot_before"]

LOOK_BACK_MS: Final = 51 * 366 * DAY_S * 1000
"""No schedule waits longer than 50 years between two slots."""
WIDER: Final = 8


def is_slot(schedule: Schedule, t_ms: int) -> bool:
    """Tell whether an instant is a slot."""
    return schedule.next_after(t_ms - 1) == t_ms


def slot_before(schedule: Schedule, t_ms: int) -> int | None:
    """Return the largest slot strictly before `t_ms` within 51 years, or None.

    Takes some 60 evaluations: for tools and reports, not for the scheduler.
    """
    earliest_ms = max(t_ms - LOOK_BACK_MS, FIRST_S * 1000)
    width_ms = 60_000
    while True:
        start_ms = max(t_ms - width_ms, earliest_ms) - 1
        found = schedule.next_after(start_ms)
        if found is not None and found < t_ms:
            break
        if start_ms < earliest_ms:
            return None
        width_ms *= WIDER
    # The answer to "what comes after x" grows with x: halve the span in which it is still before t_ms.
    low_ms, high_ms = found, t_ms - 1
    while low_ms < high_ms:
        middle_ms = (low_ms + high_ms) // 2
        later = schedule.next_after(middle_ms)
        if later is not None and later < t_ms:
            low_ms = later
        else:
            high_ms = middle_ms
    return low_ms
