"""Time zones from the pinned `tzdata` package, never from the machine.

Operating systems and the package disagree on several names at any time; two instances with different data would run
one daily job twice, an hour apart. The system's data is used only where `tz="system:…"` says so.

Offsets come as tables, one per zone and UTC year, found by probing the zone twice a day and bisecting to the second:
the algorithm for daylight saving needs the changes themselves, which `zoneinfo` does not tell.
"""

from __future__ import annotations

import io
import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import TZPATH, ZoneInfo

from anarchon.errors import ScheduleError
from anarchon.schedule.civil import DAY_S, EPOCH, FIRST_S, LAST_S, year_of, year_start_s

__all__ = ["Change", "YearTable", "Zone", "year_table", "zone"]

SYSTEM_PREFIX: Final = "system:"
REFUSED_NAMES: Final = frozenset({"localtime", "local", "factory", "posixrules"})
REFUSED_PREFIXES: Final = ("posix/", "right/")
NAME_PATTERN: Final = r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z][A-Za-z0-9_+-]*){0,3}"
NAME_LIMIT_CHARS: Final = 64
ZONE_CACHE_LIMIT: Final = 700
YEAR_CACHE_LIMIT: Final = 4096
PROBE_S: Final = DAY_S // 2


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a zone's offset: from the instant `at_s` on, the local clock is `after_s` ahead of UTC."""

    at_s: int
    before_s: int
    after_s: int

    @property
    def gap_s(self) -> int:
        """Return the length of the skipped local time; negative for a fold, where local time is repeated."""
        return self.after_s - self.before_s


@dataclass(frozen=True, slots=True)
class YearTable:
    """The offsets of one zone during one UTC year: `offsets_s[i]` holds from `changes[i - 1]` to `changes[i]`."""

    changes: tuple[Change, ...]
    instants_s: tuple[int, ...]
    offsets_s: tuple[int, ...]


class Zone:
    """Tell a zone's offset to UTC and the instants at which it changes; all in whole seconds.

    Equal names give one shared object; it has no state but the zone's data.
    """

    __slots__ = ("info", "name")

    def __init__(self, name: str, info: ZoneInfo) -> None:
        self.name = name
        self.info = info

    def __repr__(self) -> str:
        return f"Zone({self.name!r})"

    def offset_s(self, s: int) -> int:
        """Return how far the local clock is ahead of UTC at the instant `s`."""
        table = year_table(self.name, year_of(s))
        return table.offsets_s[bisect_right(table.instants_s, s)]

    def last_change(self, s: int) -> Change | None:
        """Return the last change at or before `s`, looking back into the year before at most."""
        year = year_of(s)
        table = year_table(self.name, year)
        found = bisect_right(table.instants_s, s)
        if found:
            return table.changes[found - 1]
        earlier = year_table(self.name, year - 1)
        return earlier.changes[-1] if earlier.changes else None

    def first_change(self, after_s: int, until_s: int) -> Change | None:
        """Return the first change in the half-open span (after_s, until_s]."""
        return next(self.changes(after_s, until_s), None)

    def changes(self, after_s: int, until_s: int) -> Iterator[Change]:
        """Yield the changes in the half-open span (after_s, until_s], oldest first."""
        if until_s <= after_s:
            return
        for year in range(year_of(after_s), year_of(min(until_s, LAST_S)) + 1):
            table = year_table(self.name, year)
            for change in table.changes[bisect_right(table.instants_s, after_s) :]:
                if change.at_s > until_s:
                    return
                yield change

    def local(self, t_ms: int) -> datetime:
        """Return an instant as an aware datetime of this zone."""
        return (EPOCH + timedelta(milliseconds=t_ms)).astimezone(self.info)


def zone(name: str) -> Zone:
    """Return the zone of this name: `Europe/Berlin`, or `system:Europe/Berlin` for the machine's own data.

    Raises ScheduleError for every name that is not a fixed place in the pinned data.
    """
    if not isinstance(name, str):
        key = getattr(name, "key", None)
        hint = f"the name {key!r}" if isinstance(key, str) else "a name such as 'Europe/Berlin'"
        raise ScheduleError(f"tz is {name!r:.60}, not a text; write {hint}, so that the pinned zone data is used.")
    return _zone(name)


@lru_cache(maxsize=ZONE_CACHE_LIMIT)
def _zone(name: str) -> Zone:
    place = name.removeprefix(SYSTEM_PREFIX)
    folded = place.lower()
    if folded in REFUSED_NAMES or folded.startswith(REFUSED_PREFIXES):
        raise ScheduleError(
            f"tz {name!r} depends on the machine or on leap-second data, so instances would disagree; "
            "write a place such as 'Europe/Berlin', or 'UTC'."
        )
    if len(place) > NAME_LIMIT_CHARS or not re.fullmatch(NAME_PATTERN, place):
        raise ScheduleError(f"tz {name[:60]!r} is not a zone name; write a place such as 'Europe/Berlin', or 'UTC'.")
    data = _system_data(place) if name.startswith(SYSTEM_PREFIX) else _pinned_data(place)
    try:
        return Zone(name, ZoneInfo.from_file(io.BytesIO(data), key=place))
    except ValueError as error:
        raise ScheduleError(f"The zone data of tz {name!r} cannot be read ({error}); install it anew.") from error


def _pinned_data(place: str) -> bytes:
    import pkgutil

    # Opened without a look into the directory, 'europe/berlin' would work on some file systems and not on others.
    if place in _pinned_names():
        data = pkgutil.get_data("tzdata", f"zoneinfo/{place}")
        if data is not None:
            return data
    same = [known for known in _pinned_names() if known.lower() == place.lower()]
    if same:
        raise ScheduleError(f"tz {place!r} is not spelled as the zone data spells it; write {same[0]!r}.")
    import difflib

    near = difflib.get_close_matches(place, sorted(_pinned_names()), n=1)
    hint = f"did you mean {near[0]!r}?" if near else "write a place such as 'Europe/Berlin', or 'UTC'."
    raise ScheduleError(f"tz {place!r} is not in the pinned zone data (package tzdata); {hint}")


@lru_cache(maxsize=1)
def _pinned_names() -> frozenset[str]:
    import pkgutil

    data = pkgutil.get_data("tzdata", "zones")
    if data is None:
        raise ScheduleError("The package tzdata holds no zone list; install it anew: pip install --force tzdata.")
    return frozenset(data.decode("ascii").split())


def _system_data(place: str) -> bytes:
    for folder in TZPATH:
        # `pathlib` would be a fifth of this package's import time, for this one line.
        path = os.path.join(folder, place)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                return file.read()
    raise ScheduleError(
        f"tz 'system:{place}' is not in this machine's zone data ({', '.join(TZPATH) or 'no folder'}); "
        f"write {place!r} to use the pinned data."
    )


@lru_cache(maxsize=YEAR_CACHE_LIMIT)
def year_table(name: str, year: int) -> YearTable:
    """Return the offsets of one zone during one UTC year; a change in its first second belongs to it."""
    info = zone(name).info
    first_s, end_s = year_start_s(year), year_start_s(year + 1)
    low_s, low = first_s - 1, _offset_s(info, first_s - 1)
    changes: list[Change] = []
    for probe_s in range(first_s - 1 + PROBE_S, end_s, PROBE_S):
        high = _offset_s(info, probe_s)
        if high != low:
            changes.append(Change(_bisect(info, low_s, probe_s), low, high))
        low_s, low = probe_s, high
    offsets = (changes[0].before_s if changes else low, *(change.after_s for change in changes))
    return YearTable(tuple(changes), tuple(change.at_s for change in changes), offsets)


def _bisect(info: ZoneInfo, low_s: int, high_s: int) -> int:
    before = _offset_s(info, low_s)
    while high_s - low_s > 1:
        middle_s = (low_s + high_s) // 2
        if _offset_s(info, middle_s) == before:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


def _offset_s(info: ZoneInfo, s: int) -> int:
    offset = datetime.fromtimestamp(s, UTC).astimezone(info).utcoffset()
    assert offset is not None
    return offset.days * DAY_S + offset.seconds


assert FIRST_S < LAST_S
