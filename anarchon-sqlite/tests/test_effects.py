"""The transaction block: the handler's writes and the finish of its run commit together or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import aiosqlite
import pytest
from anarchon import Every, Run, Scheduler, hookimpl
from anarchon.errors import BackendError, BackendTimeout, BackendUnavailable, LeaseLost
from anarchon.types import ClaimRequest, RunKey, RunResult, RunStatus
from anarchon_sqlite import SQLiteBackend

DONE = RunResult(RunStatus.SUCCESS)
ENDLESS = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


class Shop:
    """A backend with a won run, and a table of the application in the same file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backend = SQLiteBackend(path)
        self.key = RunKey("sell", 0)

    async def begin(self) -> None:
        await self.backend.open()
        self.key = RunKey("sell", await self.backend.now_ms())
        await self.claim("first", lease_ms=0)
        with closing(sqlite3.connect(self.path)) as writer, writer:
            writer.execute("CREATE TABLE sales (name)")

    async def claim(self, token: str, lease_ms: int = 30_000) -> None:
        assert (await self.backend.claim(ClaimRequest(key=self.key, token=token, instance="t", lease_ms=lease_ms))).won

    async def status(self) -> RunStatus:
        (view,) = await self.backend.check([self.key])
        assert view is not None
        return view.status

    def sales(self) -> list[str]:
        with closing(sqlite3.connect(self.path)) as reader:
            return [row[0] for row in reader.execute("SELECT name FROM sales")]


def use(path: Path, play: Callable[[Shop], Awaitable[None]]) -> None:
    async def main() -> None:
        shop = Shop(path)
        await shop.begin()
        try:
            await play(shop)
        finally:
            await shop.backend.close()

    asyncio.run(main())


async def sell(connection: aiosqlite.Connection, name: str = "book") -> None:
    await connection.execute("INSERT INTO sales VALUES (?)", (name,))


def test_c18_writes_and_finish_commit_together(path: Path) -> None:
    async def play(shop: Shop) -> None:
        async with shop.backend.transaction(shop.key, "first", DONE) as connection:
            await sell(connection)
            assert await shop.status() is RunStatus.RUNNING  # nobody sees half of it
            assert shop.sales() == []
        assert await shop.status() is RunStatus.SUCCESS
        assert shop.sales() == ["book"]
        assert [record.status for record in await shop.backend.history("sell", limit=9)] == [RunStatus.SUCCESS]

    use(path, play)


def test_what_the_block_raises_rolls_everything_back(path: Path) -> None:
    async def play(shop: Shop) -> None:
        with pytest.raises(KeyError):
            async with shop.backend.transaction(shop.key, "first", DONE) as connection:
                await sell(connection)
                raise KeyError
        assert (shop.sales(), await shop.status()) == ([], RunStatus.RUNNING)

    use(path, play)


def test_c22_a_cancelled_block_is_rolled_back_and_frees_the_lock(path: Path) -> None:
    async def play(shop: Shop) -> None:
        inside = asyncio.Event()

        async def block() -> None:
            async with shop.backend.transaction(shop.key, "first", DONE) as connection:
                await sell(connection)
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (shop.sales(), await shop.status()) == ([], RunStatus.RUNNING)
        assert await shop.backend.renew(shop.key, "first", 1000)

    use(path, play)


def test_c15_a_token_that_lost_the_run_is_refused_before_the_block(path: Path) -> None:
    async def play(shop: Shop) -> None:
        while (await shop.backend.now_ms()) <= shop.key.slot_ms + 5:
            await asyncio.sleep(0.001)
        await shop.claim("second")
        with pytest.raises(LeaseLost, match="'sell'"):
            async with shop.backend.transaction(shop.key, "first", DONE):
                raise AssertionError("the block must not run")
        async with shop.backend.transaction(shop.key, "second", DONE) as connection:
            await sell(connection)
        assert shop.sales() == ["book"]

    use(path, play)


def test_c15_a_run_that_ends_inside_the_block_takes_the_writes_with_it(path: Path) -> None:
    async def play(shop: Shop) -> None:
        with pytest.raises(LeaseLost):
            async with shop.backend.transaction(shop.key, "first", DONE) as connection:
                await sell(connection)
                await connection.execute("UPDATE runs SET token = 'thief'")  # only the block itself can write now
        assert (shop.sales(), await shop.status()) == ([], RunStatus.RUNNING)

    use(path, play)


def test_the_block_cannot_be_committed_or_ended_from_inside(path: Path) -> None:
    async def play(shop: Shop) -> None:
        async with shop.backend.transaction(shop.key, "first", DONE) as connection:
            await sell(connection, "lost")
            await connection.execute("DELETE FROM sales")
            for forbidden in (connection.commit, connection.rollback, connection.close):
                with pytest.raises(BackendError, match="transaction block"):
                    await forbidden()
            for statement in ("COMMIT", "END", "ROLLBACK", "BEGIN"):
                with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                    await connection.execute(statement)
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                await connection.executescript("INSERT INTO sales VALUES ('script')")
            await connection.execute("SAVEPOINT mine")  # nested work is the user's own business
            await sell(connection, "undone")
            await connection.execute("ROLLBACK TO mine")
            await sell(connection)
        assert shop.sales() == ["book"]

    use(path, play)


def test_c23_a_block_that_waits_too_long_is_cut_and_rolled_back(path: Path) -> None:
    async def play(shop: Shop) -> None:
        with pytest.raises(BackendTimeout, match="took longer than 100 ms"):
            async with shop.backend.transaction(shop.key, "first", DONE, limit_ms=100) as connection:
                await sell(connection)
                await asyncio.Event().wait()
        assert (shop.sales(), await shop.status()) == ([], RunStatus.RUNNING)

    use(path, play)


def test_k7_a_block_that_blocks_its_loop_still_frees_the_lock_in_time(path: Path) -> None:
    async def play(shop: Shop) -> None:
        with pytest.raises(BackendTimeout, match="took longer than 100 ms"):
            async with shop.backend.transaction(shop.key, "first", DONE, limit_ms=100) as connection:
                await sell(connection)
                with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as other:
                    other.execute("BEGIN IMMEDIATE")  # the loop stands still until the lock is free
                    other.execute("ROLLBACK")
                await sell(connection)  # must not be committed by itself
        assert (shop.sales(), await shop.status()) == ([], RunStatus.RUNNING)

    use(path, play)


def test_c23_a_long_statement_is_interrupted(path: Path) -> None:
    async def play(shop: Shop) -> None:
        with pytest.raises(BackendTimeout, match="took longer than 100 ms"):
            async with shop.backend.transaction(shop.key, "first", DONE, limit_ms=100) as connection:
                await connection.execute(ENDLESS)
        assert await shop.backend.renew(shop.key, "first", 1000)

    use(path, play)


def test_c22_a_block_cancelled_in_a_long_statement_ends_at_once(path: Path) -> None:
    async def play(shop: Shop) -> None:
        inside = threading.Event()

        async def block() -> None:
            async with shop.backend.transaction(shop.key, "first", DONE, limit_ms=100_000) as connection:
                await connection.create_function("mark", 0, inside.set)
                await connection.execute(ENDLESS.replace("count(*)", "count(mark())"))

        task = asyncio.create_task(block())
        while not inside.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await shop.backend.renew(shop.key, "first", 1000)

    use(path, play)


def test_blocks_wait_for_each_other_and_for_a_free_connection(path: Path) -> None:
    async def play(shop: Shop) -> None:
        keys = [RunKey(f"job{number}", shop.key.slot_ms) for number in range(5)]

        async def block(key: RunKey) -> None:
            await shop.backend.claim(ClaimRequest(key=key, token="t", instance="t"))
            async with shop.backend.transaction(key, "t", DONE) as connection:
                await sell(connection, key.job)

        await asyncio.gather(*(block(key) for key in keys))
        assert sorted(shop.sales()) == [key.job for key in keys]

    use(path, play)


def test_c24_a_block_leaves_no_thread(path: Path) -> None:
    async def play(shop: Shop) -> None:
        before = set(threading.enumerate())
        async with shop.backend.transaction(shop.key, "first", DONE) as connection:
            await sell(connection)
        assert set(threading.enumerate()) == before

    use(path, play)


def test_a_block_of_a_closed_backend_is_refused(path: Path) -> None:
    async def play(shop: Shop) -> None:
        await shop.backend.close()
        with pytest.raises(BackendUnavailable, match="not open"):
            async with shop.backend.transaction(shop.key, "first", DONE):
                raise AssertionError("the block must not run")

    use(path, play)


def test_k6_a_run_that_its_transaction_finished_is_not_handed_over_by_a_stop(path: Path) -> None:
    events: list[str] = []
    sold = threading.Event()

    class Watcher:
        @hookimpl
        def anarchon_run_finished(self, key: RunKey, status: RunStatus, recorded: bool) -> None:
            events.append(f"{status} {recorded}")

        @hookimpl
        def anarchon_run_released(self, key: RunKey) -> None:
            events.append("released")

    with closing(sqlite3.connect(path)) as writer, writer:
        writer.execute("CREATE TABLE sales (name)")
    scheduler = Scheduler(backend=SQLiteBackend(path), plugins=[Watcher()], grace=1)

    @scheduler.job(Every(seconds=1), jitter=0)
    async def lingers(run: Run) -> None:
        async with run.transaction() as connection:
            await sell(connection)
        sold.set()
        await asyncio.Event().wait()

    scheduler.start_in_thread()
    assert sold.wait(30)
    scheduler.shutdown()
    assert events == ["success True"]
    with closing(sqlite3.connect(path)) as reader:
        assert reader.execute("SELECT count(*) FROM sales").fetchone() == (1,)
