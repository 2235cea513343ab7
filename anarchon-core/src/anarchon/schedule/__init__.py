"""When a job is due: cron expressions, fixed distances, single moments, and schedules of the user's own.

The slots of a schedule are a set that depends on the schedule and the pinned zone data alone, so that all instances
compute the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anarchon.schedule.at import At
from anarchon.schedule.combine import any_of, excluding
from anarchon.schedule.cron import Cron
from anarchon.schedule.digest import schedule_digest
from anarchon.schedule.every import Every
from anarchon.schedule.neighbours import slot_before
from anarchon.schedule.parse import parse
from anarchon.schedule.protocol import POLICY, Schedule, text_of, zones_of

if TYPE_CHECKING:
    from anarchon.schedule.why import why_no_slot
    from anarchon.schedule.words import explain

__all__ = [
    "POLICY",
    "At",
    "Cron",
    "Every",
    "Schedule",
    "any_of",
    "excluding",
    "explain",
    "parse",
    "schedule_digest",
    "slot_before",
    "text_of",
    "why_no_slot",
    "zones_of",
]


def __getattr__(name: str) -> object:
    # The words are for tools; a scheduler never needs them, and `import anarchon` has a budget.
    if name == "explain":
        from anarchon.schedule.words import explain

        return explain
    if name == "why_no_slot":
        from anarchon.schedule.why import why_no_slot

        return why_no_slot
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
