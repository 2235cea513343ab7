"""Every example of docs/schedules.md does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from anarchon.errors import ScheduleError
from anarchon.schedule import Cron, Schedule, parse

PAGE = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text("utf-8")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table whose header row begins with these words."""
    table = PAGE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in table]


@pytest.mark.parametrize("row", rows("written"), ids=lambda row: row[0])
def test_canonical_text_of_the_page(row: list[str]) -> None:
    assert Cron(row[0].strip("`")).text == row[1].strip("`")


@pytest.mark.parametrize("row", rows("refused"), ids=lambda row: row[0])
def test_refusal_of_the_page(row: list[str]) -> None:
    with pytest.raises(ScheduleError, match=re.escape(row[1])):
        parse(row[0].strip("`"))


@pytest.mark.parametrize("row", rows("expression"), ids=lambda row: " ".join(row[:3]))
def test_slots_of_the_page(row: list[str], slots: Any) -> None:
    expression, zone, after, expected = row[0].strip("`"), row[1].split()[0], row[2], row[3].split()
    assert slots.after(Cron(expression, zone), after, len(expected)) == expected


def test_macros_of_the_page() -> None:
    for macro in re.findall(r"`(@[a-z]+)`", PAGE):
        if macro != "@reboot":
            parse(macro)


def test_code_of_the_page() -> None:
    fences = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(fences) == 1
    imports, statements = fences[0].split("\n\n", 1)
    names: dict[str, Any] = {}
    exec(imports, names)
    for line in statements.splitlines():
        schedule = eval(line, names)
        assert isinstance(schedule, Schedule)
        assert schedule.next_after(0) is not None
    assert eval('parse("@every 30s") == Every(seconds=30)', names)
    assert eval('parse("0 3 * * *", "Europe/Berlin") == Cron("0 3 * * *", tz="Europe/Berlin")', names)
