"""`Every`, `At`, and the arithmetic that all schedules share."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from anarchon.errors import ScheduleError
from anarchon.schedule import At, Cron, Every, parse


def test_every_is_a_grid_from_the_epoch(slots: Any) -> None:
    assert slots.after(Every(seconds=30), "2027-01-01T00:00:10Z", 3) == [
        "2027-01-01T00:00:30Z",
        "2027-01-01T00:01:00Z",
        "2027-01-01T00:01:30Z",
    ]
    assert Every(seconds=7).next_after(1_800_000_000_000) == 7000 * (1_800_000_000 // 7 + 1)


def test_every_adds_its_parts_up() -> None:
    assert Every(days=1, hours=2, minutes=3, seconds=4).period_s == 93_784
    assert Every(minutes=1) == Every(seconds=60) == parse("@every 1m") == parse("@EVERY  60s")


def test_every_begins_with_its_anchor(slots: Any) -> None:
    schedule = Every(hours=36, anchor=datetime(2027, 3, 1, 6, tzinfo=timezone(timedelta(hours=2))))
    assert slots.after(schedule, "2020-01-01T00:00:00Z", 2) == ["2027-03-01T04:00:00Z", "2027-03-02T16:00:00Z"]
    assert slots.after(schedule, "2027-03-01T03:59:59.999Z", 1) == ["2027-03-01T04:00:00Z"]
    assert slots.after(schedule, "2027-03-01T04:00:00Z", 1) == ["2027-03-02T16:00:00Z"]
    assert schedule.text == "@every 129600s from 2027-03-01T04:00:00Z"
    assert schedule.digest != Every(hours=36).digest


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"seconds": 0},
        {"seconds": -1},
        {"seconds": 0.5},
        {"seconds": True},
        {"minutes": "5"},
        {"days": 20_000},
        {"seconds": 5, "anchor": datetime(2027, 1, 1)},
        {"seconds": 5, "anchor": datetime(2027, 1, 1, microsecond=1, tzinfo=UTC)},
        {"seconds": 5, "anchor": "2027-01-01"},
        {"seconds": 5, "anchor": datetime(1800, 1, 1, tzinfo=UTC)},
    ],
    ids=str,
)
def test_every_refuses(arguments: dict[str, Any]) -> None:
    with pytest.raises(ScheduleError):
        Every(**arguments)


def test_anchor_from_now_is_explained() -> None:
    with pytest.raises(ScheduleError, match=r"fraction of a second.*now\(\)"):
        Every(seconds=5, anchor=datetime(2027, 1, 1, 0, 0, 0, 123, tzinfo=UTC))


def test_at_gives_each_moment_once_and_then_nothing(slots: Any) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    schedule = At(datetime(2027, 6, 1, 12, tzinfo=berlin), datetime(2027, 6, 1, 10, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))
    expected = ["2027-01-01T00:00:00Z", "2027-06-01T10:00:00Z", None]
    assert slots.after(schedule, "2026-01-01T00:00:00Z", 3) == expected
    assert schedule.next_after(slots.ms("2028-01-01T00:00:00Z")) is None
    assert schedule.text == "@at 2027-01-01T00:00:00Z 2027-06-01T10:00:00Z"


def test_at_that_has_passed_is_accepted_and_idle() -> None:
    assert At(datetime(1999, 1, 1, tzinfo=UTC)).next_after(1_800_000_000_000) is None


def test_at_of_many_moments_has_a_short_text() -> None:
    moments = [datetime(2027, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(300)]
    assert len(At(*moments).text) < 100
    assert At(*moments) == At(*reversed(moments))
    assert At(*moments) != At(*moments[1:], moments[0] + timedelta(seconds=1))


@pytest.mark.parametrize(
    "moments",
    [
        (),
        (datetime(2027, 1, 1),),
        (datetime(2027, 1, 1, microsecond=500, tzinfo=UTC),),
        ("2027-01-01",),
        (datetime(2027, 1, 1, tzinfo=UTC),) * 10_001,
    ],
    ids=["none", "naive", "fraction", "text", "too many"],
)
def test_at_refuses(moments: Any) -> None:
    with pytest.raises(ScheduleError):
        At(*moments)


def test_milliseconds_are_integers_all_the_way() -> None:
    # A float detour is wrong for 0.6 % of the values; none of these may be.
    rng = random.Random(3)
    each_second, cron_second = Every(seconds=1), Cron("*/1 * * * * *")
    for _ in range(3000):
        t_ms = rng.randrange(0, 4_000_000_000_000)
        expected = (t_ms // 1000 + 1) * 1000
        assert each_second.next_after(t_ms) == expected
    for t_ms in (rng.randrange(0, 4_000_000_000_000) for _ in range(500)):
        found = cron_second.next_after(t_ms)
        assert found == (t_ms // 1000 + 1) * 1000
        assert type(found) is int


@pytest.mark.parametrize("schedule", [Cron("0 0 * * *", "Europe/Berlin"), Cron("0 * * * *", "Asia/Tokyo"), Every(hours=1)])
def test_the_calendar_has_two_ends(schedule: Any) -> None:
    assert schedule.next_after(10**18) is None
    assert schedule.next_after(253_402_300_799_000) is None
    first = schedule.next_after(-(10**18))
    assert first is not None
    assert schedule.next_after(first) > first
    late = schedule.next_after(253_086_076_800_000 - 86_400_000 * 3)
    assert late is not None


def test_before_the_epoch_the_grid_goes_on() -> None:
    assert Every(seconds=7).next_after(-1) == 0
    assert Every(seconds=7).next_after(-7001) == -7000
    assert Cron("* * * * *").next_after(-1) == 0
