"""What `import anarchon` costs over the interpreter's own start: `python tests/bench/bench_import.py`.

Both are measured in turn, in fresh processes; the medians count. Printed besides: the modules that cost most.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROUNDS = 15
BUDGET_MS = 80.0
FLOORS_MAX = 4.0
"""On a slower machine the budget grows with the interpreter's own start: at most so many times its cost."""
SHOWN = 12
LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|(\s+)(\S+)")


def python(code: str, cache: Path, *options: str) -> tuple[float, str]:
    """Run code in a fresh interpreter with its compiled files in `cache`; return milliseconds and what it told."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    variables["PYTHONPYCACHEPREFIX"] = str(cache)
    words = [sys.executable, *options, "-c", code]
    began = time.perf_counter()
    done = subprocess.run(words, env=variables, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000, done.stderr


def measure(cache: Path) -> tuple[float, float]:
    """Return the medians of the floor and of the import on top of it, in milliseconds."""
    for code in ("pass", "import anarchon"):
        python(code, cache)  # compiles
    floors, wholes = [], []
    for _ in range(ROUNDS):
        floors.append(python("pass", cache)[0])
        wholes.append(python("import anarchon", cache)[0])
    floor = statistics.median(floors)
    return floor, statistics.median(wholes) - floor


def costly(cache: Path) -> list[tuple[float, str]]:
    """Return the modules that took most themselves, in milliseconds."""
    _, told = python("import anarchon", cache, "-X", "importtime")
    found = [(int(own) / 1000, name) for own, _, _, name in LINE.findall(told)]
    return sorted(found, reverse=True)[:SHOWN]


def report() -> tuple[float, float]:
    """Measure, print and return what `measure` returns."""
    with tempfile.TemporaryDirectory() as folder:
        floor_ms, import_ms = measure(Path(folder))
        slowest = costly(Path(folder))
    print(f"\ninterpreter {floor_ms:.1f} ms, import anarchon {import_ms:+.1f} ms ({import_ms / floor_ms:.2f} x)")
    print(f"budget {BUDGET_MS:g} ms")
    for own_ms, name in slowest:
        print(f"   {own_ms:6.1f} ms  {name}")
    return floor_ms, import_ms


@pytest.mark.bench
def test_import_stays_within_its_budget() -> None:
    floor_ms, import_ms = report()
    assert import_ms < max(BUDGET_MS, FLOORS_MAX * floor_ms)


if __name__ == "__main__":
    report()
