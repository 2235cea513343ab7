"""`a | b`, `excluding`, and schedules of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pytest
from anarchon.errors import ScheduleError
from anarchon.schedule import (
    At,
    Cron,
    Every,
    Schedule,
    any_of,
    excluding,
    explain,
    parse,
    schedule_digest,
    slot_before,
    text_of,
    why_no_slot,
    zones_of,
)


@dataclass
class Decades:
    """A schedule of the user's own: two members, not hashable, whole milliseconds of its own."""

    period_ms: int = 10_500

    def next_after(self, t_ms: int, /) -> int | None:
        return (t_ms // self.period_ms + 1) * self.period_ms

    @property
    def digest(self) -> str:
        return f"decades-{self.period_ms}"


def test_or_gives_the_slots_of_both_each_once(slots: Any) -> None:
    both = Cron("0 9 * * *", "Europe/Berlin") | Cron("0 8 * * *")
    assert slots.after(both, "2027-01-01T00:00:00Z", 3) == [
        "2027-01-01T08:00:00Z",
        "2027-01-02T08:00:00Z",
        "2027-01-03T08:00:00Z",
    ]
    assert slots.after(both, "2027-07-01T00:00:00Z", 2) == ["2027-07-01T07:00:00Z", "2027-07-01T08:00:00Z"]


def test_or_does_not_depend_on_order_or_repetition() -> None:
    a, b, c = Cron("@daily"), Every(hours=5), At(datetime(2027, 1, 1, tzinfo=UTC))
    assert (a | b) | c == c | (b | a) == any_of(a, b, c, b)
    assert (a | b).digest != (a | c).digest
    assert a | a == a
    assert ("@daily" | b) == (b | "0 0 * * *") == (a | b)


def test_a_schedule_of_the_users_own_works_everywhere(slots: Any) -> None:
    own = Decades()
    assert isinstance(own, Schedule)
    assert parse(own) is own
    both = Cron("@daily") | own
    assert both == own | Cron("@daily")
    assert both.next_after(0) == 10_500
    assert schedule_digest(own, 10_500) == schedule_digest(Decades(), 21_000) != schedule_digest(Decades(9), 10_500)
    assert schedule_digest(both, 10_500)
    assert excluding(own, [datetime(1970, 1, 1, 0, 0, 21, tzinfo=UTC)]).next_after(10_500) == 31_500
    assert zones_of(own) == ()
    assert "decades-10500" in text_of(own)
    assert explain(own, after_ms=0)
    assert "Decades" in why_no_slot(own, 11_000)
    assert slot_before(own, 31_501) == 31_500


def test_excluded_dates_are_local_dates_of_the_zone(slots: Any) -> None:
    schedule = Cron("30 23,0 * * *", "America/New_York").excluding([date(2027, 12, 25)])
    assert slots.between(schedule, "2027-12-24T12:00:00Z", "2027-12-27T06:00:00Z") == [
        "2027-12-25T04:30:00Z",
        "2027-12-26T05:30:00Z",
        "2027-12-27T04:30:00Z",
        "2027-12-27T05:30:00Z",
    ]


def test_an_excluded_date_with_a_change_of_the_clock_ends_at_its_own_midnight(slots: Any) -> None:
    spring = Cron("*/30 * * * *", "Europe/Berlin").excluding([date(2027, 3, 28)])
    assert slots.after(spring, "2027-03-27T22:45:00Z", 2) == ["2027-03-28T22:00:00Z", "2027-03-28T22:30:00Z"]
    autumn = Cron("*/30 * * * *", "Europe/Berlin").excluding([date(2027, 10, 31)])
    assert slots.after(autumn, "2027-10-30T21:45:00Z", 1) == ["2027-10-31T23:00:00Z"]


def test_excluded_days_of_seconds_are_passed_in_few_steps(slots: Any) -> None:
    days = [date(2027, month, day) for month in (1, 2) for day in range(1, 29)]
    schedule = Cron("*/1 * * * * *").excluding(days)
    assert slots.after(schedule, "2026-12-31T23:59:59Z", 1) == ["2027-01-29T00:00:00Z"]
    assert slots.after(schedule, "2027-01-31T23:59:59Z", 1) == ["2027-03-01T00:00:00Z"]


def test_excluded_moments_and_callables(slots: Any) -> None:
    noon = Cron("0 12 * * *", "Europe/Berlin")
    assert slots.after(noon.excluding([datetime(2027, 1, 2, 11, tzinfo=UTC)]), "2027-01-01T12:00:00Z", 1) == [
        "2027-01-03T11:00:00Z"
    ]
    weekdays = noon.excluding(lambda slot: slot.isoweekday() > 5 and slot.hour == 12, digest="weekend-1")
    assert slots.after(weekdays, "2027-01-01T12:00:00Z", 1) == ["2027-01-04T11:00:00Z"]


def test_excluding_is_part_of_the_digest() -> None:
    noon = Cron("0 12 * * *")
    one, two = noon.excluding([date(2027, 1, 1)]), noon.excluding([date(2027, 1, 2)])
    assert len({noon.digest, one.digest, two.digest}) == 3
    assert one == noon.excluding({date(2027, 1, 1)})
    assert noon.excluding(lambda _: False, digest="a") != noon.excluding(lambda _: False, digest="b")


def test_excluding_of_several_uses_the_zone_of_each(slots: Any) -> None:
    both = (Cron("0 0 * * *", "Asia/Tokyo") | Cron("0 0 * * *", "America/New_York")).excluding([date(2027, 1, 2)])
    assert slots.between(both, "2027-01-01T00:00:00Z", "2027-01-03T00:00:00Z") == [
        "2027-01-01T05:00:00Z",
        "2027-01-02T15:00:00Z",
    ]


@pytest.mark.parametrize(
    ("what", "digest", "word"),
    [
        (lambda _: True, None, "digest="),
        (lambda _: True, "", "digest="),
        ([date(2027, 1, 1)], "x", "leave digest="),
        (date(2027, 1, 1), None, "no collection"),
        ("2027-01-01", None, "no collection"),
        (["2027-01-01"], None, "dates or aware datetimes"),
        ([datetime(2027, 1, 1)], None, "no time zone"),
        (5, None, "no collection"),
    ],
)
def test_excluding_refuses(what: Any, digest: str | None, word: str) -> None:
    with pytest.raises(ScheduleError, match=word):
        Cron("@daily").excluding(what, digest=digest)


def test_excluding_everything_ends_with_an_error_not_with_a_loop() -> None:
    with pytest.raises(ScheduleError, match="100000 slots in a row"):
        Every(seconds=1).excluding(lambda _: True, digest="all").next_after(0)
