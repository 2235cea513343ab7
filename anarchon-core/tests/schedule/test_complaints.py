"""What users of other schedulers ran into, one row a test; the id names the public report."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from anarchon.errors import ScheduleError
from anarchon.schedule import Cron, Every, parse, schedule_digest

ROWS = [
    # expression, zone, from, until, slots
    pytest.param(
        "0 2 * * *",
        "Europe/Berlin",
        "2023-10-28T12:00:00Z",
        "2023-10-30T12:00:00Z",
        ["2023-10-29T00:00:00Z", "2023-10-30T01:00:00Z"],
        id="kubernetes/kubernetes#121594 daily 02:00 ran twice in October",
    ),
    pytest.param(
        "0 */2 * * *",
        "Europe/London",
        "2023-10-28T22:30:00Z",
        "2023-10-29T06:30:00Z",
        ["2023-10-28T23:00:00Z", "2023-10-29T02:00:00Z", "2023-10-29T04:00:00Z", "2023-10-29T06:00:00Z"],
        id="agronholm/apscheduler#980 every two hours stuck at 01:00",
    ),
    pytest.param(
        "0 2 * * *",
        "America/New_York",
        "2024-03-09T12:00:00Z",
        "2024-03-11T12:00:00Z",
        ["2024-03-10T07:00:00Z", "2024-03-11T06:00:00Z"],
        id="agronholm/apscheduler#1059 02:00 on a day without 02:00",
    ),
    pytest.param(
        "0 20 * * *",
        "Europe/Berlin",
        "2027-03-25T12:00:00Z",
        "2027-03-31T12:00:00Z",
        [
            "2027-03-25T19:00:00Z",
            "2027-03-26T19:00:00Z",
            "2027-03-27T19:00:00Z",
            "2027-03-28T18:00:00Z",
            "2027-03-29T18:00:00Z",
            "2027-03-30T18:00:00Z",
        ],
        id="pallets-eco/croniter#25 20:00 became 21:00 two days after the change",
    ),
    pytest.param(
        "0 12 * * 0",
        "Europe/Berlin",
        "2022-03-24T00:00:00Z",
        "2022-04-04T00:00:00Z",
        ["2022-03-27T10:00:00Z", "2022-04-03T10:00:00Z"],
        id="cronie-crond/cronie#218 noon on Sunday skipped after a day of 23 hours",
    ),
    pytest.param(
        "0 16 */2 * SAT",
        "UTC",
        "2023-05-01T00:00:00Z",
        "2023-06-01T00:00:00Z",
        ["2023-05-13T16:00:00Z", "2023-05-27T16:00:00Z"],
        id="pallets-eco/croniter#40 #41 a field with a leading star does not switch on OR",
    ),
    pytest.param(
        "0 0 31 2 0",
        "UTC",
        "2027-01-15T00:00:00Z",
        "2028-01-01T00:00:00Z",
        ["2027-02-07T00:00:00Z", "2027-02-14T00:00:00Z", "2027-02-21T00:00:00Z", "2027-02-28T00:00:00Z"],
        id="pallets-eco/croniter#243 an impossible side of OR is ignored",
    ),
    pytest.param(
        "15 10,12 * * 1,7",
        "UTC",
        "2027-01-15T00:00:00Z",
        "2027-01-18T11:00:00Z",
        ["2027-01-17T10:15:00Z", "2027-01-17T12:15:00Z", "2027-01-18T10:15:00Z"],
        id="agronholm/apscheduler#349 lists with 7",
    ),
    pytest.param(
        "0 21 * * tue,fri",
        "UTC",
        "2027-01-15T00:00:00Z",
        "2027-01-16T00:00:00Z",
        ["2027-01-15T21:00:00Z"],
        id="kubernetes/kubernetes#123220 Friday, before the edit",
    ),
    pytest.param(
        "0 23 * * wed,sun",
        "UTC",
        "2027-01-15T00:00:00Z",
        "2027-01-16T00:00:00Z",
        [],
        id="kubernetes/kubernetes#123220 nothing that Friday, after the edit",
    ),
]


@pytest.mark.parametrize(("text", "tz", "begin", "end", "expected"), ROWS)
def test_reported_case(slots: Any, text: str, tz: str, begin: str, end: str, expected: list[str]) -> None:
    assert slots.between(Cron(text, tz), begin, end) == expected


def test_minutely_job_runs_through_the_repeated_hour_hangfire_567_celery_6438(slots: Any) -> None:
    found = slots.between(Cron("* * * * *", "Europe/London"), "2016-10-30T00:00:00Z", "2016-10-30T02:00:00Z")
    assert len(found) == len(set(found)) == 120


def test_dense_ranges_advance_after_the_change_airflow_35272(slots: Any) -> None:
    found = slots.between(Cron("0,15,30,45 6-22 * * *", "Europe/Berlin"), "2023-10-28T22:00:00Z", "2023-10-30T23:00:00Z")
    assert len(found) == len(set(found)) == 2 * 17 * 4
    assert found == sorted(found)


def test_slots_made_before_and_after_the_change_are_the_same_prefect_7461_7381(slots: Any) -> None:
    schedule = Cron("0 9 * * *", "America/New_York")
    made_before = slots.between(schedule, "2027-03-01T00:00:00Z", "2027-03-20T00:00:00Z")
    made_after = slots.between(schedule, "2027-03-14T12:00:00Z", "2027-03-20T00:00:00Z")
    assert made_before[-len(made_after) :] == made_after


@pytest.mark.parametrize(
    "text", ["MON-SUN", "5-7", "SAT-MON", "0,7", "FRI-SUN", "SUN-SAT"], ids=lambda text: f"taichino/croniter#119 {text}"
)
def test_weekday_ranges_are_valid(text: str) -> None:
    Cron(f"0 0 * * {text}")


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 31 2 *", "0 0 31 4,6,9,11 *", "0 0 30-31 2 *"])
def test_impossible_dates_are_refused_at_once_croniter_34_cron_plus_110(text: str) -> None:
    with pytest.raises(ScheduleError, match="never fires"):
        Cron(text)


@pytest.mark.parametrize("today", ["2028-02-29", "2027-12-31", "2028-12-31", "2027-03-01", "2028-03-01"])
def test_corpus_on_days_that_broke_others_croniter_131_55(cron_case: dict[str, Any], today: str, sets: Any, slots: Any) -> None:
    # Every expression of the corpus, started within a day that other libraries stumbled over, in UTC against sets.
    cron = parse(cron_case["expr"])
    assert isinstance(cron, Cron)
    t_ms = slots.ms(f"{today}T12:34:56Z")
    for _ in range(2):
        expected = sets.first(cron.fields, t_ms // 1000 + 1)
        assert cron.next_after(t_ms) == expected * 1000
        t_ms = expected * 1000


@pytest.mark.parametrize("text", ["* * * * * *", "* * * * * 0", "* 0 9 * * 1-5", "* */5 * * * *"])
def test_six_fields_are_never_read_silently_pgqueuer(text: str) -> None:
    with pytest.raises(ScheduleError, match="seconds last"):
        Cron(text)


def test_no_rule_jumps_weeks_ahead_at_a_months_end_node_cron_510(oracle: Any) -> None:
    # A job each day at noon and one each quarter hour never leave out a day, whatever the month's end or the clock does.
    rng = random.Random(510)
    for name in oracle.ZONES:
        daily = Cron("0 12 * * *", name)
        for _ in range(6):
            t_ms = int(datetime(rng.randint(1973, 2036), rng.randint(1, 12), 27, tzinfo=UTC).timestamp()) * 1000
            following = daily.next_after(t_ms)
            assert following is not None
            assert 0 < following - t_ms <= 25 * 3_600_000


def test_two_instances_started_apart_share_one_grid_bullmq_3262() -> None:
    schedule = Every(seconds=10)
    assert schedule.next_after(1_800_000_000_123) == schedule.next_after(1_800_000_000_423)


def test_early_and_late_wake_ups_name_the_same_slot_taskiq_296() -> None:
    # 0.3 ms early is another millisecond, but the slot after it is the one that was waited for; after it comes the next.
    schedule, slot_ms = Cron("* * * * *"), 1_800_000_000_000
    assert [schedule.next_after(slot_ms - early) for early in (1, 20, 1000)] == [slot_ms] * 3
    assert schedule.next_after(slot_ms) == slot_ms + 60_000


def test_a_backward_step_gives_no_new_slots_oban_py() -> None:
    schedule, now_ms = Cron("* * * * *"), 1_800_000_030_000
    known = {schedule.next_after(now_ms - back) for back in range(0, 120_000, 7_000)}
    assert known <= {1_800_000_060_000 - 60_000 * n for n in range(4)}


def test_a_leap_second_has_no_slot_of_its_own_kelektiv_node_cron_180() -> None:
    # Unix time repeats or smears a leap second; the slot of midnight after 31 December 2016 is one number.
    schedule = Cron("0 0 * * *")
    midnight_ms = 1_483_228_800_000
    assert {schedule.next_after(midnight_ms - back) for back in (1, 999, 1000, 1001)} == {midnight_ms}


def test_changed_zone_data_is_noticed_django_celery_beat_798() -> None:
    slot_ms = 1_800_000_000_000
    assert schedule_digest(Cron("0 0 * * *", "Europe/London"), slot_ms) != schedule_digest(Cron("0 0 * * *"), slot_ms)
