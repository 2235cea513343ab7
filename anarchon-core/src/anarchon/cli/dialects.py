"""How other schedulers read a cron expression, and how to write the same here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NoReturn

from anarchon.errors import ScheduleError
from anarchon.schedule import Schedule, parse
from anarchon.schedule.fields import DAY, FIELDS, WEEKDAY, Range

__all__ = ["DIALECTS", "Translation", "translate"]

_FREE: Final = frozenset({"*", "?"})
_ITEM: Final = re.compile(r"(?P<low>\*|\d{1,3}|[a-z]{3})(?:-(?P<high>\d{1,3}|[a-z]{3}))?(?:/(?P<step>\d{1,3}))?", re.IGNORECASE)
_SUN: Final = WEEKDAY.names
_MON: Final = (*_SUN[1:], _SUN[0])
"""The days as APScheduler 3 and `datetime.weekday()` count them."""
_BLOCKS: Final = {range(7 * k - 6, 7 * k + 1): k for k in range(1, 5)}
"""Days of a month in which each weekday is exactly once, and its number there."""


@dataclass(frozen=True, slots=True)
class Translation:
    """An expression in our grammar and a sentence for each thing that had to change.

    `weekdays`, if any, must match besides (0 = Monday): no single expression says so here.
    """

    expression: str
    remarks: tuple[str, ...] = ()
    weekdays: tuple[int, ...] | None = None

    def schedule(self, tz: str, name: str | None) -> Schedule:
        """Return the schedule to use here."""
        schedule, kept = parse(self.expression, tz, name), self.weekdays
        if kept is None:
            return schedule
        return schedule.excluding(lambda at: at.weekday() not in kept, digest=self._digest)  # type: ignore[attr-defined,no-any-return]  # a Cron

    def written(self, tz: str) -> str:
        """Return what to write: an expression, or Python where no expression says the same."""
        if self.weekdays is None:
            return repr(self.expression)
        days = ", ".join(map(str, self.weekdays))
        rest = f"excluding(lambda at: at.weekday() not in {{{days}}}, digest={self._digest!r})"
        return f"Cron({self.expression!r}, tz={tz!r}).{rest}"

    @property
    def _digest(self) -> str:
        return "only " + ",".join(_MON[day] for day in self.weekdays or ())


def translate(expression: str, dialect: str) -> Translation:
    """Read an expression as another scheduler does.

    Raises:
        ScheduleError: it has no equal here, or that scheduler would refuse it.
    """
    return DIALECTS[dialect](expression.strip())


def _quartz(expression: str) -> Translation:
    """Seconds first, an optional year last, Sunday is 1, `?` in one of the day fields, ranges may run past the end."""
    fields = expression.split()
    if len(fields) not in {6, 7}:
        _no(expression, "a quartz expression has six fields, or seven with the year")
    remarks: list[str] = []
    if len(fields) == 7:
        if fields[6] not in _FREE:
            _no(expression, f"the year {fields[6]!r:.40} has no equal here: use At(...) for single moments, or leave it out")
        remarks.append(f"The year field {fields[6]!r} is left out: there is none here.")
    day, week = fields[3].upper(), fields[5]
    if day in {"LW", "WL"} or day.startswith("L-"):
        _no(expression, f"the day {day!r:.20} has no equal here: use a schedule of your own, or L, nW or dL")
    if day not in _FREE and week not in _FREE:
        remarks.append("quartz wants '?' in one of the two day fields; here either is enough if both are restricted.")
    named = ",".join(_quartz_weekday(item, expression) for item in week.split(","))
    if named != week:
        remarks.append(f"quartz counts weekdays from 1 = Sunday, here 0 = Sunday: {week!r} is written {named!r}.")
    fields = [*_in_range(fields[:5], FIELDS[:5], "quartz", remarks), named]
    return Translation(" ".join(_seconds_first(fields, remarks)), tuple(remarks))


def _quartz_weekday(item: str, expression: str) -> str:
    """Write an item of the weekday field with names, which mean the same in both."""
    if item.upper() == "L":
        return "SAT"

    def name(found: re.Match[str]) -> str:
        number = int(found[0])
        if not 1 <= number <= 7:
            _no(expression, f"quartz has no weekday {number}: they are 1 (Sunday) to 7 (Saturday)")
        return _SUN[number - 1]

    named = re.sub(r"(?<![#/\d])\d+", name, item)
    return named.partition("/")[0] if named.upper().startswith("SAT/") else named  # no day of the week is left to step to


def _apscheduler3(expression: str) -> Translation:
    """Five fields; numbers of weekdays start at 0 = Monday; both day fields must match."""
    fields = expression.split()
    if len(fields) != 5:
        _no(expression, "CronTrigger.from_crontab takes five fields")
    remarks: list[str] = []
    day, week = fields[2], fields[4]
    if day.lower() == "last":
        remarks.append(f"The last day of the month, {day!r}, is written 'L' here.")
        day = "L"
    month, week = (_names_only(part, remarks) for part in (fields[3], week))
    days = _apscheduler3_weekdays(week, expression)
    if re.search(r"\d|\*/", week):
        named = _compressed(days)
        remarks.append(f"APScheduler 3 counts weekdays from 0 = Monday, here 0 = Sunday: {week!r} is written {named!r}.")
        week = named
    kept: tuple[int, ...] | None = None
    if day[:1] not in _FREE and week not in _FREE:
        remarks.append("APScheduler 3 fires when both day fields match; here either is enough.")
        k = _block(day)
        if k is None:
            week, kept = "*", days
        else:
            day, week = "*", ",".join(f"{_MON[each]}#{k}" for each in days)
    return Translation(" ".join((fields[0], fields[1], day, month, week)), tuple(remarks), kept)


def _names_only(part: str, remarks: list[str]) -> str:
    """Drop what APScheduler 3 does not read: whatever follows a name or two (`mon-fri/2` is `mon-fri` there)."""
    heads = [(re.match(r"[a-z]+(?:-[a-z]+)?", item, re.IGNORECASE), item) for item in part.split(",")]
    read = ",".join(head[0] if head else item for head, item in heads)
    if read != part:
        remarks.append(f"APScheduler 3 passes over what follows names: {part!r} is written {read!r}.")
    return read


def _apscheduler3_weekdays(week: str, expression: str) -> tuple[int, ...]:
    """Return the weekdays of a field, 0 = Monday."""
    found: set[int] = set()
    for item in week.split(","):
        match = _ITEM.fullmatch(item)
        if match is None or (match["low"] == "*" and match["high"]):
            _no(expression, f"APScheduler 3 would refuse {item!r:.40} as a weekday")
        low, high, step = match["low"], match["high"], int(match["step"] or 1)
        first = 0 if low == "*" else _number(low, _MON)
        last = _number(high, _MON) if high else 6 if low == "*" or match["step"] else first
        if first is None or last is None or not first <= last <= 6 or step < 1:
            _no(expression, f"APScheduler 3 would refuse {item!r:.40}: its weekdays are 0 (Monday) to 6 (Sunday), in order")
        found.update(range(first, last + 1, step))
    return tuple(sorted(found))


def _block(day: str) -> int | None:
    """Return k if a day field names exactly the k-th seven days of a month."""
    match = re.fullmatch(r"(\d{1,2})-(\d{1,2})", day)
    return _BLOCKS.get(range(int(match[1]), int(match[2]) + 1)) if match else None


def _compressed(days: Iterable[int]) -> str:
    """Write weekdays (0 = Monday) with names, neighbours as a range."""
    days = sorted(days)
    if len(days) == 7:
        return "*"
    runs: list[list[int]] = []
    for day in days:
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    return ",".join(f"{_MON[run[0]]}-{_MON[run[-1]]}" if len(run) > 2 else ",".join(_MON[day] for day in run) for run in runs)


def _croniter(expression: str) -> Translation:
    """Seconds last; either day field is enough, whatever it begins with; ranges may run past the end."""
    fields = expression.split()
    if expression.startswith("@") or len(fields) not in {5, 6, 7}:
        return Translation(expression)  # a macro means the same, and anything else is refused by our grammar
    remarks: list[str] = []
    if len(fields) == 7:
        _no(expression, "the year field has no equal here: use At(...) for single moments, or leave it out")
    if len(fields) == 6:
        fields = [fields[5], *fields[:5]]
        remarks.append("croniter reads six fields with the seconds last, here they come first.")
    spans = FIELDS[-len(fields) :]
    if any(re.match(r"h(\W|$)", item, re.IGNORECASE) for part in fields for item in part.split(",")):
        remarks.append("H is spread by another hash here: the slots move.")
    last = re.sub(r"(?<!\w)l([0-7])", r"\1L", fields[-1], flags=re.IGNORECASE)
    if last != fields[-1]:
        remarks.append(f"A last weekday is written with the L behind it: {fields[-1]!r} is written {last!r}.")
    fields = [*_in_range([*fields[:-1], last], spans, "croniter", remarks)]
    _either_day(fields, expression, remarks)
    return Translation(" ".join(_seconds_first(fields, remarks) if len(fields) == 6 else fields), tuple(remarks))


def _either_day(fields: list[str], expression: str, remarks: list[str]) -> None:
    """Spell the stars out of two restricted day fields: with croniter either is enough, whatever it begins with."""
    places = ((-3, -1, DAY), (-1, -3, WEEKDAY))
    for place, other, span in places:
        if fields[place] in {"*/1", f"{span.low}-{span.high}"} and "*" in fields[other]:
            fields[place] = "*"
    if fields[-3] in _FREE or fields[-1] in _FREE:
        return
    for place, _, span in places:
        part = fields[place]
        if "*" in part.split(","):
            _no(expression, f"croniter reads '*' in the list {part!r:.40} in its own way: leave it out, or alone")
        if part.startswith("*"):
            fields[place] = part.replace("*", f"{span.low}-{span.high}")
            why = "croniter fires when either day field matches; here one that begins with '*' demands both"
            remarks.append(f"{why}: {part!r} is written {fields[place]!r}.")


def _in_range(fields: list[str], spans: Iterable[Range], who: str, remarks: list[str]) -> list[str]:
    """Write ranges that run past the end as two, and steps that leave one value as that value."""
    written = []
    for part, span in zip(fields, spans, strict=True):
        items = [_item_in_range(item, span, who) for item in part.split(",")]
        text = "*" if set(items) == {"*"} else ",".join(items)
        if text != part:
            remarks.append(f"{who} reads {part!r} in the {span.name} field as {text!r}: write that.")
        written.append(text)
    return written


def _item_in_range(item: str, span: Range, who: str) -> str:
    match = _ITEM.fullmatch(item)
    if match is None:
        return f"*{item}" if item.startswith("/") and item[1:].isdecimal() else item
    if match["high"] is None and match["step"] is None:
        return item
    low = span.low if match["low"] == "*" else _number(match["low"], span.names, span.low)
    high = _number(match["high"], span.names, span.low) if match["high"] else span.high
    if low is None or high is None:
        return item
    if who == "croniter" and match["high"] and high == low:
        every = f"{span.low}-{span.high}" if span in {DAY, WEEKDAY} else "*"  # it goes once around
        return f"{every}/{match['step']}" if match["step"] else every
    if high < low:
        if span is WEEKDAY and match["low"].isalpha():
            return item  # names of weekdays may run past the end here too
        if match["step"]:
            _no(item, f"{who} steps past the end of the {span.name} field in its own way: write the values one by one")
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ((low, span.high), (span.low, high)))
    one_value = match["step"] is not None and int(match["step"]) > max(high - low, 1)
    return str(low) if one_value else item


def _number(word: str, names: tuple[str, ...], low: int = 0) -> int | None:
    """Return the value of a number or a name, None if there is no such name."""
    if word.isdecimal():
        return int(word)
    return names.index(word.upper()) + low if word.upper() in names else None


def _seconds_first(fields: list[str], remarks: list[str]) -> list[str]:
    """Leave out a second of 0, and spell every second as we do."""
    seconds = fields[0]
    if seconds.isdecimal() and int(seconds) == 0:
        remarks.append(f"The seconds field {seconds!r} is left out: five fields start at second 0.")
        return fields[1:]
    if seconds == "*":
        remarks.append("Every second is written '*/1' here: a bare '*' in front is refused as a likely mistake.")
        return ["*/1", *fields[1:]]
    return fields


def _no(expression: str, why: str) -> NoReturn:
    msg = f"{expression!r:.80}: {why}"
    raise ScheduleError(msg)


DIALECTS: Final[dict[str, Callable[[str], Translation]]] = {
    "apscheduler3": _apscheduler3,
    "croniter": _croniter,
    "quartz": _quartz,
}
