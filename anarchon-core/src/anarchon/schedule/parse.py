"""From what a user wrote to a schedule."""

from __future__ import annotations

from anarchon.errors import ScheduleError
from anarchon.schedule.cron import Cron
from anarchon.schedule.every import EVERY_MACRO, every_of
from anarchon.schedule.grammar import tidy
from anarchon.schedule.protocol import Schedule
from anarchon.schedule.zones import zone

__all__ = ["parse"]


def parse(text: Schedule | str, tz: str = "UTC", name: str | None = None) -> Schedule:
    """Return the schedule of a text: a cron expression, a macro, or `@every 30s`.

    A schedule is returned as it is, whether of the core or of the user's own. `tz` is the zone of an expression (it
    has no meaning for `@every`, whose grid is the same everywhere), `name` the job's name, needed for `H` only.
    Raises ScheduleError with one sentence for everything else.
    """
    if not isinstance(text, str) and isinstance(text, Schedule) and not isinstance(text, type):
        if tz != "UTC":
            raise ScheduleError(f"tz={tz!r} is for an expression; a schedule has its own zone: Cron('…', tz={tz!r}).")
        return text
    folded = tidy(text)
    if folded.split(" ", 1)[0] == EVERY_MACRO:
        zone(tz)
        return every_of(folded)
    return Cron(folded, tz, name=name)
