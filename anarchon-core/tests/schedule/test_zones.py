"""Zone data: pinned, explicit, the same on every machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zoneinfo import TZPATH, ZoneInfo

import pytest
from anarchon.errors import ScheduleError
from anarchon.schedule import Cron, parse
from anarchon.schedule.zones import REFUSED_NAMES, year_table, zone


@pytest.mark.parametrize(
    ("tz", "words"),
    [
        ("localtime", ("localtime", "UTC")),
        ("local", ("local", "UTC")),
        ("Factory", ("Factory", "UTC")),
        ("posixrules", ("posixrules", "UTC")),
        ("posix/Europe/Berlin", ("posix/Europe/Berlin",)),
        ("right/UTC", ("right/UTC",)),
        ("system:localtime", ("localtime",)),
        ("europe/berlin", ("'Europe/Berlin'",)),
        ("Europe/Berln", ("'Europe/Berlin'",)),
        ("Mars/Olympus", ("Mars/Olympus", "tzdata")),
        ("", ("zone name",)),
        ("../../etc/passwd", ("zone name",)),
        ("/etc/localtime", ("zone name",)),
        ("Europe", ("Europe",)),
        ("Europe/../UTC", ("zone name",)),
        ("UTC+2", ("UTC+2",)),
        ("+02:00", ("zone name",)),
        ("E" * 500, ("zone name",)),
        ("system:Mars/Olympus", ("system:Mars/Olympus",)),
        (None, ("None", "Europe/Berlin")),
        (ZoneInfo("Europe/Berlin"), ("the name 'Europe/Berlin'",)),
    ],
    ids=lambda value: f"{value!r:.30}" if not isinstance(value, tuple) else "",
)
@pytest.mark.parametrize("text", ["0 0 * * *", "@every 30s"])
def test_zone_is_refused_with_a_remedy(tz: Any, words: tuple[str, ...], text: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse(text, tz)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert len(str(caught.value)) < 260


def test_refused_names_are_folded() -> None:
    assert all(name == name.lower() for name in REFUSED_NAMES)


def test_the_machines_zone_is_never_used(monkeypatch: pytest.MonkeyPatch, slots: Any) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("PYTHONTZPATH", "/nowhere")
    assert slots.after(Cron("0 0 * * *"), "2027-01-01T12:00:00Z", 1) == ["2027-01-02T00:00:00Z"]


def test_system_data_is_an_explicit_choice() -> None:
    pinned = Cron("0 0 * * *", "UTC")
    if not any(Path(folder, "UTC").is_file() for folder in TZPATH):
        with pytest.raises(ScheduleError, match="not in this machine's zone data"):
            Cron("0 0 * * *", "system:UTC")
        return
    system = Cron("0 0 * * *", "system:UTC")
    assert system.next_after(0) == pinned.next_after(0)
    assert system.digest != pinned.digest


def test_a_change_belongs_to_the_year_in_which_it_is_first_in_force(slots: Any) -> None:
    # Kiritimati skipped a day at the turn of a year; the change is in the first second of the UTC year or before it.
    changes = [change for year in range(1993, 1997) for change in year_table("Pacific/Kiritimati", year).changes]
    assert [change.gap_s for change in changes] == [24 * 3600]
    place = zone("Pacific/Kiritimati")
    at_s = changes[0].at_s
    assert place.offset_s(at_s) - place.offset_s(at_s - 1) == 24 * 3600
    assert place.last_change(at_s) == changes[0]
    assert place.last_change(at_s - 1) is None
    assert list(place.changes(at_s - 1, at_s)) == changes
    assert list(place.changes(at_s, at_s + 1)) == []


def test_seconds_of_old_offsets_are_kept(slots: Any) -> None:
    assert zone("Africa/Monrovia").offset_s(slots.ms("1972-01-01T00:00:00Z") // 1000) == -2670
    assert slots.after(Cron("0 0 * * *", "Africa/Monrovia"), "1972-01-05T12:00:00Z", 3) == [
        "1972-01-06T00:44:30Z",
        "1972-01-07T00:44:30Z",
        "1972-01-08T00:00:00Z",
    ]
