"""What a claim costs on SQLite, as a ratio to one plain committed INSERT: `python tests/bench/bench_sqlite.py`.

Both write to files in the same folder with the same journal and synchronous mode, in alternating runs of which the median
counts, so a busy machine slows both. Printed: claims a second through the whole backend (thread, transaction, five pages),
claims that lose (a plain read), and claims of a hundred jobs in one call.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from anarchon.types import ClaimRequest, RunKey, new_token
from anarchon_sqlite import SQLiteBackend

pytestmark = pytest.mark.bench

ROUNDS = 7
CALLS = 200
RATIO_LEAST = {"full": 0.25, "normal": 0.02}
"""The least share of the floor's rate that a won claim may have; without the disk's wait the thread hop counts more."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Calls a second, medians over the rounds."""

    insert: float
    won: float
    lost: float
    batched: float

    @property
    def ratio(self) -> float:
        """Won claims as a share of plain INSERTs."""
        return self.won / self.insert


def rate(call: Callable[[], object], calls: int) -> float:
    """Return calls a second."""
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return calls / (time.perf_counter() - started)


def requests(now_ms: int, prefix: str) -> Iterator[ClaimRequest]:
    """Return claims of fresh slots, one job each second slot, as a scheduler would send them."""
    for number in count():
        key = RunKey(f"{prefix}{number % 10}", now_ms - number // 10)
        yield ClaimRequest(key=key, token=new_token(), instance="bench", exclusive=False, keep_ms=0, history_size=20)


def measure(folder: Path, synchronous: str) -> Rates:
    """Measure all rates in alternating rounds."""
    insert: list[float] = []
    won: list[float] = []
    lost: list[float] = []
    batched: list[float] = []
    backend = SQLiteBackend(folder / "claims.db", synchronous=synchronous)
    plain = sqlite3.connect(folder / "plain.db", isolation_level=None)
    with closing(plain), asyncio.Runner() as runner:
        plain.execute("PRAGMA journal_mode = WAL")
        plain.execute(f"PRAGMA synchronous = {synchronous}")
        plain.execute("CREATE TABLE runs (job TEXT, slot_ms INTEGER, token TEXT, PRIMARY KEY (job, slot_ms))")
        runner.run(backend.open())
        now_ms = runner.run(backend.now_ms())
        ids, fresh, many = count(), requests(now_ms, "one"), requests(now_ms, "many")
        taken = next(fresh)
        runner.run(backend.claim(taken))

        async def claims(next_request: Callable[[], ClaimRequest]) -> float:
            started = time.perf_counter()
            for _ in range(CALLS):
                await backend.claim(next_request())
            return CALLS / (time.perf_counter() - started)

        async def batch() -> float:
            started = time.perf_counter()
            await backend.claim_many([next(many) for _ in range(100)])
            return 100 / (time.perf_counter() - started)

        def put() -> None:
            plain.execute("INSERT INTO runs VALUES ('job', ?, ?)", (next(ids), new_token()))

        def stranger() -> ClaimRequest:
            return ClaimRequest(key=taken.key, token=new_token(), instance="other")

        for _ in range(ROUNDS):
            insert.append(rate(put, CALLS))
            won.append(runner.run(claims(lambda: next(fresh))))
            lost.append(runner.run(claims(stranger)))
            batched.append(runner.run(batch()))
        runner.run(backend.close())
    return Rates(*(statistics.median(rates) for rates in (insert, won, lost, batched)))


def show(synchronous: str, rates: Rates) -> None:
    """Print one line."""
    print(
        f"synchronous={synchronous}: INSERT {rates.insert:,.0f}/s, won {rates.won:,.0f}/s = {rates.ratio:.2f} of it, "
        f"lost {rates.lost:,.0f}/s, in calls of 100 {rates.batched:,.0f}/s"
    )


@pytest.mark.parametrize("synchronous", ["full", "normal"])
def test_a_claim_costs_little_more_than_a_committed_insert(tmp_path: Path, synchronous: str) -> None:
    rates = measure(tmp_path, synchronous)
    show(synchronous, rates)
    assert rates.ratio >= RATIO_LEAST[synchronous]


if __name__ == "__main__":
    for mode in RATIO_LEAST:
        with tempfile.TemporaryDirectory() as made:
            show(mode, measure(Path(made), mode))
