"""How other schedulers read a cron expression, and how to write the same here."""

from __future__ import annotations

import re
from collections.abc import Callable

from anarchon.errors import ScheduleError

__all__ = ["DIALECTS", "translate"]

_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_Remarks = list[str]


def translate(expression: str, dialect: str) -> tuple[str, _Remarks]:
    """Return the expression in our grammar, and one sentence for each thing that had to change.

    Raises:
        ScheduleError: it has no equal here.
    """
    return DIALECTS[dialect](expression.strip())


def _quartz(expression: str) -> tuple[str, _Remarks]:
    """Seconds first, an optional year last, Sunday is 1, `?` in one of the day fields."""
    fields = expression.split()
    if len(fields) not in {6, 7}:
        msg = f"{expression!r:.80}: a quartz expression has six fields, or seven with the year"
        raise ScheduleError(msg)
    remarks: _Remarks = []
    if len(fields) == 7:
        if fields[6] != "*":
            msg = f"the year field {fields[6]!r:.40} has no equal here: use At(...) for single moments, or leave it out"
            raise ScheduleError(msg)
        remarks.append("The year field '*' is left out: there is none here.")
    seconds, minutes, hours, day, month, week = fields[:6]
    if re.search(r"\d", week):
        shifted = re.sub(r"(?<![#\d/])\d+", lambda match: _shift(match[0], 1), week)
        remarks.append(f"quartz counts weekdays from 1 = Sunday, here 0 = Sunday: {week!r} is written {shifted!r}.")
        week = shifted
    if seconds == "*":
        seconds = "*/1"
        remarks.append("Every second is written '*/1' here: a bare '*' in front is refused as a likely mistake.")
    head = "" if seconds == "0" else f"{seconds} "
    if seconds == "0":
        remarks.append("The seconds field '0' is left out: five fields start at second 0.")
    return f"{head}{minutes} {hours} {day} {month} {week}", remarks


def _apscheduler3(expression: str) -> tuple[str, _Remarks]:
    """Five fields; numbers of weekdays start at 0 = Monday; both day fields must match."""
    fields = expression.split()
    if len(fields) != 5:
        msg = f"{expression!r:.80}: CronTrigger.from_crontab takes five fields"
        raise ScheduleError(msg)
    minutes, hours, day, month, week = fields
    remarks: _Remarks = []
    if re.search(r"\d", week):
        named = re.sub(r"(?<![/#\d])\d", lambda match: _DAYS[(int(match[0]) + 1) % 7], week)
        remarks.append(f"APScheduler 3 counts weekdays from 0 = Monday, here 0 = Sunday: {week!r} is written {named!r}.")
        week = named
    if "*" not in {day[:1], week[:1]}:
        remarks.append("APScheduler 3 fires when both day fields match, here either is enough: check this job by hand.")
    return " ".join((minutes, hours, day, month, week)), remarks


def _croniter(expression: str) -> tuple[str, _Remarks]:
    """Seconds last; a day field that begins with `*/n` still means either-or."""
    fields = expression.split()
    remarks: _Remarks = []
    if len(fields) == 7:
        msg = f"{expression!r:.80}: the year field has no equal here: use At(...) for single moments, or leave it out"
        raise ScheduleError(msg)
    if len(fields) == 6:
        seconds = "*/1" if fields[5] == "*" else fields[5]
        fields = [seconds, *fields[:5]]
        remarks.append("croniter reads six fields with the seconds last, here they come first.")
    day, week = (fields[-3], fields[-1]) if len(fields) >= 5 else ("*", "*")
    if day not in {"*", "?"} and week not in {"*", "?"} and "*" in {day[:1], week[:1]}:
        remarks.append("croniter fires when either day field matches, here a field that begins with '*' demands both.")
    return " ".join(fields), remarks


def _shift(number: str, by: int) -> str:
    return str((int(number) - by) % 7)


DIALECTS: dict[str, Callable[[str], tuple[str, _Remarks]]] = {
    "apscheduler3": _apscheduler3,
    "croniter": _croniter,
    "quartz": _quartz,
}
