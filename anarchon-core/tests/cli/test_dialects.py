"""What other schedulers mean by an expression: the words, what to write here, and the slots they have there."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from anarchon.cli.dialects import translate
from anarchon.errors import ScheduleError
from anarchon.schedule import parse

AFTER = datetime(2027, 1, 15, 10, 50, tzinfo=UTC)
FILTER = "Cron('0 9 1 * *', tz='UTC').excluding(lambda at: at.weekday() not in {0}, digest='only MON')"

WRITTEN = [
    ("quartz", "0 0/5 14,18 ? * 2-6", "'0/5 14,18 ? * MON-FRI'", "counts weekdays from 1 = Sunday"),
    ("quartz", "30 15 10 ? * MON", "'30 15 10 ? * MON'", None),
    ("quartz", "0 0 12 1 * ?", "'0 12 1 * ?'", "seconds field '0' is left out"),
    ("quartz", "00 0 12 1 * ?", "'0 12 1 * ?'", "seconds field '00' is left out"),
    ("quartz", "* * * * * ?", "'*/1 * * * * ?'", "Every second is written '*/1'"),
    ("quartz", "*/10 * * * * ? *", "'*/10 * * * * ?'", "year field '*' is left out"),
    ("quartz", "5 0 9 ? * 1", "'5 0 9 ? * SUN'", "'1' is written 'SUN'"),
    ("quartz", "5 0 9 ? * 7", "'5 0 9 ? * SAT'", "'7' is written 'SAT'"),
    ("quartz", "5 0 9 ? * 6-2", "'5 0 9 ? * FRI-MON'", "'6-2' is written 'FRI-MON'"),
    ("quartz", "5 0 9 ? * 2,4/2", "'5 0 9 ? * MON,WED/2'", "'2,4/2' is written 'MON,WED/2'"),
    ("quartz", "5 0 9 ? * 7/2", "'5 0 9 ? * SAT'", "'7/2' is written 'SAT'"),
    ("quartz", "5 0 9 ? * L", "'5 0 9 ? * SAT'", "'L' is written 'SAT'"),
    ("quartz", "5 0 9 ? * 6L", "'5 0 9 ? * FRIL'", "'6L' is written 'FRIL'"),
    ("quartz", "5 0 9 ? * 6#3", "'5 0 9 ? * FRI#3'", "'6#3' is written 'FRI#3'"),
    ("quartz", "5 0 9 L * ?", "'5 0 9 L * ?'", None),
    ("quartz", "5 0 9 15W * ?", "'5 0 9 15W * ?'", None),
    ("quartz", "5 0 22-2 ? * *", "'5 0 22-23,0-2 ? * *'", "reads '22-2' in the hour field as '22-23,0-2'"),
    ("quartz", "5 0 9 ? NOV-FEB *", "'5 0 9 ? 11-12,1-2 *'", "reads 'NOV-FEB' in the month field"),
    ("quartz", "5 /20 9 ? * *", "'5 */20 9 ? * *'", "reads '/20' in the minute field as '*/20'"),
    ("quartz", "5 0 9 1 * 2", "'5 0 9 1 * MON'", "wants '?' in one of the two day fields"),
    ("apscheduler3", "0 9 * * mon-fri", "'0 9 * * mon-fri'", None),
    ("apscheduler3", "0 9 * * 0-4", "'0 9 * * MON-FRI'", "counts weekdays from 0 = Monday"),
    ("apscheduler3", "0 9 * * 6", "'0 9 * * SUN'", "'6' is written 'SUN'"),
    ("apscheduler3", "0 9 * * 0-6", "'0 9 * * *'", "'0-6' is written '*'"),
    ("apscheduler3", "0 9 * * */2", "'0 9 * * MON,WED,FRI,SUN'", "'*/2' is written 'MON,WED,FRI,SUN'"),
    ("apscheduler3", "0 9 * * 1/3,sat", "'0 9 * * TUE,FRI,SAT'", "'1/3,sat' is written 'TUE,FRI,SAT'"),
    ("apscheduler3", "0 9 * * mon-fri/2", "'0 9 * * mon-fri'", "passes over what follows names: 'mon-fri/2'"),
    ("apscheduler3", "0 9 * jan-jun/2 *", "'0 9 * jan-jun *'", "passes over what follows names: 'jan-jun/2'"),
    ("apscheduler3", "0 9 last * *", "'0 9 L * *'", "last day of the month, 'last', is written 'L'"),
    ("apscheduler3", "0 9 */2 * sat", "'0 9 */2 * sat'", None),
    ("apscheduler3", "0 9 8-14 * 0", "'0 9 * * MON#2'", "fires when both day fields match"),
    ("apscheduler3", "0 9 1-7 * sat,sun", "'0 9 * * SAT#1,SUN#1'", "fires when both day fields match"),
    ("apscheduler3", "0 9 1 * 0", FILTER, "fires when both day fields match"),
    ("croniter", "0 9 1 * mon", "'0 9 1 * mon'", None),
    ("croniter", "@daily", "'@daily'", None),
    ("croniter", "0 9 * * * 30", "'30 0 9 * * *'", "reads six fields with the seconds last"),
    ("croniter", "0 9 * * * 0", "'0 9 * * *'", "seconds field '0' is left out"),
    ("croniter", "* * * * * *", "'*/1 * * * * *'", "Every second is written '*/1'"),
    ("croniter", "0 16 */2 * SAT", "'0 16 1-31/2 * SAT'", "either day field matches; here one that begins with '*' demands both"),
    ("croniter", "0 16 1 * */2", "'0 16 1 * 0-6/2'", "'*/2' is written '0-6/2'"),
    ("croniter", "0 16 */2 * *", "'0 16 */2 * *'", None),
    ("croniter", "0 9 * * L5", "'0 9 * * 5L'", "'L5' is written '5L'"),
    ("croniter", "0 22-2 * * *", "'0 22-23,0-2 * * *'", "reads '22-2' in the hour field as '22-23,0-2'"),
    ("croniter", "0 9 * * fri-mon", "'0 9 * * fri-mon'", None),
    ("croniter", "0 9 * * 5-1", "'0 9 * * 5-6,0-1'", "reads '5-1' in the day-of-week field"),
    ("croniter", "0 18-18 * * *", "'0 * * * *'", "reads '18-18' in the hour field as '*'"),
    ("croniter", "*/90 * * * *", "'0 * * * *'", "reads '*/90' in the minute field as '0'"),
    ("croniter", "H 9 * * *", "'H 9 * * *'", "H is spread by another hash here"),
]


@pytest.mark.parametrize(("dialect", "expression", "written", "words"), WRITTEN)
def test_it_says_what_changes_and_what_to_write(dialect: str, expression: str, written: str, words: str | None) -> None:
    translation = translate(expression, dialect)
    assert translation.written("UTC") == written
    if words is None:
        assert translation.remarks == ()
    else:
        assert any(words in remark for remark in translation.remarks), translation.remarks
    assert translation.schedule("UTC", "job").next_after(0) is not None


# What APScheduler 3.11.3 and croniter 7 answer for the same expression, zone and start.
@pytest.mark.parametrize(
    ("dialect", "expression", "slots"),
    [
        ("apscheduler3", "0 9 * * */2", ["01-17 09:00", "01-18 09:00", "01-20 09:00", "01-22 09:00"]),
        ("apscheduler3", "0 9 1 * 0", ["02-01 09:00", "03-01 09:00", "11-01 09:00"]),
        ("apscheduler3", "0 9 1-7 * mon", ["02-01 09:00", "03-01 09:00", "04-05 09:00", "05-03 09:00"]),
        ("apscheduler3", "0 9 */2 * 0", ["01-25 09:00", "02-01 09:00", "02-15 09:00", "03-01 09:00"]),
        ("apscheduler3", "0 9 * * 5/1", ["01-16 09:00", "01-17 09:00", "01-23 09:00", "01-24 09:00"]),
        ("apscheduler3", "0 9 * * mon-fri/2", ["01-18 09:00", "01-19 09:00", "01-20 09:00", "01-21 09:00"]),
        ("croniter", "0 9 */2 * sat", ["01-16 09:00", "01-17 09:00", "01-19 09:00", "01-21 09:00"]),
        ("croniter", "0 9 */1 * 5", ["01-16 09:00", "01-17 09:00", "01-18 09:00", "01-19 09:00"]),
        ("croniter", "0 9 * * 5-1", ["01-16 09:00", "01-17 09:00", "01-18 09:00", "01-22 09:00"]),
        ("croniter", "0 9 * * L5", ["01-29 09:00", "02-26 09:00", "03-26 09:00", "04-30 09:00"]),
        ("croniter", "0 18-18 * * *", ["01-15 11:00", "01-15 12:00", "01-15 13:00"]),
    ],
)
def test_the_slots_are_those_it_has_there(dialect: str, expression: str, slots: list[str]) -> None:
    schedule = translate(expression, dialect).schedule("UTC", None)
    at_ms, found = round(AFTER.timestamp() * 1000), list[str]()
    while len(found) < len(slots):
        at_ms = schedule.next_after(at_ms) or 0
        found.append(datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%m-%d %H:%M"))
    assert found == slots


@pytest.mark.parametrize(
    ("dialect", "expression", "words"),
    [
        ("quartz", "0 9 * * 1", "a quartz expression has six fields, or seven with the year"),
        ("quartz", "0 0 0 1 1 ? 2027", "the year '2027' has no equal here: use At(...)"),
        ("quartz", "0 0 9 LW * ?", "the day 'LW' has no equal here"),
        ("quartz", "0 0 9 L-3 * ?", "the day 'L-3' has no equal here"),
        ("quartz", "0 0 9 ? * 8", "quartz has no weekday 8"),
        ("quartz", "0 0 22-2/2 ? * *", "quartz steps past the end of the hour field in its own way"),
        ("apscheduler3", "0 9 * * * *", "CronTrigger.from_crontab takes five fields"),
        ("apscheduler3", "0 9 * * 7", "APScheduler 3 would refuse '7': its weekdays are 0 (Monday) to 6 (Sunday), in order"),
        ("apscheduler3", "0 9 * * fri-mon", "APScheduler 3 would refuse 'fri-mon'"),
        ("apscheduler3", "0 9 * * monday", "APScheduler 3 would refuse 'monday' as a weekday"),
        ("croniter", "0 9 * * * 0 2027", "the year field has no equal here: use At(...)"),
        ("croniter", "0 9 *,5 * 3", "croniter reads '*' in the list '*,5' in its own way"),
        ("croniter", "50-10/7 * * * *", "croniter steps past the end of the minute field in its own way"),
    ],
)
def test_what_has_no_equal_is_refused_with_a_sentence(dialect: str, expression: str, words: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        translate(expression, dialect)
    assert words in str(refused.value)
    assert str(refused.value).startswith("'")


def test_the_python_that_is_printed_gives_the_same_slots() -> None:
    from anarchon import Cron

    translation = translate("0 9 1 * 0", "apscheduler3")
    printed = eval(translation.written("UTC"), {"Cron": Cron})
    at_ms = round(AFTER.timestamp() * 1000)
    assert printed.next_after(at_ms) == translation.schedule("UTC", None).next_after(at_ms)
    assert printed.digest == translation.schedule("UTC", None).digest


def test_what_needs_no_change_is_the_same_schedule() -> None:
    assert translate("0 9 * * mon", "apscheduler3").schedule("UTC", None).digest == parse("0 9 * * mon").digest
