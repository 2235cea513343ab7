"""Exactly-once effects: the user's writes and the finish commit together or not at all (C15, C18)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from anarchon.errors import BackendTimeout, BackendUnavailable, LeaseLost, OptionError
from anarchon.types import ClaimRequest, Outcome, RunKey, RunResult, RunStatus, new_token
from anarchon.url import BackendUrl
from anarchon_conformance.gate import Gate, Mode, reroute
from anarchon_postgres import PostgresBackend
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

Database = Any
Use = Callable[..., None]
DONE = RunResult(RunStatus.SUCCESS)
REQUESTS_MOST = 40
LIMIT_S = 60


def ask(key: RunKey, token: str | None = None, **changes: Any) -> ClaimRequest:
    return replace(
        ClaimRequest(key=key, token=token or new_token(), instance="test", lease_ms=60_000, exclusive=False), **changes
    )


@pytest.fixture
def effects(database: Database) -> Database:
    """A database with a table for effects."""
    database.sql(f"CREATE TABLE {database.table}_effects (way text, slot_ms bigint, who text)")
    return database


def count(database: Database) -> int:
    found = database.sql(f"SELECT count(*) FROM {database.table}_effects")
    return int(found[0][0])


def write(database: Database) -> bytes:
    return f"INSERT INTO {database.table}_effects VALUES ('test', 0, 'test')".encode()


async def won(backend: PostgresBackend, token: str = "mine") -> RunKey:
    key = RunKey(f"job {new_token()}", await backend.now_ms())
    assert (await backend.claim(ask(key, token))).won
    return key


def test_a_block_commits_its_writes_with_the_finish(effects: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await won(backend)
        async with backend.transaction(key, "mine") as connection:
            await connection.execute(write(effects))
            assert count(effects) == 0
            assert [view.status for view in await backend.check([key]) if view] == [RunStatus.RUNNING]
        assert count(effects) == 1
        assert [view.status for view in await backend.check([key]) if view] == [RunStatus.SUCCESS]
        assert await backend.finish(key, "mine", DONE), "the token that finished it is told so again"

    play(effects.make(), act)


def test_a_block_records_the_result_it_was_given(effects: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await won(backend)
        async with backend.transaction(key, "mine", RunResult(RunStatus.FAILED, "half")):
            pass
        (record,) = await backend.history(key.job, limit=9)
        assert (record.status, record.error) == (RunStatus.FAILED, "half")

    play(effects.make(), act)


def test_an_exception_rolls_the_block_back_and_the_run_goes_on(effects: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await won(backend)
        with pytest.raises(ZeroDivisionError):
            async with backend.transaction(key, "mine") as connection:
                await connection.execute(write(effects))
                raise ZeroDivisionError
        assert count(effects) == 0
        assert await backend.renew(key, "mine", 1000)

    play(effects.make(), act)


def test_c15_a_stranger_gets_no_block_and_a_loser_commits_nothing(effects: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await won(backend)
        with pytest.raises(LeaseLost, match="no longer holds the run"):
            async with backend.transaction(key, "stranger"):
                pytest.fail("the block must not begin")
        with pytest.raises(LeaseLost):
            async with backend.transaction(key, "mine") as connection:
                await connection.execute(write(effects))
                assert await backend.release(key, "mine")
                assert (await backend.claim(ask(key, "next"))).attempt == 2
        assert count(effects) == 0
        assert await backend.renew(key, "next", 1000)

    play(effects.make(), act)


def test_a_block_beyond_its_limit_is_rolled_back(effects: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await won(backend)
        with pytest.raises(BackendTimeout, match="took longer than 200 ms and was rolled back"):
            async with backend.transaction(key, "mine", limit_ms=200) as connection:
                await connection.execute(write(effects))
                await asyncio.sleep(30)
        with pytest.raises(BackendTimeout, match="took longer than 200 ms"):
            async with backend.transaction(key, "mine", limit_ms=200) as connection:
                await connection.execute("SELECT pg_sleep(30)")
        assert count(effects) == 0
        assert await backend.renew(key, "mine", 1000)

    play(effects.make(), act)


def test_k7_a_block_that_blocks_its_loop_is_ended_by_the_server(effects: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await won(backend)
        with pytest.raises((BackendTimeout, psycopg.OperationalError)):
            async with backend.transaction(key, "mine", limit_ms=100) as connection:
                await connection.execute(write(effects))
                threading.Event().wait(1.0)
                await connection.execute(write(effects))
        assert count(effects) == 0

    play(effects.make(), act)


def test_a_timeout_of_the_users_own_stays_what_it_is(effects: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await won(backend)
        with pytest.raises(TimeoutError):
            async with backend.transaction(key, "mine"):
                raise TimeoutError

    play(effects.make(), act)


def test_commit_inside_a_block_is_refused_and_savepoints_work(effects: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await won(backend)
        with pytest.raises(psycopg.ProgrammingError, match="commit"):
            async with backend.transaction(key, "mine") as connection:
                await connection.commit()
        async with backend.transaction(key, "mine") as connection:
            await connection.execute(write(effects))
            with pytest.raises(psycopg.errors.UndefinedTable):
                async with connection.transaction():
                    await connection.execute(write(effects))
                    await connection.execute("SELECT * FROM nowhere_at_all")
        assert count(effects) == 1

    play(effects.make(), act)


def test_blocks_run_on_other_loops_and_threads_than_the_calls(effects: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        keys = [await won(backend) for _ in range(4)]

        async def block(key: RunKey) -> None:
            async with backend.transaction(key, "mine") as connection:
                await connection.execute(write(effects))

        await asyncio.gather(*(asyncio.to_thread(asyncio.run, block(key)) for key in keys))
        assert count(effects) == 4

    play(effects.make(max=2), act)


@pytest.mark.parametrize("mode", [Mode.CUT_BEFORE, Mode.CUT_AFTER, Mode.HALF_OPEN])
def test_a_commit_whose_reply_is_lost_is_looked_up(effects: Database, mode: Mode) -> None:
    async def main() -> None:
        parts = BackendUrl.of(effects.base)
        assert parts.host is not None
        assert parts.port is not None
        async with asyncio.timeout(LIMIT_S), Gate(parts.host, parts.port) as gate:
            backend = PostgresBackend.from_url(BackendUrl(reroute(effects.url(call_timeout=1), gate.host, gate.port)))
            await backend.open()
            for requests_before in (0, 1):  # the finish, the commit
                key, before = await won(backend), count(effects)
                try:
                    async with backend.transaction(key, "mine", limit_ms=1000) as connection:
                        await connection.execute(write(effects))
                        _cut_after(gate, mode, requests_before)
                    committed = True
                except BackendUnavailable:
                    committed = False
                gate.heal()
                finished = [view.status for view in await _settled(backend, key)] == [RunStatus.SUCCESS]
                assert committed == finished == (mode is Mode.CUT_AFTER and requests_before == 1)
                assert count(effects) - before == finished
            await backend.close()

    asyncio.run(main())


def _cut_after(gate: Gate, mode: Mode, requests: int) -> None:
    """Let some requests pass, and apply the mode to the one behind them."""
    if requests == 0:
        gate.set(mode, count=1)
        return
    gate.set(Mode.DELAY, count=requests, delay_ms=0)
    take = gate._next_mode

    def next_mode() -> Mode:
        found = take()
        if gate.mode is Mode.PASS:
            gate._next_mode = take  # type: ignore[method-assign]  # counts requests once, then is itself again
            gate.set(mode, count=1)
        return found

    gate._next_mode = next_mode  # type: ignore[method-assign]  # a gate has no queue of modes


async def _settled(backend: PostgresBackend, key: RunKey) -> list[Any]:
    for _ in range(50):
        try:
            return [view for view in await backend.check([key]) if view]
        except BackendUnavailable:
            await asyncio.sleep(0.05)
    pytest.fail("the backend did not recover")


# -- finish_in -----------------------------------------------------------------------------------------------------------


def test_finish_in_joins_a_psycopg_transaction(effects: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await won(backend)
        async with await psycopg.AsyncConnection.connect(effects.base) as connection:
            await connection.execute(write(effects))
            assert not await backend.finish_in(connection, key, "stranger")
            assert await backend.finish_in(connection, key, "mine", DONE)
            assert [view.status for view in await backend.check([key]) if view] == [RunStatus.RUNNING]
            await connection.rollback()
            assert await backend.renew(key, "mine", 5000)
            async with connection.transaction():
                await connection.execute(write(effects))
                assert await backend.finish_in(connection, key, "mine")
        assert count(effects) == 1
        assert [view.status for view in await backend.check([key]) if view] == [RunStatus.SUCCESS]

    play(effects.make(), act)


def test_finish_in_refuses_a_connection_without_a_transaction(effects: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await won(backend)
        async with await psycopg.AsyncConnection.connect(effects.base, autocommit=True) as connection:
            with pytest.raises(OptionError, match="needs a transaction that holds your writes"):
                await backend.finish_in(connection, key, "mine")
        with pytest.raises(OptionError, match="finish_in cannot use str"):
            await backend.finish_in("postgresql://", key, "mine")

    play(effects.make(), act)


@pytest.mark.parametrize("kind", ["session", "scoped", "connection"])
def test_finish_in_joins_a_sqlalchemy_transaction(effects: Database, play: Use, kind: str) -> None:
    async def act(backend: PostgresBackend) -> None:
        engine = create_async_engine(effects.base.replace("postgresql://", "postgresql+psycopg://"))
        make: Any = {
            "session": lambda: AsyncSession(engine),
            "scoped": async_sessionmaker(engine),
            "connection": engine.connect,
        }[kind]
        statement = text(write(effects).decode())
        key = await won(backend)
        async with make() as session, session.begin():
            await session.execute(statement)
            assert not await backend.finish_in(session, key, "stranger")
            await session.rollback() if kind == "connection" else None
        before = count(effects)
        async with make() as session:
            with pytest.raises(ZeroDivisionError):
                async with session.begin():
                    await session.execute(statement)
                    assert await backend.finish_in(session, key, "mine")
                    raise ZeroDivisionError
            assert count(effects) == before
            async with session.begin():
                await session.execute(statement)
                assert await backend.finish_in(session, key, "mine", RunResult(RunStatus.SUCCESS, "a 'note' :x %s"))
        assert count(effects) == before + 1
        (record,) = await backend.history(key.job, limit=9)
        assert (record.status, record.error) == (RunStatus.SUCCESS, "a 'note' :x %s")
        await engine.dispose()

    play(effects.make(), act)


# -- killed at every statement -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["block", "alchemy"])
def test_effects_happen_exactly_once_wherever_the_process_is_killed(effects: Database, way: str) -> None:
    """A child is killed while its k-th request is at the server, for every k; whoever takes over does the work once."""

    async def main() -> None:
        backend = effects.make()
        await backend.open()
        start_ms = await backend.now_ms() - 30_000
        endings = []
        for killed_at in range(1, REQUESTS_MOST):
            key = RunKey(way, start_ms + killed_at)
            done = await _child(effects, way, key.slot_ms, killed_at)
            await _take_over(effects, backend, key)
            rows = effects.sql(f"SELECT who FROM {effects.table}_effects WHERE way = %s AND slot_ms = %s", way, key.slot_ms)
            assert len(rows) == 2, f"killed at request {killed_at}: {rows}"
            endings.append(rows[0][0])
            if done:
                break
        assert done, "the child has more requests than this test follows"
        assert endings[-1] == "child"
        assert "test" in endings
        await backend.close()

    asyncio.run(main())


async def _child(database: Database, way: str, slot_ms: int, killed_at: int) -> bool:
    """Run a child until its k-th request of the transaction is delivered, and kill it; True if it ended before."""
    parts = BackendUrl.of(database.base)
    assert parts.host is not None
    assert parts.port is not None
    async with asyncio.timeout(LIMIT_S), Gate(parts.host, parts.port) as gate:
        words = [str(Path(__file__).with_name("crash_child.py")), reroute(database.base, gate.host, gate.port), database.table]
        child = await asyncio.create_subprocess_exec(
            sys.executable, *words, way, str(slot_ms), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            assert await child.stdout.readline() == b"won\n"
            gate.set(Mode.HOLD)
            child.stdin.write(b"go\n")
            ended = asyncio.create_task(child.stdout.readline())
            for number in range(1, killed_at + 1):
                held = asyncio.create_task(gate.wait_held(LIMIT_S * 1000))
                await asyncio.wait({held, ended}, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    held.cancel()
                    return True
                await gate.release(settle_ms=0 if number == killed_at else 20)
            ended.cancel()
            return False
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()
            # The transport of the pipes lives on until it is collected.
            child._transport.close()  # type: ignore[attr-defined]  # asyncio offers no public way


async def _take_over(database: Database, backend: PostgresBackend, key: RunKey) -> None:
    """Do the run as the next instance would, once its lease is over; nothing is left to do if the child committed."""
    while True:
        claim = await backend.claim(ask(key, "test"))
        if claim.outcome is not Outcome.RUNNING:
            break
        await asyncio.sleep(0.02)
    if claim.outcome is Outcome.DONE:
        return
    assert (claim.outcome, claim.attempt) == (Outcome.WON, 2)
    statement = f"INSERT INTO {database.table}_effects VALUES ('{key.job}', {key.slot_ms}, 'test')".encode()
    async with backend.transaction(key, "test") as connection:
        await connection.execute(statement)
        await connection.execute(statement)
