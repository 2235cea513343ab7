"""What is accepted, what its canonical text is, and how the rest is refused."""

from __future__ import annotations

from typing import Any

import pytest
from anarchon.errors import ScheduleError
from anarchon.schedule import Cron, evaluate, parse

ODD_DAYS = ",".join(map(str, range(1, 32, 2)))

CANONICAL = [
    ("* * * * *", "* * * * *"),
    ("  0\t9  *  *   MON-fri ", "0 9 * * 1,2,3,4,5"),
    ("0 0-23 * * *", "0 * * * *"),
    ("0 9 * * *", "0 9 * * *"),
    ("0 0 9 * * *", "0 9 * * *"),
    ("00 09 01 01 *", "0 9 1 1 *"),
    ("30 0 9 * * *", "30 0 9 * * *"),
    ("*/1 * * * * *", "*/1 * * * * *"),
    ("0-59 * * * * *", "*/1 * * * * *"),
    ("*/15 * * * *", "0,15,30,45 * * * *"),
    ("10/15 * * * *", "10,25,40,55 * * * *"),
    ("5,3-4,3 * * * *", "3,4,5 * * * *"),
    ("59/1 * * * *", "59 * * * *"),
    ("*/30 * * * *", "0,30 * * * *"),
    ("0 0 * jan,DEC *", "0 0 * 1,12 *"),
    ("0 0 * * 7", "0 0 * * 0"),
    ("0 0 * * 0-7", "0 0 * * *"),
    ("0 0 * * 5-7", "0 0 * * 0,5,6"),
    ("0 0 * * SAT-MON", "0 0 * * 0,1,6"),
    ("0 0 * * FRI-SUN/2", "0 0 * * 0,5"),
    ("0 0 * * MON-SUN", "0 0 * * *"),
    ("0 0 ? * ?", "0 0 * * *"),
    ("0 0 L * *", "0 0 L * *"),
    ("0 0 L,1 * *", "0 0 1,L * *"),
    ("0 0 L,*/1 * *", "0 0 * * *"),
    ("0 0 15w * ?", "0 0 15W * *"),
    ("0 0 * * fri#2,5#4", "0 0 * * 5#2,5#4"),
    ("0 0 * * 7L,friL", "0 0 * * 0L,5L"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@Monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
    # Both day fields: OR, unless one begins with a star.
    ("0 0 1,15 * 1", "0 0 1,15 * 1"),
    ("0 0 1-31 * 5", "0 0 * * *"),
    ("0 0 13 * 0-6", "0 0 * * *"),
    ("0 0 */1 * 5", "0 0 * * 5"),
    ("0 0 */2 * 5", "0 0 */2 * 5"),
    ("0 0 */2 * 1-7", f"0 0 {ODD_DAYS} * *"),
    ("0 0 13 * */3", "0 0 13 * */3"),
    ("0 0 */20,5 * */2", "0 0 */20,5 * 0,2,4,6"),
    (f"0 0 {ODD_DAYS} * 5", f"0 0 {ODD_DAYS} * 5"),
    ("0 0 */2,L * 5", "0 0 */2,L * 5"),
]


@pytest.mark.parametrize(("text", "canonical"), CANONICAL)
def test_canonical_text(text: str, canonical: str) -> None:
    assert Cron(text).text == canonical


@pytest.mark.parametrize("canonical", sorted({canonical for _, canonical in CANONICAL}))
def test_canonical_text_is_its_own(canonical: str) -> None:
    assert Cron(canonical).text == canonical


REFUSED = [
    ("0 0 30 2 *", ("30", "2", "never fires")),
    ("0 0 31 2,4,6,9,11 *", ("31", "never fires")),
    ("0 0 31 2 */2", ("31", "never fires")),
    ("* * * * * *", ("second", "'*'", "*/1")),
    ("* * * * * 0", ("second", "'*'", "*/1")),
    ("R * * * *", ("minute", "'R'", "every instance")),
    ("R(0-5) * * * *", ("minute", "'R(0-5)'", "every instance")),
    ("61 * * * *", ("minute", "'61'", "0 and 59")),
    ("60 * * * *", ("minute", "'60'", "0 and 59")),
    ("* 24 * * *", ("hour", "'24'", "0 and 23")),
    ("0 0 0 * *", ("day-of-month", "'0'", "1 and 31")),
    ("0 0 * 13 *", ("month", "'13'", "1 and 12")),
    ("0 0 * * 8", ("day-of-week", "'8'", "0 and 7")),
    ("0 9 * * 1-5 30", ("day-of-week", "'30'", "0 and 7")),
    ("", ("empty", "five fields")),
    (" \t ", ("empty", "five fields")),
    (None, ("None", "not a text")),
    (5, ("5", "not a text")),
    (b"* * * * *", ("not a text",)),
    (["* * * * *"], ("not a text",)),
    ("*" * 10_000, ("10000 characters", "256")),
    ("* * * *", ("4 fields", "seconds first")),
    ("0 0 1 1 * * 2027", ("7 fields", "seconds first")),
    ("hello", ("1 fields",)),
    ("@reboot", ("@reboot", "process starts")),
    ("@fortnightly", ("@fortnightly", "@weekly")),
    ("@every", ("@every", "30s")),
    ("@every 0s", ("0 seconds", "1 second")),
    ("@every 1.5s", ("@every 1.5s", "30s")),
    ("@every -5s", ("@every -5s", "30s")),
    ("@every 5", ("@every 5", "30s")),
    ("@every 30s 5m", ("@every 30s 5m", "30s")),
    ("CRON_TZ=Europe/Berlin 0 9 * * *", ("CRON_TZ", "tz=")),
    ("٠ * * * *", ("'٠'", "ASCII")),
    ("0 ９ * * *", ("'９'", "ASCII")),
    ("0 9 * * *\u00a0", ("ASCII",)),
    ("0 9 * * *\n", ("one line",)),
    ("0 9 * * *\x1f", ("ASCII",)),
    ("*/0 * * * *", ("minute", "'*/0'", "at least 1")),
    ("*/60 * * * *", ("minute", "'*/60'", "only the value 0")),
    ("59/15 * * * *", ("minute", "'59/15'", "only the value 59")),
    ("50-51/15 * * * *", ("minute", "'50-51/15'", "only the value 50")),
    ("0 */24 * * *", ("hour", "'*/24'", "only the value 0")),
    ("5-5/2 * * * *", ("minute", "only the value 5")),
    ("*/-5 * * * *", ("minute", "'*/-5'")),
    ("*/1_0 * * * *", ("minute", "'*/1_0'")),
    ("+5 * * * *", ("minute", "'+5'")),
    ("1.5 * * * *", ("minute", "'1.5'")),
    ("*-5 * * * *", ("minute", "'*-5'")),
    ("5- * * * *", ("minute", "'5-'")),
    ("5,,7 * * * *", ("minute", "empty")),
    ("30-10 * * * *", ("minute", "'30-10'", "backwards")),
    ("0 22-6 * * *", ("hour", "'22-6'", "22-23,0-6")),
    ("0 0 * nov-feb *", ("month", "'NOV-FEB'", "11-12,1-2")),
    ("0 0 * * 6-1", ("day-of-week", "'6-1'", "backwards")),
    ("mon * * * *", ("minute", "'MON'", "day-of-week field")),
    ("0 0 * mon *", ("month", "'MON'", "day-of-week field")),
    ("0 0 * * jan", ("day-of-week", "'JAN'", "month field")),
    ("0 0 * * monday", ("day-of-week", "'MONDAY'")),
    ("0 0 * * xyz", ("day-of-week", "'XYZ'")),
    ("? * * * *", ("minute", "'?'", "day fields")),
    ("0 0 ?/2 * *", ("day-of-month", "'?/2'")),
    ("0 0 ?,3 * *", ("day-of-month", "'?'", "alone")),
    ("0 0 * * L", ("day-of-week", "'L'", "dL")),
    ("L * * * *", ("minute", "'L'", "day-of-month")),
    ("0 0 L-3 * *", ("day-of-month", "'L-3'")),
    ("0 0 LW * *", ("day-of-month", "'LW'", "1L to 5L")),
    ("0 0 W15 * *", ("day-of-month", "'W15'")),
    ("0 0 0W * *", ("day-of-month", "'0W'", "1 and 31")),
    ("0 0 31W * *", ("day-of-month", "'31W'", "28 days")),
    ("0 0 1W,15W * *", ("day-of-month", "'1W'", "alone")),
    ("0 0 15W * 1", ("day-of-month", "'15W'", "day field")),
    ("0 0 1 * 5#2", ("day-of-week", "'5#2'", "day field")),
    ("0 0 1 * 5L", ("day-of-week", "'5L'", "day field")),
    ("0 0 * * 5#6", ("day-of-week", "'5#6'", "1 to 5")),
    ("0 0 * * 5#0", ("day-of-week", "'5#0'", "1 to 5")),
    ("0 0 * * 5#2,1", ("day-of-week", "'1'", "mixed")),
    ("0 0 5#2 * *", ("day-of-month", "'5#2'", "day-of-week")),
    ("0 0 * * L5", ("day-of-week", "'L5'")),
    ("H * * * *", ("minute", "'H'", "name=")),
    ("0 H(0-29) * * *", ("hour", "'H(0-29)'")),
]


@pytest.mark.parametrize(("text", "words"), REFUSED, ids=[f"{text!r:.40}" for text, _ in REFUSED])
def test_refusal_is_one_sentence_with_field_value_and_remedy(text: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse(text)
    message = str(caught.value)
    for word in words:
        assert word in message
    assert len(message) < 260
    assert "\n" not in message
    assert message.endswith(".")
    assert message.count(". ") == 0


def test_k10_never_firing_is_decided_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("the calendar was searched")

    monkeypatch.setattr(evaluate, "first", asked)
    for days, months in (("30", "2"), ("30,31", "feb"), ("31", "2,4,6,9,11"), ("30-31", "2"), ("*/30,30", "2")):
        if days.startswith("*"):
            assert Cron(f"1 0 {days} {months} *").text == "1 0 1,30,31 2 *"
            continue
        with pytest.raises(ScheduleError, match="never fires"):
            Cron(f"1 0 {days} {months} *")


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("0 0 29 2 *", "2097-01-01T00:00:00Z", "2104-02-29T00:00:00Z"),
        ("0 0 29 2 */6", "2093-01-01T00:00:00Z", "2116-02-29T00:00:00Z"),
        ("0 0 * 2 5#5", "2092-03-01T00:00:00Z", "2104-02-29T00:00:00Z"),
        ("0 0 * 2 0#5", "2072-02-28T00:00:01Z", "2088-02-29T00:00:00Z"),
        ("0 0 29W 2 *", None, None),
        ("0 0 30W 4,6 *", "2027-01-01T00:00:00Z", "2027-04-30T00:00:00Z"),
    ],
)
def test_rare_days_are_found(slots: Any, text: str, after: str | None, expected: str | None) -> None:
    if after is None:
        with pytest.raises(ScheduleError, match="28 days"):
            Cron(text)
        return
    assert slots.after(Cron(text), after, 1) == [expected]


def test_parse_returns_a_schedule_as_it_is() -> None:
    schedule = Cron("@daily", "Europe/Berlin")
    assert parse(schedule) is schedule
    with pytest.raises(ScheduleError, match="its own zone"):
        parse(schedule, "Europe/Paris")
    assert parse("@every 1h30m", "Europe/Berlin").digest == parse("@every 5400s").digest
