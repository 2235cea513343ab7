"""The example of the page about simulation works as it stands, and its table names every fault."""

from __future__ import annotations

import re
from pathlib import Path

from anarchon.testing import FaultKind

PAGE = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()


def test_the_example_passes() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    scope: dict[str, object] = {}
    exec(compile(code, "simulate.md", "exec"), scope)
    test = scope["test_my_jobs_survive_a_crash"]
    assert callable(test)
    test()


def test_every_fault_has_a_row() -> None:
    rows = [name for line in PAGE.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert set(rows) == set(FaultKind)
