"""`H`: stable, inside its range, uniform over names."""

from __future__ import annotations

from collections import Counter

import pytest
from anarchon.errors import ScheduleError
from anarchon.schedule import Cron, parse
from anarchon.schedule.fields import FIELDS
from anarchon.schedule.spread import spread_values

NAMES = 20_000
SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY = FIELDS


def test_h_is_the_same_for_ever() -> None:
    # Written down: a change of these values moves every H job of every user.
    assert Cron("H H * * *", name="nightly-report").text == "0 17 * * *"
    assert Cron("H(0-29)/10 * * * *", name="poll").text == "0,10,20 * * * *"
    assert parse("H H(0-7) H * H", "UTC", "x").digest == parse("h h(0-7) h * h", "UTC", "x").digest


@pytest.mark.parametrize(
    ("span", "item", "values"),
    [
        (MINUTE, "h", range(60)),
        (HOUR, "h", range(24)),
        (DAY, "h", range(1, 29)),
        (MONTH, "h", range(1, 13)),
        (WEEKDAY, "h", range(7)),
        (MINUTE, "h(0-29)", range(30)),
        (MINUTE, "h/60", range(60)),
        (MINUTE, "h/15", range(15)),
        (MINUTE, "h(50-52)/10", range(50, 53)),
        (DAY, "h(1-31)", range(1, 32)),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "name", ""),
)
def test_first_values_are_uniform_over_20_000_names(span: object, item: str, values: range) -> None:
    seen = Counter(min(spread_values(span, item, f"job-{n}")) for n in range(NAMES))  # type: ignore[arg-type]
    assert set(seen) == set(values)
    expected = NAMES / len(values)
    chi_square = sum((count - expected) ** 2 / expected for count in seen.values())
    # Five standard deviations of the chi-square distribution: names are fixed, so this cannot flicker.
    freedom = len(values) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_steps_stay_inside_the_range() -> None:
    for n in range(2000):
        values = spread_values(MINUTE, "h(10-39)/7", f"job-{n}")
        assert min(values) >= 10
        assert max(values) <= 39
        assert len(values) in {4, 5}
        assert {later - earlier for earlier, later in zip(sorted(values), sorted(values)[1:], strict=False)} == {7}


def test_fields_are_spread_independently() -> None:
    pairs = {tuple(Cron("H H * * *", name=f"job-{n}").text.split()[:2]) for n in range(2000)}
    assert len(pairs) > 1000


@pytest.mark.parametrize(
    "text", ["H/0 * * * *", "H/61 * * * *", "H(5-5) * * * *", "H(30-10) * * * *", "H(0-60) * * * *", "H5 * * * *", "5-H * * * *"]
)
def test_bad_h_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match="minute field"):
        Cron(text, name="job")


def test_h_without_a_name_says_so() -> None:
    with pytest.raises(ScheduleError, match="no name is known here; give name="):
        Cron("H * * * *")
