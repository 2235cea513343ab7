"""A brute-force walk of a local clock: the definition of a slot, spelled out, using none of the package's code.

The clock of the zone is looked at in every minute (or second) of a window, and the rule is applied as it is written:
an every-hour schedule has a slot wherever the clock shows a named time; a wall-clock schedule has one at the first look
at which the clock shows a named time *or later*. Jumps beyond three hours reset what "later" means.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from importlib.resources import files
from zoneinfo import ZoneInfo

NAIVE_EPOCH = datetime(1970, 1, 1)
DAY_S = 86_400
CALENDAR_S = 3 * 3600
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
ZONES = (
    "Africa/Cairo",
    "Africa/Casablanca",
    "Africa/El_Aaiun",
    "Africa/Juba",
    "Africa/Monrovia",
    "Africa/Sao_Tome",
    "America/Anchorage",
    "America/Caracas",
    "America/Havana",
    "America/Mexico_City",
    "America/New_York",
    "America/Nuuk",
    "America/Phoenix",
    "America/Santiago",
    "America/Sao_Paulo",
    "America/St_Johns",
    "America/Vancouver",
    "Antarctica/Casey",
    "Antarctica/Macquarie",
    "Antarctica/Troll",
    "Asia/Amman",
    "Asia/Dhaka",
    "Asia/Gaza",
    "Asia/Jerusalem",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Asia/Pyongyang",
    "Asia/Singapore",
    "Asia/Tehran",
    "Asia/Tokyo",
    "Atlantic/Azores",
    "Australia/Adelaide",
    "Australia/Eucla",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Europe/Berlin",
    "Europe/Chisinau",
    "Europe/Dublin",
    "Europe/Istanbul",
    "Europe/Lisbon",
    "Europe/London",
    "Europe/Moscow",
    "Europe/Volgograd",
    "Pacific/Apia",
    "Pacific/Auckland",
    "Pacific/Chatham",
    "Pacific/Easter",
    "Pacific/Kiritimati",
    "Pacific/Kwajalein",
    "Pacific/Norfolk",
    "Pacific/Tongatapu",
)


def load_zone(name: str) -> ZoneInfo:
    with (files("tzdata") / "zoneinfo" / name).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def offset_s(zone: ZoneInfo, s: int) -> int:
    offset = datetime.fromtimestamp(s, UTC).astimezone(zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def jumps(zone: ZoneInfo, first_year: int = 1972, last_year: int = 2037) -> list[int]:
    """Return the instants at which the offset changes."""
    found = []
    s = int(datetime(first_year, 1, 1, tzinfo=UTC).timestamp())
    end_s = int(datetime(last_year + 1, 1, 1, tzinfo=UTC).timestamp())
    before = offset_s(zone, s)
    while s < end_s:
        after = offset_s(zone, s + 2 * DAY_S)
        if after != before:
            low, high = s, s + 2 * DAY_S
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset_s(zone, middle) == before else (low, middle)
            found.append(high)
        s, before = s + 2 * DAY_S, after
    return found


@dataclass(frozen=True)
class Expression:
    """An expression as text, and what it means, made together so that nothing has to be parsed."""

    text: str
    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    day: Callable[[date], bool]

    def names(self, naive_s: int) -> bool:
        second = naive_s % DAY_S
        return (
            second // 60 % 60 in self.minutes
            and second // 3600 in self.hours
            and second % 60 in self.seconds
            and self.day((NAIVE_EPOCH + timedelta(days=naive_s // DAY_S)).date())
        )

    @property
    def every_hour(self) -> bool:
        return len(self.hours) == 24


def random_expression(rng: random.Random, *, with_seconds: bool = False) -> Expression:
    """Return an expression that often fires: hours and minutes vary widely, days are restricted now and then."""
    hour_text, hours = random_field(rng, 0, 23, star=0.3)
    minute_text, minutes = random_field(rng, 0, 59, star=0.15)
    day_text, day = random_day(rng)
    if not with_seconds:
        return Expression(f"{minute_text} {hour_text} {day_text}", frozenset({0}), minutes, hours, day)
    second_text, seconds = random_field(rng, 0, 59, star=0)
    return Expression(f"{second_text} {minute_text} {hour_text} {day_text}", seconds, minutes, hours, day)


def random_field(rng: random.Random, low: int, high: int, star: float) -> tuple[str, frozenset[int]]:
    draw = rng.random()
    if draw < star:
        return "*", frozenset(range(low, high + 1))
    if draw < star + 0.25:
        step = rng.randint(2, (high - low) // 2)
        return f"*/{step}", frozenset(range(low, high + 1, step))
    texts, values = [], set()
    for _ in range(rng.randint(1, 4)):
        first = rng.randint(low, high)
        last = rng.randint(first, high)
        if rng.random() < 0.6:
            texts.append(str(first))
            values.add(first)
        else:
            texts.append(f"{first}-{last}")
            values.update(range(first, last + 1))
    return ",".join(texts), frozenset(values)


def random_day(rng: random.Random) -> tuple[str, Callable[[date], bool]]:
    draw = rng.random()
    weekday, day = rng.randrange(7), rng.randint(1, 28)
    if draw < 0.6:
        return "* * *", lambda _: True
    if draw < 0.7:
        return f"* * {weekday}", lambda moment: moment.isoweekday() % 7 == weekday
    if draw < 0.8:
        return f"{day} * {WEEKDAYS[weekday]}", lambda moment: moment.day == day or moment.isoweekday() % 7 == weekday
    if draw < 0.88:
        return "*/2 * 1-6", lambda moment: moment.day % 2 == 1 and moment.isoweekday() < 7
    if draw < 0.94:
        return "L * 0", lambda moment: (moment + timedelta(days=1)).day == 1 or moment.isoweekday() == 7
    return f"* * {weekday}L", lambda m: m.isoweekday() % 7 == weekday and (m + timedelta(days=7)).month != m.month


@dataclass(frozen=True)
class Window:
    """What a local clock shows at each look of a window: `shown_s[i]` at `begin_s + i * step_s`."""

    begin_s: int
    step_s: int
    shown_s: list[int]

    @property
    def end_s(self) -> int:
        return self.begin_s + self.step_s * len(self.shown_s)


def look(zone: ZoneInfo, begin_s: int, end_s: int, step_s: int) -> Window:
    return Window(begin_s, step_s, [s + offset_s(zone, s) for s in range(begin_s, end_s, step_s)])


def slots(expression: Expression, window: Window) -> list[int]:
    """Return all slots of a window in Unix seconds; what the clock showed before the window is not known."""
    found = []
    highest = window.shown_s[0] - window.step_s
    previous = highest
    for index, shown in enumerate(window.shown_s):
        jump = shown - previous - window.step_s
        if abs(jump) > CALENDAR_S:
            highest = shown - window.step_s
        if expression.every_hour:
            hit = expression.names(shown)
        else:
            hit = any(expression.names(n) for n in range(highest + window.step_s, shown + 1, window.step_s))
        if hit:
            found.append(window.begin_s + index * window.step_s)
        highest = max(highest, shown)
        previous = shown
    return found
