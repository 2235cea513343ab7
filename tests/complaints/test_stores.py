"""Reports about stores and connections; the id of each case names the public report."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from anarchon import Run, Scheduler
from anarchon.types import Claim, ClaimRequest, RunStatus
from rig import START_MS, FaultyBackend, Grid, Lab, Tape, Work, eventually, job_of, virtual
from scenes import Scenario
from stores.fleet import Fleet
from stores.pgbouncer import PgBouncer
from stores.postgres import Postgres

POOLED = ["bensheldon/good_job#269", "malthe/pq#30"]
BUSY_S = 8.0


@pytest.fixture(scope="module")
def pooled_url(fleet: Fleet, need_store: object) -> Iterator[str]:
    """A PostgreSQL server behind a PgBouncer that pools transactions."""
    assert callable(need_store)
    need_store(Postgres)
    need_store(PgBouncer)
    with PgBouncer.before(fleet.shared(Postgres)) as pooler:
        yield pooler.url()


@pytest.mark.parametrize("report", POOLED)
def test_transaction_pooling_breaks_nothing(report: str, pooled_url: str) -> None:
    """Two instances behind a transaction pooler: claims, renewals, finishes, pause and history, each slot once."""
    tape, url = Tape(), f"{pooled_url}?table=t{abs(hash(report)) % 10**8}"
    schedulers = [Scheduler(url, plugins=[tape], instance=name) for name in ("a", "b")]

    async def job(run: Run) -> None:
        await asyncio.sleep(0.4 if run.slot_ms % 1_000 else 0)

    for scheduler in schedulers:
        scheduler.add_job(job, Grid(500), lease=0.6, heartbeat=0.2, jitter=0)
        scheduler.start_in_thread()
    tape.wait("run_finished", 6)
    schedulers[0].portal.pause("job")
    tape.wait("slot_skipped")
    schedulers[1].portal.resume("job")
    tape.wait("lease_renewed")
    started = [(event.key, event.facts["attempt"]) for event in tape.of("run_started")]
    records = schedulers[0].portal.history("job")
    for scheduler in schedulers:
        scheduler.shutdown()
    assert len(started) == len(set(started))
    assert sum(1 for record in records if record.status is RunStatus.SUCCESS) >= 5


def busy_file() -> None:
    """Another process holds SQLite's write lock for 8 s: claims wait or come late, and the scheduler goes on."""
    with tempfile.TemporaryDirectory() as folder:
        path, tape = Path(folder) / "cron.db", Tape()
        scheduler = Scheduler(f"sqlite:///{path}", plugins=[tape])
        scheduler.add_job(lambda: None, Grid(500), name="job", jitter=0)
        scheduler.start_in_thread()
        tape.wait("run_finished")
        with closing(sqlite3.connect(path, isolation_level=None, timeout=5)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            freed_at = time.monotonic() + BUSY_S
            eventually(lambda: time.monotonic() > freed_at, "the lock was held")
            held_ms = time.time() * 1000
            writer.execute("ROLLBACK")
        eventually(lambda: max(tape.slots("run_finished")) > held_ms, "slots after the lock run")
        assert scheduler.health().ready
        scheduler.shutdown()
        keys = [(event.key, event.facts["attempt"]) for event in tape.of("run_started")]
        assert len(keys) == len(set(keys))


@virtual
async def connection_reset_again_and_again(lab: Lab) -> None:
    """Five resets in three seconds: claims are back within two."""
    work = Work()
    instance = await lab.start(job_of(Grid(500), work, overlap="allow"))
    for n in range(5):
        await lab.at(2_000 + 600 * n)
        instance.backend.down = True
        await lab.at(2_400 + 600 * n)
        instance.backend.down = False
    await lab.at(10_000)
    begun = [slot_ms for slot_ms, _ in work.started]
    assert [each for each in range(START_MS + 500, START_MS + 9_501, 500) if each not in begun] == []
    ends = [at_ms for what, at_ms in work.times_ms if what == "ended" and at_ms > 4_900]
    assert min(ends) < 4_900 + 2_000
    assert len(begun) == len(set(begun))


@virtual
async def handlers_stay_at_home(lab: Lab) -> None:
    """A handler that holds a lock works, since what crosses the store are names, numbers and JSON."""
    lock, seen = threading.Lock(), []

    async def holds_a_lock(run: Run) -> None:
        with lock:
            seen.append(run.slot_ms)

    asked: list[ClaimRequest] = []
    backend = FaultyBackend(lab.store)
    claim = backend.store.claim

    def noted(request: ClaimRequest) -> Claim:
        asked.append(request)
        return claim(request)

    backend.store.claim = noted  # type: ignore[method-assign]  # a side door of this test
    await lab.start(job_of(Grid(1_000), holds_a_lock), backend=backend)
    await lab.at(3_500)
    assert seen == [START_MS + 1_000 * n for n in (1, 2, 3)]
    assert asked
    for request in asked:
        values = [getattr(request, name) for name in ClaimRequest.__slots__ if name != "key"]
        assert all(isinstance(value, str | int | bool | None) for value in values)
        assert isinstance(json.loads(request.info), dict)


CASES = [
    pytest.param(busy_file, id="agronholm/apscheduler#843"),
    pytest.param(connection_reset_again_and_again, id="celery/celery#10205"),
    pytest.param(connection_reset_again_and_again, id="celery/celery#8030"),
    pytest.param(handlers_stay_at_home, id="agronholm/apscheduler#386"),
]


@pytest.mark.parametrize("scenario", CASES)
def test_stores_fail_and_come_back(scenario: Scenario) -> None:
    scenario()
