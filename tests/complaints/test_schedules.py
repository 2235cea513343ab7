"""Reports about daylight saving and cron expressions; the id of each case names the public report.

`anarchon-core/tests/schedule` holds the tests of these rules; here each report is one case with its own id.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from anarchon.clock import SystemClock
from anarchon.errors import ScheduleError
from anarchon.schedule import Cron, parse, schedule_digest
from scenes import Scenario, between, cases, instant_ms

SCHEDULES_PAGE = Path(__file__).parents[2] / "anarchon-core" / "docs" / "schedules.md"
NAMES = 20_000


def daily_in_october() -> None:
    """Daily at 02:00 in Berlin, in the night when 02:00 comes twice: once."""
    found = cases(Cron("0 2 * * *", "Europe/Berlin"), "2023-10-28T12:00:00", "2023-10-30T12:00:00")
    assert found == ["2023-10-29T00:00:00", "2023-10-30T01:00:00"]


def always_after_now() -> None:
    """Every two hours in London: whatever the moment around the change, the next slot is after it."""
    schedule, t_ms = Cron("0 */2 * * *", "Europe/London"), instant_ms("2023-10-28T22:00:00")
    for _ in range(600):
        following = schedule.next_after(t_ms)
        assert following is not None
        assert t_ms < following <= t_ms + 3 * 3_600_000
        t_ms += 61_007


def a_day_without_that_time() -> None:
    """02:00 in New York on a day without 02:00: the first instant that exists, and the next day as ever."""
    found = cases(Cron("0 2 * * *", "America/New_York"), "2024-03-09T12:00:00", "2024-03-11T12:00:00")
    assert found == ["2024-03-10T07:00:00", "2024-03-11T06:00:00"]


def goes_on_through_the_change() -> None:
    """A minutely and a daily job go on through the autumn change."""
    minutely = between(Cron("* * * * *", "Europe/Berlin"), "2027-10-30T00:00:00", "2027-11-01T00:00:00")
    assert len(minutely) == 2_880
    daily = cases(Cron("30 8 * * *", "Europe/Berlin"), "2027-10-30T00:00:00", "2027-11-02T00:00:00")
    assert daily == ["2027-10-30T06:30:00", "2027-10-31T07:30:00", "2027-11-01T07:30:00"]


def evening_stays_evening() -> None:
    """20:00 is 20:00 also two days after the change, walked from three days before."""
    found = cases(Cron("0 20 * * *", "Europe/Berlin"), "2027-03-25T12:00:00", "2027-03-31T12:00:00")
    assert [text[11:13] for text in found] == ["19", "19", "19", "18", "18", "18"]


def minutely_in_the_repeated_hour() -> None:
    """Each minute of London's repeated hour: 120 slots between 01:00 and 02:00 of the wall."""
    assert len(set(between(Cron("* * * * *", "Europe/London"), "2016-10-30T00:00:00", "2016-10-30T02:00:00"))) == 120


def dense_ranges_advance() -> None:
    """A dense list of minutes and hours next to the day of the change."""
    found = between(Cron("0,15,30,45 6-22 * * *", "Europe/Berlin"), "2023-10-28T22:00:00", "2023-10-30T23:00:00")
    assert len(set(found)) == 2 * 17 * 4
    assert all(before < after for before, after in pairwise(found))


def made_before_and_after() -> None:
    """Slots computed before and after the change are the same numbers."""
    schedule = Cron("0 9 * * *", "America/New_York")
    before = between(schedule, "2027-03-01T00:00:00", "2027-03-20T00:00:00")
    after = between(schedule, "2027-03-14T12:00:00", "2027-03-20T00:00:00")
    assert before[-len(after) :] == after
    assert schedule_digest(schedule, after[0]) == schedule_digest(Cron("0 9 * * *", "America/New_York"), after[0])


def a_day_of_23_hours() -> None:
    """Noon on Sundays, over a Sunday of 23 hours."""
    found = cases(Cron("0 12 * * 0", "Europe/Berlin"), "2022-03-24T00:00:00", "2022-04-04T00:00:00")
    assert found == ["2022-03-27T10:00:00", "2022-04-03T10:00:00"]


def the_rule_is_written_down() -> None:
    """One table says what happens in gap and fold, to both kinds of expressions, at half hours and changes for good."""
    text = SCHEDULES_PAGE.read_text()
    table = text[text.index("## Daylight saving") : text.index("## Zone data")]
    for word in ("gap", "fold", "every-hour", "wall-clock", "Lord_Howe (30 min)", "change for good"):
        assert word in table


def star_with_step_is_no_or() -> None:
    """A day field that begins with a star does not switch on the "or" of the two day fields."""
    found = cases(Cron("0 16 */2 * SAT"), "2023-05-01T00:00:00", "2023-06-01T00:00:00")
    assert found == ["2023-05-13T16:00:00", "2023-05-27T16:00:00"]


def impossible_side_of_or() -> None:
    """31 February or Sunday: Sundays."""
    found = cases(Cron("0 0 31 2 0"), "2027-01-15T00:00:00", "2028-01-01T00:00:00")
    assert [text[5:10] for text in found] == ["02-07", "02-14", "02-21", "02-28"]


def dates_that_never_come() -> None:
    """Dates that never come are refused at once: what took a scan took seconds."""
    clock = SystemClock()
    for text in ("0 0 30 2 *", "0 0 31 2 *", "0 0 31 4,6,9,11 *"):
        took_ms = []
        for _ in range(20):
            begun_ms = clock.monotonic_ms()
            with pytest.raises(ScheduleError, match="never fires"):
                Cron(text)
            took_ms.append(clock.monotonic_ms() - begun_ms)
        assert min(took_ms) < 5


def on_a_leap_day() -> None:
    """Started on 29 February and on the days around a year's and a month's end, ordinary expressions go on."""
    for text in ("0 0 * * *", "0 0 29 2 *", "*/5 * * * *", "0 9 1 1 *", "0 0 L * *", "0 12 31 * *", "0 6 * * MON"):
        for today in ("2028-02-29", "2027-12-31", "2028-03-01"):
            t_ms = instant_ms(f"{today}T12:34:56")
            following = Cron(text).next_after(t_ms)
            assert following is not None
            assert following > t_ms


def hashes_stay_in_range() -> None:
    """Over 20,000 names `H/60` reaches every minute and `H(50-52)/10` stays where it was put."""
    every = Counter(min(Cron("H/60 * * * *", name=f"job-{n}").fields.minutes) for n in range(NAMES // 4))
    assert set(every) == set(range(60))
    assert max(every.values()) < 2 * min(every.values())
    ranged = {minute for n in range(NAMES // 20) for minute in Cron("H(50-52)/10 * * * *", name=f"job-{n}").fields.minutes}
    assert ranged == {50, 51, 52}


def weekday_ranges() -> None:
    """Ranges over the end of the week, and 7 for Sunday."""
    days = {"MON-SUN": 7, "5-7": 3, "SAT-MON": 3, "0,7": 1}
    for text, count in days.items():
        assert len(between(Cron(f"0 0 * * {text}"), "2027-01-04T00:00:00", "2027-01-11T00:00:00")) == count


def seven_in_a_list() -> None:
    """`1,7` is Monday and Sunday."""
    found = cases(Cron("15 10,12 * * 1,7"), "2027-01-15T00:00:00", "2027-01-18T11:00:00")
    assert found == ["2027-01-17T10:15:00", "2027-01-17T12:15:00", "2027-01-18T10:15:00"]


def six_fields_are_never_guessed() -> None:
    """Six fields are seconds first, and what looks like seconds last is refused with the word for it."""
    assert parse("30 0 9 * * *").next_after(instant_ms("2027-01-15T00:00:00")) == instant_ms("2027-01-15T09:00:30")
    for text in ("* * * * * *", "* * * * * 0", "* 0 9 * * 1-5"):
        with pytest.raises(ScheduleError, match="seconds last"):
            Cron(text)


def global_sizes() -> dict[str, int]:
    """Return the size of every collection and cache that lives as long as the process, ours and croniter's."""
    sizes: dict[str, int] = {}
    for module in [name for name in sys.modules if name.startswith(("anarchon.schedule", "croniter"))]:
        owners: list[tuple[str, object]] = [(module, sys.modules[module])]
        owners += [(f"{module}.{name}", each) for name, each in vars(sys.modules[module]).items() if isinstance(each, type)]
        for place, owner in owners:
            for name, value in vars(owner).items():
                if isinstance(value, dict | list | set):
                    sizes[f"{place}.{name}"] = len(value)
                elif hasattr(value, "cache_info"):
                    limit = value.cache_info().maxsize
                    assert limit is not None, f"{place}.{name} has no limit"
                    assert limit <= 10_000
    return sizes


def caches_stay_small() -> None:
    """Thousands of different expressions fill caches that have a limit, and nothing else."""

    def read(numbers: range) -> None:
        for n in numbers:
            Cron(f"{n % 60} {n // 60 % 24} {n % 28 + 1} {n % 12 + 1} *", name=f"job-{n}").next_after(1_800_000_000_000)

    read(range(20))
    before = global_sizes()
    read(range(20, 3_000))
    assert global_sizes() == before


CASES = [
    pytest.param(daily_in_october, id="kubernetes/kubernetes#121594"),
    pytest.param(always_after_now, id="agronholm/apscheduler#980"),
    pytest.param(a_day_without_that_time, id="agronholm/apscheduler#1059"),
    pytest.param(goes_on_through_the_change, id="celery/celery#6438"),
    pytest.param(evening_stays_evening, id="pallets-eco/croniter#25"),
    pytest.param(minutely_in_the_repeated_hour, id="HangfireIO/Hangfire#567"),
    pytest.param(dense_ranges_advance, id="apache/airflow#35272"),
    pytest.param(made_before_and_after, id="PrefectHQ/prefect#7461"),
    pytest.param(made_before_and_after, id="PrefectHQ/prefect#7381"),
    pytest.param(a_day_of_23_hours, id="cronie-crond/cronie#218"),
    pytest.param(the_rule_is_written_down, id="agronholm/apscheduler#120"),
    pytest.param(star_with_step_is_no_or, id="pallets-eco/croniter#40"),
    pytest.param(star_with_step_is_no_or, id="pallets-eco/croniter#41"),
    pytest.param(impossible_side_of_or, id="pallets-eco/croniter#243"),
    pytest.param(dates_that_never_come, id="taichino/croniter#34"),
    pytest.param(dates_that_never_come, id="Steve-Mcl/node-red-contrib-cron-plus#110"),
    pytest.param(on_a_leap_day, id="taichino/croniter#131"),
    pytest.param(on_a_leap_day, id="taichino/croniter#55"),
    pytest.param(hashes_stay_in_range, id="pallets-eco/croniter#253"),
    pytest.param(weekday_ranges, id="taichino/croniter#119"),
    pytest.param(weekday_ranges, id="node-cron/node-cron#580"),
    pytest.param(seven_in_a_list, id="agronholm/apscheduler#349"),
    pytest.param(six_fields_are_never_guessed, id="PGQueuer docs/guides/scheduling.md"),
    pytest.param(caches_stay_small, id="croniter CHANGELOG 6.1/6.2"),
]


@pytest.mark.parametrize("scenario", CASES)
def test_slots_are_what_was_written(scenario: Scenario) -> None:
    scenario()
