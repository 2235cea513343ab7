"""The accepted grammar of cron expressions; everything else is refused with field, value and reason.

Strict on purpose: each form that other libraries read in two ways is refused, and the sentence says what to write.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NoReturn

from anarchon.errors import ScheduleError
from anarchon.schedule.fields import DAY, FIELDS, LAST, LONGEST_MONTH, MONTH, WEEKDAY, Fields, Range
from anarchon.schedule.spread import is_spread, spread_values

__all__ = ["MACROS", "TEXT_LIMIT_CHARS", "fields_of", "tidy"]

TEXT_LIMIT_CHARS: Final = 256
CACHE_LIMIT: Final = 4096
"""How many different expressions are remembered; further ones are read again when they come back."""

MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# Texts, compiled at first use: `import anarchon` has a budget. The expression is known to be ASCII here.
ITEM: Final = r"(?P<low>\*|\d{1,4}|[a-z]{3})(?:-(?P<high>\d{1,4}|[a-z]{3}))?(?:/(?P<step>\d{1,4}))?"
NEAREST: Final = r"(\d{1,4})w"
NTH: Final = r"(\d{1,4}|[a-z]{3})(?:#(\d{1,4})|l)"
COMMON_MONTH_DAYS: Final = 28


def tidy(text: object) -> str:
    """Return the text in lower case with single blanks; raise ScheduleError if it is no short ASCII text."""
    if not isinstance(text, str):
        raise ScheduleError(
            f"The schedule is {text!r:.60}, not a text; write a cron expression such as '*/5 * * * *', or Every(...)."
        )
    if len(text) > TEXT_LIMIT_CHARS:
        raise ScheduleError(
            f"The expression {text[:24]!r}… has {len(text)} characters, and {TEXT_LIMIT_CHARS} is the most; "
            "join two shorter ones with |."
        )
    strange = next((char for char in text if not (" " <= char <= "~" or char == "\t")), None)
    if strange is not None:
        raise ScheduleError(f"The expression {text[:60]!r} holds the character {strange!r}; write plain ASCII text on one line.")
    folded = " ".join(text.lower().split())
    if not folded:
        raise ScheduleError("The expression is empty; write five fields such as '*/5 * * * *', or a macro as '@daily'.")
    return folded


def fields_of(text: object, name: str | None = None) -> Fields:
    """Return the explicit values of an expression; `name` is the job's name, needed for `H` only.

    Raises ScheduleError with one sentence: field, value, reason, and what to write instead.
    """
    folded = tidy(text)
    if "h" not in folded or folded.startswith("@"):
        return _fields(folded)
    # The name is used up here, so a hundred thousand names share the few schedules that they are spread over.
    return _fields(_written_out(folded, name))


def _written_out(folded: str, name: str | None) -> str:
    parts = folded.split()
    if len(parts) not in {5, 6}:
        return folded
    spans = FIELDS[-len(parts) :]
    return " ".join(_replace_spread(span, part, name) for span, part in zip(spans, parts, strict=True))


def _replace_spread(span: Range, part: str, name: str | None) -> str:
    return ",".join(
        ",".join(map(str, sorted(spread_values(span, item, name)))) if is_spread(item) else item for item in part.split(",")
    )


@lru_cache(maxsize=CACHE_LIMIT)
def _fields(folded: str) -> Fields:
    fields = _shared(_read(folded))
    if not fields.fires:
        raise ScheduleError(
            f"The expression '{folded}' never fires: no month {','.join(map(str, fields.months))} has a day "
            f"{','.join(map(str, fields.days))}; write a day that exists, or L for the last one."
        )
    return fields


@lru_cache(maxsize=CACHE_LIMIT)
def _shared(fields: Fields) -> Fields:
    """Return one object for equal values, so that jobs which spell a schedule differently share it."""
    return fields


def _read(folded: str) -> Fields:
    parts = _split(folded)
    second, minute, hour, day, month, weekday = parts
    weekdays, nth = _weekdays(weekday, day)
    months = _values(MONTH, month)
    days, last_day, nearest = _days(day, weekday, months)
    starred = day[0] in "*?" or weekday[0] in "*?"
    any_day, any_weekday = days == DAY.full and nearest is None, weekdays == WEEKDAY.full and not nth
    if (any_day or any_weekday) and not starred:
        # Both were written without a star, so either is enough, and one of them is every day: `0 0 1-31 * 5`.
        days, last_day, weekdays = DAY.full, False, WEEKDAY.full
        any_day = any_weekday = True
    return Fields(
        seconds=_values(FIELDS[0], second),
        minutes=_values(FIELDS[1], minute),
        hours=_values(FIELDS[2], hour),
        days=days,
        months=months,
        weekdays=weekdays,
        last_day=last_day and not any_day,
        nearest=nearest,
        nth=nth,
        both_days=starred and not (any_day or any_weekday),
    )


def _split(folded: str) -> list[str]:
    if folded.startswith("@"):
        if folded == "@reboot":
            raise ScheduleError("'@reboot' names no time, so it has no slot to share; call the function when the process starts.")
        if folded not in MACROS:
            raise ScheduleError(f"'{folded[:40]}' is no macro; write one of {', '.join(MACROS)} or '@every 30s'.")
        folded = MACROS[folded]
    parts = folded.split()
    if parts[0].startswith(("tz=", "cron_tz=")):
        raise ScheduleError(f"The expression begins with '{parts[0].upper()}'; give the zone as tz='…' instead.")
    if len(parts) == 5:
        return ["0", *parts]
    if len(parts) != 6:
        raise ScheduleError(
            f"The expression '{folded[:60]}' has {len(parts)} fields; write 5 (minute hour day month weekday), "
            "or 6 with seconds first."
        )
    if parts[0] == "*":
        raise ScheduleError(
            f"The second field of '{folded}' is '*': the first of six fields is the second, and a bare star there is "
            "mostly an expression with seconds last; write '*/1' for every second."
        )
    return parts


def _values(span: Range, part: str) -> tuple[int, ...]:
    values: set[int] = set()
    for item in part.split(","):
        values |= _item(span, item)
    return tuple(sorted(values))


def _days(day: str, weekday: str, months: tuple[int, ...]) -> tuple[tuple[int, ...], bool, int | None]:
    """Return the values, whether the last day is named, and the n of `nW`."""
    if day == "?":
        return DAY.full, False, None
    match = re.fullmatch(NEAREST, day)
    if match is not None:
        _alone(DAY, day, weekday)
        nearest = _number(DAY, match[1], day)
        shortest = min(LONGEST_MONTH[month - 1] if month != 2 else COMMON_MONTH_DAYS for month in months)
        if nearest > shortest:
            _refuse(DAY, day, f"some of the months have only {shortest} days", f"write {shortest}W or L")
        return DAY.full, False, nearest
    items = day.split(",")
    numbers = [item for item in items if item != "l"]
    last_day = len(numbers) < len(items)
    if not numbers:
        return (), last_day, None
    return _values(DAY, ",".join(numbers)), last_day, None


def _weekdays(weekday: str, day: str) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Return the values, or every weekday and the pairs of `d#k` and `dL`."""
    if weekday == "?":
        return WEEKDAY.full, ()
    items = weekday.split(",")
    matches = [re.fullmatch(NTH, item) for item in items]
    if not any(matches):
        return _values(WEEKDAY, weekday), ()
    _alone(WEEKDAY, weekday, day)
    pairs: set[tuple[int, int]] = set()
    for item, match in zip(items, matches, strict=True):
        if match is None:
            _refuse(WEEKDAY, item, "a plain weekday and one of 'd#k' or 'dL' cannot be mixed", "join two with |")
        k = LAST if match[2] is None else int(match[2])
        if match[2] is not None and not 1 <= k <= 5:
            _refuse(WEEKDAY, item, f"no month has weekday number {k}", "write k from 1 to 5, or dL for the last")
        pairs.add((_number(WEEKDAY, match[1], item) % 7, k))
    return WEEKDAY.full, tuple(sorted(pairs))


def _alone(span: Range, part: str, other: str) -> None:
    if other not in {"*", "?"}:
        _refuse(span, part, "it cannot be combined with a restricted other day field", "write * there, or join with |")


def _item(span: Range, item: str) -> set[int]:
    match = re.fullmatch(ITEM, item)
    if match is None or (match["low"] == "*" and match["high"] is not None):
        _refuse(span, item, _why_not(span, item), f"write *, */n, a, a-b or a-b/n with {span.low}-{span.high}")
    low, high, step = match["low"], match["high"], match["step"]
    wraps = False
    if low == "*":
        first, last = span.low, span.high
    else:
        first = _number(span, low, item)
        last = _number(span, high, item) if high is not None else (span.high if step is not None else first)
        # A week has no first day, so a range of weekday names may pass its end (SAT-MON); numbers may not.
        wraps = span is WEEKDAY and last < first and low.isalpha() and high is not None and high.isalpha()
    if last < first and not wraps:
        _refuse(span, item, "the range runs backwards", f"write {first}-{span.high},{span.low}-{last}")
    values = list(range(first, last + (7 if wraps else 0) + 1))
    if step is not None:
        values = _stepped(span, item, values, int(step))
    return {value % 7 for value in values} if span is WEEKDAY else set(values)


def _stepped(span: Range, item: str, values: list[int], step: int) -> list[int]:
    if step < 1:
        _refuse(span, item, "a step is at least 1", f"write {item.split('/', 1)[0]}/1")
    if step > 1 and step >= len(values):
        _refuse(span, item, f"the step {step} leaves only the value {values[0]}", f"write {values[0]} if that is meant")
    return values[::step]


def _number(span: Range, word: str, item: str) -> int:
    if word.isalpha():
        name = word.upper()
        if name in span.names:
            return span.names.index(name) + span.low
        _refuse(span, item, _why_not(span, word), f"write a value from {span.low} to {span.high}")
    value = int(word)
    high = 7 if span is WEEKDAY else span.high
    if not span.low <= value <= high:
        _refuse(span, item, f"{value} is not between {span.low} and {high}", f"write a value from {span.low} to {high}")
    return value


def _why_not(span: Range, word: str) -> str:
    name = word.upper()
    for other in FIELDS:
        if name in other.names and other is not span:
            return f"it is a name of the {other.name} field"
    if name.startswith("R") and not name.isalpha():
        return "random values would differ on every instance"
    reasons = {
        "R": "a random value would differ on every instance, and H is the stable one",
        "L": "L stands in the day-of-month field, and as dL for the last such weekday",
        "LW": "LW is not known; the last weekdays of a month are 1L to 5L",
        "?": "? stands alone in the day fields only",
        "": "an item of the list is empty",
    }
    if name in reasons:
        return reasons[name]
    if name.endswith("W"):
        return "nW stands alone in the day-of-month field"
    if "#" in name or (name.endswith("L") and name[:-1].isalnum()):
        return "d#k and dL stand in the day-of-week field"
    return "it is no value of this field"


def _refuse(span: Range, item: str, reason: str, instead: str) -> NoReturn:
    raise ScheduleError(f"{item.upper()!r:.60} in the {span.name} field is refused because {reason}; {instead}.")
