"""What the evaluation of a schedule costs, as ratios measured in one run: `python tests/bench/bench_schedule.py`.

The floor is the set-based evaluator of the schedule tests, which does the same work without croniter. Printed: agreement,
a question with a kept object and with a fresh one, a whole `next_after`, answers over four threads, and the import.
"""

from __future__ import annotations

import contextlib
import importlib.util
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from anarchon.errors import ScheduleError
from anarchon.schedule import Cron, Schedule, evaluate, parse, schedule_digest
from anarchon.schedule.fields import Fields
from anarchon.schedule.grammar import fields_of

SETS = Path(__file__).parents[2] / "anarchon-core" / "tests" / "schedule" / "sets.py"
TEXTS = (
    "*/5 * * * *",
    "0 3 * * *",
    "30 0 9 * * 1-5",
    "*/7 8-18 * * 1-5",
    "0 0 1,15 * 1",
    "0 0 29 2 *",
    "0 9 15W * *",
    "0 0 * * 5#5",
    "*/1 * * * * *",
)
QUESTIONS = 200
RATIO_LIMIT = 15.0
"""How many times slower than the floor croniter may be before the choice of the evaluator is looked at again."""
IMPORT_CODE = "import time; t = time.perf_counter(); import {}; print((time.perf_counter() - t) * 1000)"


def set_based() -> ModuleType:
    """Load the set-based evaluator of the schedule tests."""
    spec = importlib.util.spec_from_file_location("anarchon_bench_sets", SETS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def microseconds(call: Callable[[int], object], begin: int) -> float:
    """Return what one call costs, over many calls an odd distance apart."""
    started = time.perf_counter()
    for number in range(QUESTIONS):
        call(begin + number * 3601)
    return (time.perf_counter() - started) / QUESTIONS * 1e6


def fresh(fields: Fields, naive_s: int) -> int | None:
    """Ask with an object made for this one question."""
    evaluate._kept.object_for.cache_clear()  # type: ignore[attr-defined]
    return evaluate.first(fields, naive_s)


def ratios() -> list[float]:
    """Print a table; return how much slower than the floor each kept object is."""
    first = set_based().first
    found = []
    print(f"{'expression':<20}{'sets µs':>10}{'kept µs':>10}{'fresh µs':>10}{'next_after':>12}{'digest':>10}{'ratio':>8}")
    for text in TEXTS:
        fields, cron = fields_of(text), Cron(text, "Europe/Berlin")
        evaluate.first(fields, 0)
        floor = microseconds(lambda s, f=fields: first(f, s), 1_800_000_000)  # type: ignore[misc]
        kept = microseconds(lambda s, f=fields: evaluate.first(f, s), 1_800_000_000)  # type: ignore[misc]
        anew = microseconds(lambda s, f=fields: fresh(f, s), 1_800_000_000)  # type: ignore[misc]
        whole = microseconds(lambda s, c=cron: c.next_after(s * 1000), 1_800_000_000)  # type: ignore[misc]
        digest = microseconds(lambda s, c=cron: schedule_digest(c, s * 1000), 1_800_000_000)  # type: ignore[misc]
        found.append(kept / floor)
        print(f"{text:<20}{floor:>10.1f}{kept:>10.1f}{anew:>10.1f}{whole:>12.1f}{digest:>10.1f}{kept / floor:>8.1f}")
    return found


def disagreements(schedules: Sequence[Schedule], threads: int) -> int:
    """Return how many answers differ between one thread and several."""
    rng = random.Random(1)
    questions = [(rng.choice(schedules), rng.randrange(0, 2_000_000_000_000)) for _ in range(1000)]
    expected = [schedule.next_after(t_ms) for schedule, t_ms in questions]
    with ThreadPoolExecutor(threads) as pool:
        runs = list(pool.map(lambda _: [s.next_after(t) for s, t in questions], range(threads)))
    return sum(a != b for run in runs for a, b in zip(run, expected, strict=True))


def refusal_us() -> float:
    """Return what it costs to find that an expression never fires, at the first sight of each."""
    started = time.perf_counter()
    for number in range(QUESTIONS):
        with contextlib.suppress(ScheduleError):
            parse(f"{number % 60} {number // 60} 30,31 2 *")
    return (time.perf_counter() - started) / QUESTIONS * 1e6


def import_ms(module: str) -> float:
    """Return what an import costs in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_CODE.format(module)], capture_output=True, text=True, timeout=60, check=True
    )
    return float(done.stdout)


@pytest.mark.bench
def test_evaluation_stays_within_its_ratio() -> None:
    found = sorted(ratios())
    assert found[len(found) // 2] < RATIO_LIMIT


def main() -> None:
    """Print all measurements."""
    found = sorted(ratios())
    print(f"median ratio to the set-based floor: {found[len(found) // 2]:.1f} (limit {RATIO_LIMIT:.0f})")
    wrong = disagreements([parse(text, "Europe/Berlin") for text in TEXTS], threads=4)
    print(f"wrong answers of 4 threads in 4000: {wrong}")
    print(f"refusal of an expression that never fires: {refusal_us():.0f} µs")
    for module in ("croniter", "anarchon.schedule"):
        print(f"import {module}: {min(import_ms(module) for _ in range(3)):.0f} ms")


if __name__ == "__main__":
    main()
