"""Rules in words, and why there is no slot."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from anarchon.schedule import At, Cron, Every, explain, parse, slot_before, why_no_slot
from anarchon.schedule.neighbours import is_slot


@pytest.mark.parametrize(
    ("text", "tz", "words"),
    [
        ("30 2 * * *", "Europe/Berlin", ("Wall-clock", "2027-03-28 02:00", "run once together", "first pass only")),
        ("0 * * * *", "Europe/Berlin", ("Every-hour", "distance stays real time", "run in both passes")),
        ("0 12 * * *", "Europe/Berlin", ("Next gap", "Next fold", "no time named lies in it")),
        ("0 12 * * *", "Asia/Tokyo", ("does not jump",)),
        ("15 2 * * *", "Australia/Lord_Howe", ("2027-10-03 02:00 to 2027-10-03 02:30", "2027-04-04 01:30")),
        ("0 0 1,15 * 1", "UTC", ("Days: OR",)),
        ("0 0 */2 * 1", "UTC", ("Days: AND",)),
        ("0 0 * * 1", "UTC", ("day of week decides",)),
        ("0 0 1 * *", "UTC", ("day of month decides",)),
        ("0 0 * * *", "UTC", ("every day", "'0 0 * * *' in UTC", "the pinned zone data")),
        ("@every 90s", "UTC", ("Every 90 s of real time", "the epoch")),
    ],
)
def test_explain_names_the_rules(slots: Any, text: str, tz: str, words: tuple[str, ...]) -> None:
    lines = "\n".join(explain(parse(text, tz), after_ms=slots.ms("2027-01-15T00:00:00Z")))
    for word in words:
        assert word in lines


def test_explain_of_a_skipped_day(slots: Any) -> None:
    lines = explain(Cron("0 9 * * *", "Pacific/Apia"), after_ms=slots.ms("2011-12-01T00:00:00Z"))
    assert any("2011-12-30 00:00 to 2011-12-31 00:00 is skipped" in line and "no slot" in line for line in lines)


def test_explain_of_composed_schedules_and_of_now() -> None:
    lines = "\n".join(explain((Cron("@daily") | Every(hours=5)).excluding([date(2027, 1, 1)]) | At(_noon())))
    assert "The slots of 3 schedules" in lines
    assert "Without some of these slots" in lines
    assert "One-off" in lines


def _noon() -> datetime:
    return datetime(2027, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "tz", "at", "words"),
    [
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2027-03-28T01:30:00Z",
            ("02:30 was skipped", "daylight saving", "its slot is the end of the gap, 2027-03-28T01:00:00Z", "2027-03-29T00:30"),
        ),
        ("30 2 * * *", "Europe/Berlin", "2027-03-28T01:00:00Z", ("is a slot", "stands for 2027-03-28 02:30")),
        ("0 3 * * *", "Europe/Berlin", "2027-03-28T01:00:00Z", ("Berlin) is a slot.",)),
        ("30 2 * * *", "Europe/Berlin", "2027-10-31T01:30:00Z", ("second time", "first pass, at 2027-10-31T00:30:00Z")),
        ("30 * * * *", "Europe/Berlin", "2027-03-28T01:15:00Z", ("minute 15 is not among 30",)),
        ("45 * * * *", "Australia/Lord_Howe", "2027-10-02T15:30:00Z", ("minute 30 is not among 45",)),
        ("15 * * * *", "Australia/Lord_Howe", "2027-10-02T15:45:00Z", ("02:15 was skipped", "no slot of its own")),
        ("0 9 * * *", "Pacific/Apia", "2011-12-30T10:00:01Z", ("hour 0 is not among 9",)),
        ("0 9 13 * 5", "UTC", "2027-01-14T09:00:00Z", ("Thursday 14 is no day",)),
        ("0 9 * 3 *", "UTC", "2027-01-14T09:00:00Z", ("month 1 is not among 3", "2026-03-31T09", "2027-03-01T09")),
        ("30 0 9 * * *", "UTC", "2027-01-14T09:00:00Z", ("second 0 is not among 30",)),
        ("@every 7s", "UTC", "2027-01-14T09:00:00Z", ("not on the grid",)),
        ("@daily", "UTC", "2027-01-14T00:00:00.500Z", ("no whole second",)),
    ],
)
def test_why_no_slot_names_reason_and_neighbours(slots: Any, text: str, tz: str, at: str, words: tuple[str, ...]) -> None:
    answer = why_no_slot(parse(text, tz), slots.ms(at))
    for word in words:
        assert word in answer, answer
    assert ("slot before" in answer) != ("is a slot" in answer)


def test_why_no_slot_of_the_other_schedules(slots: Any) -> None:
    noon = slots.ms("2027-01-01T12:00:00Z")
    assert "left out by excluding" in why_no_slot(Cron("0 12 * * *").excluding([date(2027, 1, 1)]), noon)
    assert "is not among" in why_no_slot(Cron("0 13 * * *").excluding([date(2027, 1, 1)]), noon)
    assert "before the anchor" in why_no_slot(Every(hours=1, anchor=datetime(2028, 1, 1, tzinfo=UTC)), noon)
    assert "no slot before it, the next one is" in why_no_slot(At(_noon()), noon - 1000)
    assert "none after it" in why_no_slot(At(_noon()), noon + 1000)
    both = why_no_slot(Cron("0 13 * * *") | Every(hours=5), noon + 1000)
    assert "is not among" in both
    assert "grid" in both


def test_slot_before_is_the_inverse_of_next_after(slots: Any) -> None:
    for schedule in (Cron("0 0 29 2 *"), Cron("30 2 * * *", "Europe/Berlin"), Every(seconds=7), Cron("*/1 * * * * *")):
        t_ms = slots.ms("2027-10-31T01:00:00Z")
        for _ in range(5):
            slot_ms = slot_before(schedule, t_ms)
            assert slot_ms is not None
            assert is_slot(schedule, slot_ms)
            following = schedule.next_after(slot_ms)
            assert following is not None
            assert following >= t_ms
            t_ms = slot_ms
