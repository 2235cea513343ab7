"""The claim contract on a real file, one process: what the conformance kit does not know of SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from anarchon.clock import Clock
from anarchon.types import Claim, ClaimRequest, Outcome, RunKey, RunResult, RunStatus, new_token
from anarchon_sqlite import SQLiteBackend

T0 = 1_800_000_000_000
KEY = RunKey("sync", T0)
DONE = RunResult(RunStatus.SUCCESS)


class StoreClock(Clock):
    """A store's clock that a test sets."""

    def __init__(self) -> None:
        self.now_ms = float(T0)

    def wall_ms(self) -> float:
        return self.now_ms


def ask(key: RunKey = KEY, token: str | None = None, *, exclusive: bool = False) -> ClaimRequest:
    return ClaimRequest(key=key, token=token or new_token(), instance="test", lease_ms=1000, exclusive=exclusive)


def use(backend: SQLiteBackend, play: Callable[[SQLiteBackend], Awaitable[None]]) -> None:
    async def main() -> None:
        await backend.open()
        try:
            await play(backend)
        finally:
            await backend.close()

    asyncio.run(main())


def raw(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, timeout=5)


async def taken_up(backend: SQLiteBackend) -> None:
    """Wait until the thread has begun with what was asked."""
    worker = backend._writer._worker
    assert worker is not None
    while not worker._tx.empty():
        await asyncio.sleep(0)


def test_c1_of_many_claims_at_once_exactly_one_wins(path: Path) -> None:
    async def play(backend: SQLiteBackend) -> None:
        answers = await asyncio.gather(*(backend.claim(ask()) for _ in range(40)))
        assert [answer.outcome for answer in answers].count(Outcome.WON) == 1
        assert {answer.outcome for answer in answers} == {Outcome.WON, Outcome.RUNNING}

    use(SQLiteBackend(path, clock=StoreClock()), play)


def test_c3_a_whole_claim_is_written_while_the_event_loop_does_not_run(path: Path) -> None:
    async def play(backend: SQLiteBackend) -> None:
        claim = asyncio.create_task(backend.claim(ask()))
        await asyncio.sleep(0)  # the call is on its way to the thread; from here on the loop stands still
        pause = threading.Event()
        with closing(raw(path)) as reader:
            for _ in range(30_000):
                if reader.execute("SELECT count(*) FROM runs_history").fetchone()[0]:
                    break
                pause.wait(0.001)
            assert reader.execute("SELECT status, attempt FROM runs").fetchall() == [("running", 1)]
            reader.execute("BEGIN IMMEDIATE")  # nobody holds the write lock either
            reader.execute("ROLLBACK")
        assert not claim.done()
        assert (await claim).won

    use(SQLiteBackend(path, clock=StoreClock()), play)


def test_c3_every_write_is_one_transaction_begun_immediate(path: Path) -> None:
    async def play(backend: SQLiteBackend) -> None:
        worker = backend._writer._worker
        assert worker is not None
        said: list[str] = []
        request = ask()
        await worker.set_trace_callback(said.append)
        await backend.claim(request)
        await backend.renew(KEY, request.token, 1000)
        await backend.finish(KEY, request.token, DONE)
        bounds = [word for word in said if word.startswith(("BEGIN", "COMMIT", "ROLLBACK"))]
        assert bounds == ["BEGIN IMMEDIATE", "COMMIT"] * 3
        assert not worker.in_transaction

    use(SQLiteBackend(path, clock=StoreClock()), play)


def test_c4_own_claim_sent_again_sets_the_lease_anew(path: Path) -> None:
    clock = StoreClock()

    async def play(backend: SQLiteBackend) -> None:
        request = ask()
        await backend.claim(request)
        clock.now_ms += 900
        assert await backend.claim(request) == Claim(Outcome.WON, 1, T0 + 900)
        clock.now_ms += 900
        assert (await backend.claim(ask())).outcome is Outcome.RUNNING

    use(SQLiteBackend(path, clock=clock), play)


def test_c6_a_run_is_remembered_after_close_and_open(path: Path) -> None:
    backend = SQLiteBackend(path, clock=StoreClock())

    async def first(backend: SQLiteBackend) -> None:
        request = ask()
        assert (await backend.claim(request)).won
        assert await backend.finish(KEY, request.token, DONE)

    async def second(backend: SQLiteBackend) -> None:
        assert (await backend.claim(ask())).outcome is Outcome.DONE

    use(backend, first)
    use(backend, second)
    use(SQLiteBackend(path, clock=StoreClock()), second)


def test_c6_pruning_keeps_up_oldest_first_and_raises_the_floor(path: Path) -> None:
    clock = StoreClock()

    async def play(backend: SQLiteBackend) -> None:
        for second in range(260):
            clock.now_ms = T0 + second * 1000.0
            request = replace(ask(RunKey("sync", T0 + second * 1000)), keep_ms=5000, history_size=250)
            assert (await backend.claim(request)).won
            await backend.finish(request.key, request.token, DONE)
        small = [
            replace(ask(RunKey("sync", T0 + second * 1000)), keep_ms=5000, history_size=10, max_late_ms=10**9)
            for second in range(260, 264)
        ]
        clock.now_ms = T0 + 263_000.0
        kept = []
        for request in small:
            assert (await backend.claim(request)).won
            await backend.finish(request.key, request.token, DONE)
            kept.append(len(await backend.history("sync", limit=1000)))
        assert kept == [151, 52, 10, 10]  # at most 100 a claim, until the limit is met
        floor = (await backend.jobs())[0].floor_ms
        assert floor == T0 + 253_000
        late = replace(ask(RunKey("sync", floor)), max_late_ms=10**9)
        assert (await backend.claim(late)).outcome is Outcome.LATE
        with closing(raw(path)) as reader:
            assert reader.execute("SELECT run_count, (SELECT count(*) FROM runs) FROM runs_jobs").fetchall() == [(10, 10)]

    use(SQLiteBackend(path, clock=clock, synchronous="normal"), play)


@pytest.mark.parametrize("name", ["'; DROP TABLE runs; --", '"', "%_?:@$", "雪 ☃", "n", "x" * 200, "a\u00a0b", "{runs}"])
def test_c7_hostile_job_names_are_names_like_others(path: Path, name: str) -> None:
    async def play(backend: SQLiteBackend) -> None:
        key, other = RunKey(name, T0), RunKey(name.upper() + "2", T0)
        assert (await backend.claim(ask(key, exclusive=True))).won
        assert (await backend.claim(ask(other, exclusive=True))).won
        assert [record.job for record in await backend.history(name, limit=9)] == [name]
        await backend.forget(name)
        assert [job.job for job in await backend.jobs()] == [other.job]

    use(SQLiteBackend(path, clock=StoreClock()), play)


def test_c7_tables_in_one_file_do_not_touch_each_other(path: Path) -> None:
    async def play(backend: SQLiteBackend) -> None:
        other = SQLiteBackend(path, table="other_runs", clock=StoreClock())
        await other.open()
        try:
            assert (await backend.claim(ask())).won
            assert await other.history("sync", limit=9) == []
            assert (await other.claim(ask())).won
            await other.forget("sync")
            assert len(await backend.history("sync", limit=9)) == 1
        finally:
            await other.close()

    use(SQLiteBackend(path, clock=StoreClock()), play)


def test_c9_early_and_late_write_nothing(path: Path) -> None:
    async def play(backend: SQLiteBackend) -> None:
        early = await backend.claim(ask(RunKey("sync", T0 + 5)))
        late = await backend.claim(ask(RunKey("sync", T0 - 60_001)))
        assert (early.outcome, early.wait_ms, late.outcome) == (Outcome.EARLY, 5, Outcome.LATE)
        assert await backend.jobs() == []

    use(SQLiteBackend(path, clock=StoreClock()), play)


def test_c11_now_is_read_after_the_lock_was_got(path: Path) -> None:
    clock = StoreClock()

    async def play(backend: SQLiteBackend) -> None:
        with closing(raw(path)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            claim = asyncio.create_task(backend.claim(ask()))
            await taken_up(backend)
            clock.now_ms = T0 + 60_001.0
            writer.execute("ROLLBACK")
        assert await claim == Claim(Outcome.LATE, store_now_ms=T0 + 60_001)

    use(SQLiteBackend(path, clock=clock), play)


def test_c12_an_ended_lease_is_taken_over_once(path: Path) -> None:
    clock = StoreClock()

    async def play(backend: SQLiteBackend) -> None:
        await backend.claim(ask())
        clock.now_ms += 1000
        assert (await backend.claim(ask())).outcome is Outcome.RUNNING  # a lease that ends now is alive
        clock.now_ms += 1
        answers = await asyncio.gather(*(backend.claim(ask()) for _ in range(10)))
        assert [answer.attempt for answer in answers if answer.won] == [2]

    use(SQLiteBackend(path, clock=clock), play)


def test_c17_check_writes_nothing_and_does_not_wait_for_a_writer(path: Path) -> None:
    async def play(backend: SQLiteBackend) -> None:
        keys = [RunKey("sync", T0 - number) for number in range(250)]
        await backend.claim(ask())
        with closing(raw(path)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            views = await backend.check(keys)
            assert (await backend.claim(ask())).outcome is Outcome.RUNNING  # and neither does a claim that lost
            writer.execute("ROLLBACK")
        assert [view is None for view in views] == [False] + [True] * 249
        assert await backend.check([]) == []
        assert await backend.unfinished([f"job{number}" for number in range(250)]) == []

    use(SQLiteBackend(path, clock=StoreClock()), play)


@pytest.mark.parametrize("step_ms", [-(10**10), 10**10])
def test_c25_a_step_of_the_clock_never_reopens_a_finished_run(path: Path, step_ms: int) -> None:
    clock = StoreClock()

    async def play(backend: SQLiteBackend) -> None:
        request = ask()
        await backend.claim(request)
        await backend.finish(KEY, request.token, DONE)
        clock.now_ms += step_ms
        assert (await backend.claim(ask())).outcome is Outcome.DONE
        assert await backend.finish(KEY, request.token, DONE)

    use(SQLiteBackend(path, clock=clock), play)


def test_a_claim_searches_by_index_however_long_the_history(path: Path) -> None:
    async def play(backend: SQLiteBackend) -> None:
        sql = backend._steps.sql
        with closing(raw(path)) as reader:
            for statement in (
                *(sql.find_run, sql.find_job, sql.find_overlap, sql.take_over, sql.close_record, sql.find_old),
                *(sql.drop_run, sql.drop_records, sql.raise_floor, sql.renew, sql.release, sql.finish, sql.history_of),
                *(sql.check.format(wanted="(1, 2, 3, 4)"), sql.unfinished.format(wanted="(1)")),
            ):
                names = {word[1:]: 1 for word in statement.split() if word.startswith(":")}
                plan = reader.execute("EXPLAIN QUERY PLAN " + statement, names or [1] * statement.count("?")).fetchall()
                scans = [row[3] for row in plan if row[3].startswith("SCAN") and row[3] not in {"SCAN w", "SCAN CONSTANT ROW"}]
                assert scans == [], statement

    use(SQLiteBackend(path), play)
