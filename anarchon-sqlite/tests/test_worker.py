"""What this package relies on inside aiosqlite; a failure here means: read `worker.py` against the new aiosqlite."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import aiosqlite
import pytest
from aiosqlite.core import _STOP_RUNNING_SENTINEL
from anarchon.errors import BackendUnavailable
from anarchon_sqlite.worker import Worker


def test_aiosqlite_takes_pairs_from_its_queue_on_its_thread() -> None:
    seen: list[str] = []

    async def main() -> None:
        connection = aiosqlite.Connection(lambda: sqlite3.connect(":memory:"), 64)
        assert isinstance(connection._thread, threading.Thread)
        assert not connection._thread.is_alive()
        async with connection:
            connection._tx.put_nowait((None, lambda: seen.append(threading.current_thread().name)))
            await connection.execute("SELECT 1")
            assert seen == [connection._thread.name]
            assert connection._running
            assert isinstance(connection._connection, sqlite3.Connection)
        connection._thread.join(5)
        assert not connection._thread.is_alive()

    asyncio.run(main())
    assert list(inspect.signature(aiosqlite.Connection.__init__).parameters)[:3] == ["self", "connector", "iter_chunk_size"]
    assert _STOP_RUNNING_SENTINEL is not None


def test_c22_the_thread_outlives_a_loop_that_is_closed_under_a_call() -> None:
    worker = Worker(lambda: sqlite3.connect(":memory:", check_same_thread=False))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(worker.start())
    begun, free = threading.Event(), threading.Event()

    def wait(_: sqlite3.Connection) -> None:
        begun.set()
        free.wait(10)

    call = loop.create_task(worker.run(wait))
    loop.run_until_complete(asyncio.sleep(0))
    assert begun.wait(10)
    call.cancel()
    loop.run_until_complete(asyncio.wait([call]))
    loop.close()
    free.set()

    async def again() -> None:
        assert await worker.run(lambda db: db.execute("SELECT 7").fetchone()) == (7,)
        cursor = await worker.execute("SELECT 8")  # aiosqlite's own interface goes the same way
        assert await cursor.fetchone() == (8,)
        await worker.end()
        with pytest.raises(BackendUnavailable):
            await worker.run(lambda db: None)

    asyncio.run(again())


def test_c24_a_start_that_is_cancelled_leaves_no_connection_and_no_thread() -> None:
    made: list[sqlite3.Connection] = []
    begun, free = threading.Event(), threading.Event()

    def connect() -> sqlite3.Connection:
        begun.set()
        free.wait(10)
        made.append(sqlite3.connect(":memory:", check_same_thread=False))
        return made[0]

    async def main() -> None:
        worker = Worker(connect)
        start = asyncio.create_task(worker.start())
        await asyncio.sleep(0)
        assert begun.wait(10)
        start.cancel()
        await asyncio.wait([start])
        free.set()
        worker._thread.join(10)
        assert not worker._thread.is_alive()

    asyncio.run(main())
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made[0].execute("SELECT 1")


def test_c24_an_error_of_connect_comes_out_and_ends_the_thread() -> None:
    def connect() -> sqlite3.Connection:
        raise sqlite3.OperationalError("no")

    async def main() -> None:
        worker = Worker(connect)
        with pytest.raises(sqlite3.OperationalError, match="no"):
            await worker.start()
        assert not worker._thread.is_alive()
        await worker.end()

    asyncio.run(main())


def test_tokens_do_not_reach_the_log_of_aiosqlite(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        worker = Worker(lambda: sqlite3.connect(":memory:", check_same_thread=False))
        await worker.start()
        await worker.execute("SELECT ?", ("a-token",))
        await worker.end()

    with caplog.at_level(logging.DEBUG, "aiosqlite"):
        asyncio.run(main())
    assert caplog.records
    assert "a-token" not in caplog.text


FORGETFUL = """
import asyncio, sys
from anarchon_sqlite import SQLiteBackend
backend = SQLiteBackend(sys.argv[1])
async def main():
    await backend.open()
    print(await backend.jobs())
asyncio.run(main())
"""


def test_a_program_that_forgets_to_close_still_ends(path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", FORGETFUL, path], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[]\n", "")


FORKING = """
import asyncio, os, sys
from anarchon_sqlite import SQLiteBackend
from anarchon.errors import BackendUnavailable
closed, opened = SQLiteBackend(sys.argv[1]), SQLiteBackend(sys.argv[1])
loop = asyncio.new_event_loop()
loop.run_until_complete(opened.open())
child = os.fork()
async def in_child():
    await closed.open()
    print(await closed.jobs(), flush=True)
    await closed.close()
    try:
        await opened.jobs()
    except BackendUnavailable as error:
        print(error, flush=True)
    await opened.close()
if child == 0:
    asyncio.run(in_child())
    os._exit(0)
print(os.waitpid(child, 0)[1], loop.run_until_complete(opened.jobs()))
loop.run_until_complete(opened.close())
"""


def test_a_backend_made_before_a_fork_opens_in_the_child_and_an_open_one_refuses_there(path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.stdout == "[]\nthe SQLite backend is not open: call open() first\n0 []\n", ended.stderr
