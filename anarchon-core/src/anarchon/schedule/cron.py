"""A cron expression in a time zone."""

from __future__ import annotations

from functools import partial

from anarchon.schedule import evaluate
from anarchon.schedule.base import BaseSchedule
from anarchon.schedule.civil import LAST_S, start_s
from anarchon.schedule.daylight import every_hour_s, wall_clock_s
from anarchon.schedule.fields import Fields
from anarchon.schedule.grammar import fields_of
from anarchon.schedule.zones import zone

__all__ = ["Cron"]


class Cron(BaseSchedule):
    """A cron expression: five fields, or six with seconds first, or a macro such as `@daily`.

    `tz` is a name of the pinned zone data (never the machine's zone), `name` the job's name, needed for `H` only.
    Raises ScheduleError for everything outside the grammar and for expressions that never fire.
    """

    __slots__ = ("_fields", "_zone")

    def __init__(self, expr: str, tz: str = "UTC", *, name: str | None = None) -> None:
        self._zone = zone(tz).name
        self._fields = fields_of(expr, name)

    def __repr__(self) -> str:
        return f"Cron({self.text!r}, tz={self._zone!r})"

    @property
    def fields(self) -> Fields:
        """Return the explicit values of the expression."""
        return self._fields

    @property
    def text(self) -> str:
        """Return the canonical text: sorted explicit values, a star for a full field, `H` written out."""
        return self._fields.text

    @property
    def zones(self) -> tuple[str, ...]:
        """Return the zone's name."""
        return (self._zone,)

    def next_after(self, t_ms: int, /) -> int | None:
        """Return the smallest slot strictly after `t_ms`, or None beyond the year 9989."""
        begin_s = start_s(t_ms)
        if begin_s >= LAST_S:
            return None
        rule = every_hour_s if self._fields.every_hour else wall_clock_s
        slot_s = rule(partial(evaluate.first, self._fields), zone(self._zone), begin_s)
        return None if slot_s is None or slot_s >= LAST_S else slot_s * 1000
