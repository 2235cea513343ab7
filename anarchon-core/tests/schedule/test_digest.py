"""The digest: equal where slots are equal, different where instances could disagree."""

from __future__ import annotations

from typing import Any

import pytest
from anarchon.schedule import Cron, Every, schedule_digest, zones
from anarchon.schedule import digest as digest_module
from anarchon.schedule.zones import Change, YearTable, year_table


def test_digest_is_the_same_for_ever() -> None:
    # Written down: two versions of the library that disagree here report each other in every fleet.
    assert Cron("0 3 * * *", "Europe/Berlin").digest == "70271d1ae65db1c5"
    assert Every(seconds=30).digest == "96ed7c98ae7db62c"


def test_digest_holds_text_zone_and_anchor() -> None:
    digests = {
        Cron("0 3 * * *").digest,
        Cron("0 4 * * *").digest,
        Cron("0 3 * * *", "Europe/Berlin").digest,
        Cron("0 3 * * *", "Europe/Paris").digest,
        Every(days=1).digest,
    }
    assert len(digests) == 5
    assert Cron("@daily").digest == Cron("0 0 * * *").digest


def test_slot_digest_holds_the_years_around_the_slot(slots: Any) -> None:
    hourly, yearly = Cron("0 * * * *", "Europe/Berlin"), Cron("0 0 1 7 *", "Europe/Berlin")
    at = slots.ms
    assert schedule_digest(hourly, at("2027-03-01T00:00:00Z")) == schedule_digest(hourly, at("2027-09-01T00:00:00Z"))
    assert schedule_digest(hourly, at("2027-03-01T00:00:00Z")) != schedule_digest(hourly, at("2028-03-01T00:00:00Z"))
    assert digest_module._year_before(digest_module._Keyed("d1", yearly), at("2027-06-30T22:00:00Z"), 2027) == 2026
    assert digest_module._year_before(digest_module._Keyed("d2", hourly), at("2027-06-30T22:00:00Z"), 2027) == 2027


@pytest.fixture
def forget() -> Any:
    """Leave no changed zone data in the caches."""

    def clear() -> None:
        digest_module._around.cache_clear()
        digest_module._of_years.cache_clear()
        digest_module._first_of_year.cache_clear()

    yield clear
    clear()


def test_other_zone_data_gives_another_digest(monkeypatch: pytest.MonkeyPatch, forget: Any, slots: Any) -> None:
    yearly, monthly = Cron("0 0 1 7 *", "America/Vancouver"), Cron("0 0 1 * *", "America/Vancouver")
    may_2027 = slots.ms("2027-05-01T07:00:00Z")
    july_2027 = slots.ms("2027-07-01T07:00:00Z")
    before = [schedule_digest(yearly, july_2027), schedule_digest(monthly, may_2027)]

    def law_of_2028(name: str, year: int) -> YearTable:
        table = year_table(name, year)
        if year != 2028:
            return table
        return YearTable((Change(1, 0, 60),), (1,), (0, 60))

    monkeypatch.setattr(digest_module, "year_table", law_of_2028)
    forget()
    after = [schedule_digest(yearly, july_2027), schedule_digest(monthly, may_2027)]
    assert after[0] != before[0], "the next slot of the yearly job lies in the year of the new law"
    assert after[1] == before[1], "the monthly job is not touched by it in May of the year before"


def test_a_moved_offset_without_any_change_is_seen(monkeypatch: pytest.MonkeyPatch, forget: Any, slots: Any) -> None:
    daily, slot_ms = Cron("0 0 * * *", "Asia/Tokyo"), slots.ms("2027-05-01T15:00:00Z")
    before = schedule_digest(daily, slot_ms)
    assert zones.year_table("Asia/Tokyo", 2027).changes == ()
    monkeypatch.setattr(digest_module, "year_table", lambda *_: YearTable((), (), (8 * 3600,)))
    forget()
    assert schedule_digest(daily, slot_ms) != before


def test_at_the_turn_of_a_year_both_years_count(slots: Any) -> None:
    hourly = Cron("0 * * * *", "Europe/Berlin")
    inside = schedule_digest(hourly, slots.ms("2027-06-01T00:00:00Z"))
    last = schedule_digest(hourly, slots.ms("2027-12-31T23:00:00Z"))
    first = schedule_digest(hourly, slots.ms("2028-01-01T00:00:00Z"))
    assert last == first != inside
