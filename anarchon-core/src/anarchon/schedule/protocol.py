"""What a schedule is: a set of instants that depends on nothing but the schedule itself.

Every instance of a fleet computes the slots alone, so two instances with equal schedules must get equal slots whenever
and wherever they were started. That is why a schedule answers one question only, has no state, and carries a digest
by which two instances can find out that they disagree.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

__all__ = ["POLICY", "Schedule", "text_of", "zones_of"]

POLICY: Final = 1
"""The version of the rules by which text becomes slots; part of every digest, so a change of rules is seen."""

TEXT_LIMIT_CHARS: Final = 200


@runtime_checkable
class Schedule(Protocol):
    """Say when a job is due; implement these two members to bring a schedule of your own.

    Times are integer Unix milliseconds. Slots are whole seconds or finer, as the schedule likes; equal schedules must
    answer equally in every process.
    """

    def next_after(self, t_ms: int, /) -> int | None:
        """Return the smallest slot strictly after `t_ms`, or None if there is none."""
        ...

    @property
    def digest(self) -> str:
        """Return a short text that is equal exactly for schedules with equal slots."""
        ...


def text_of(schedule: Schedule) -> str:
    """Return the canonical text of a schedule; for a schedule of the user's own, its class name and digest."""
    text = getattr(schedule, "text", None)
    if isinstance(text, str):
        return text
    return f"{type(schedule).__name__}({schedule.digest})"[:TEXT_LIMIT_CHARS]


def zones_of(schedule: Schedule) -> tuple[str, ...]:
    """Return the names of the time zones whose data the slots depend on; empty for a schedule of the user's own."""
    zones = getattr(schedule, "zones", ())
    return zones if isinstance(zones, tuple) else ()
