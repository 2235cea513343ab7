"""The digest that stands in a job's row, by which instances find out that they compute different slots.

Beside the schedule it holds the offsets of its zones, and the instants at which they change, in the UTC years of the
slot before, this slot and the slot after: two instances with different zone data are told as soon as it matters, and
not because of a law that takes effect in ten years.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from anarchon.schedule.base import short_hash
from anarchon.schedule.civil import FIRST_S, LAST_S, year_of, year_start_s
from anarchon.schedule.protocol import POLICY, Schedule, zones_of
from anarchon.schedule.zones import year_table

__all__ = ["schedule_digest"]

CACHE_LIMIT: Final = 4096
YEARS_LIMIT: Final = 50
NEVER_CHANGES: Final = frozenset({"UTC"})


@dataclass(frozen=True, slots=True)
class _Keyed:
    """A schedule that is found again by its digest, hashable or not."""

    digest: str
    schedule: Schedule = field(compare=False)


def schedule_digest(schedule: Schedule, slot_ms: int) -> str:
    """Return the digest of a schedule around one of its slots.

    It is equal on two instances exactly if they agree on policy, canonical text, zone and the zone's offsets there.
    For a schedule of the user's own it is the hash of its digest.
    """
    digest = schedule.digest
    if NEVER_CHANGES.issuperset(zones_of(schedule)):
        return _plain(digest)
    return _around(_Keyed(digest, schedule), slot_ms)


@lru_cache(maxsize=CACHE_LIMIT)
def _plain(digest: str) -> str:
    return short_hash(str(POLICY), digest)


@lru_cache(maxsize=CACHE_LIMIT)
def _around(keyed: _Keyed, slot_ms: int) -> str:
    slot_s = min(max(slot_ms // 1000, FIRST_S), LAST_S - 1)
    year = year_of(slot_s)
    after_ms = keyed.schedule.next_after(slot_ms)
    years = {year, _year_before(keyed, slot_ms, year), year if after_ms is None else year_of(after_ms // 1000)}
    return _of_years(keyed, tuple(sorted(years)))


@lru_cache(maxsize=CACHE_LIMIT)
def _of_years(keyed: _Keyed, years: tuple[int, ...]) -> str:
    # The offset at the beginning of a year is in it too: a zone that moved for good has no change to tell any more.
    tables = [
        f"{name} {table.offsets_s} {table.instants_s}"
        for name in zones_of(keyed.schedule)
        for table in (year_table(name, year) for year in years)
    ]
    return short_hash(str(POLICY), keyed.digest, *tables)


def _year_before(keyed: _Keyed, slot_ms: int, year: int) -> int:
    """Return the UTC year of the slot before, without a search backwards: the latest year with an earlier slot."""
    for candidate in range(year, max(year - YEARS_LIMIT, year_of(FIRST_S)) - 1, -1):
        first_ms = _first_of_year(keyed, candidate)
        if first_ms is not None and first_ms < slot_ms:
            return candidate
    return year


@lru_cache(maxsize=CACHE_LIMIT)
def _first_of_year(keyed: _Keyed, year: int) -> int | None:
    return keyed.schedule.next_after(year_start_s(year) * 1000 - 1)
