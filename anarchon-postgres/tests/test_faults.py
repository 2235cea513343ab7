"""Lost replies, frozen and killed servers, black holes, cancelled calls: every call ends, and the next one works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest
from anarchon.errors import BackendError, BackendTimeout, BackendUnavailable
from anarchon.types import ClaimRequest, Outcome, RunKey, RunResult, RunStatus, new_token
from anarchon.url import BackendUrl
from anarchon_conformance.gate import Gate, Mode, reroute
from anarchon_postgres import PostgresBackend
from psycopg_pool import AsyncConnectionPool

Database = Any
DONE = RunResult(RunStatus.SUCCESS)
LIMIT_S = 60
GRACE_S = 1.0
KILLS = {"default": 5, "nightly": 50}


def ask(key: RunKey, token: str | None = None, **changes: Any) -> ClaimRequest:
    return replace(
        ClaimRequest(key=key, token=token or new_token(), instance="test", lease_ms=60_000, exclusive=False), **changes
    )


@asynccontextmanager
async def gated(database: Database, **options: object) -> AsyncIterator[tuple[Gate, PostgresBackend]]:
    """Open a backend behind a gate of its own."""
    parts = BackendUrl.of(database.base)
    assert parts.host is not None
    assert parts.port is not None
    async with asyncio.timeout(LIMIT_S), Gate(parts.host, parts.port) as gate:
        url = reroute(database.url(**options), gate.host, gate.port)
        backend = PostgresBackend.from_url(BackendUrl(url))
        await backend.open()
        try:
            yield gate, backend
        finally:
            gate.heal()
            await backend.close()


async def until_works(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a call until it works; every failure must be a BackendError."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                return await call()
            except BackendError:
                await asyncio.sleep(0.02)


async def quick(call: Awaitable[Any], limit_s: float) -> Any:
    """Await a call that must end within its limit, and a grace for this machine."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(limit_s + 10):
            return await call
    finally:
        assert time.monotonic() - began < limit_s + GRACE_S


def test_c4_a_lost_reply_is_asked_again_with_the_same_token(route: Database) -> None:
    async def main() -> None:
        async with gated(route) as (gate, backend):
            for number in range(4):
                key = RunKey(f"job{number}", await backend.now_ms())
                gate.set(Mode.CUT_AFTER, count=1 if number < 2 else number)
                with pytest.raises(BackendUnavailable):
                    await backend.claim(ask(key, "mine"))
                claim = await until_works(partial(backend.claim, ask(key, "mine")))
                assert (claim.outcome, claim.attempt) == (Outcome.WON, 1)
                assert (await backend.claim(ask(key, "other"))).outcome is Outcome.RUNNING

    asyncio.run(main())


def test_c18_a_lost_reply_of_a_finish_is_true_when_asked_again(route: Database) -> None:
    async def main() -> None:
        async with gated(route) as (gate, backend):
            key = RunKey("job", await backend.now_ms())
            assert (await backend.claim(ask(key, "mine"))).won
            gate.set(Mode.CUT_AFTER, count=1)
            with pytest.raises(BackendUnavailable):
                await backend.finish(key, "mine", DONE)
            assert await until_works(lambda: backend.finish(key, "mine", DONE))
            assert not await backend.finish(key, "other", DONE)

    asyncio.run(main())


def test_c23_a_black_hole_ends_in_an_error_and_the_next_call_connects_anew(route: Database) -> None:
    async def main() -> None:
        async with gated(route, call_timeout=1, max=4) as (gate, backend):
            await asyncio.gather(*(backend.now_ms() for _ in range(4)))  # four connections are idle now
            gate.set(Mode.HALF_OPEN)
            with pytest.raises(BackendTimeout):
                await quick(backend.now_ms(), 1)
            gate.set(Mode.PASS)  # the silent links stay silent: none of the other three may be trusted
            await quick(backend.now_ms(), 1)

    asyncio.run(main())


def test_c23_a_server_that_cannot_be_reached_fails_each_call_within_the_limit(database: Database) -> None:
    async def main() -> None:
        async with gated(database, call_timeout=0.5) as (gate, backend):
            gate.set(Mode.HALF_OPEN)
            for _ in range(3):
                with pytest.raises(BackendUnavailable):
                    await quick(backend.now_ms(), 0.5)
            gate.heal()
            await backend.now_ms()

    asyncio.run(main())


def test_c22_a_call_cancelled_at_any_step_is_all_or_nothing(route: Database) -> None:
    async def main() -> None:
        backend = route.make(max=2)
        await backend.open()
        now_ms = await backend.now_ms()
        for steps in range(40):
            key = RunKey(f"job{steps}", now_ms)
            task = asyncio.create_task(backend.claim(ask(key, "mine")))
            for _ in range(steps):
                await asyncio.sleep(0)
            if steps > 20:
                await asyncio.sleep((steps - 20) / 5000)
            task.cancel()
            await asyncio.wait({task}, timeout=0.5)
            assert task.done(), "a cancelled call must return at once"
            (view,) = await backend.check([key])
            assert view is None or view.attempt == 1
            claim = await backend.claim(ask(key, "mine"))
            assert (claim.outcome, claim.attempt) == (Outcome.WON, 1)
            assert await backend.finish(key, "mine", DONE)
        await backend.close()

    asyncio.run(main())


def test_c22_a_cancelled_call_on_a_frozen_server_returns_at_once(database: Database) -> None:
    async def main() -> None:
        async with gated(database) as (gate, backend):
            gate.set(Mode.HALF_OPEN)
            task = asyncio.create_task(backend.now_ms())
            await asyncio.wait({task}, timeout=0.1)
            task.cancel()
            await asyncio.wait({task}, timeout=0.5)
            assert task.cancelled()

    asyncio.run(main())


def test_c23_a_frozen_server_fails_calls_in_time_and_serves_again_when_it_thaws(own: Database) -> None:
    async def main() -> None:
        backend = own.make(call_timeout=0.5)
        await backend.open()
        key = RunKey("job", await backend.now_ms())
        own.server.pause()
        try:
            for _ in range(3):
                with pytest.raises(BackendUnavailable):
                    await quick(backend.claim(ask(key, "mine")), 0.5)
        finally:
            own.server.resume()
        claim = await until_works(lambda: backend.claim(ask(key, "mine")))
        assert (claim.outcome, claim.attempt) == (Outcome.WON, 1)
        await backend.close()

    asyncio.run(main())


def test_c23_an_idle_connection_closed_by_a_restart_is_not_used(own: Database) -> None:
    async def main() -> None:
        backend = own.make(max=3)
        await backend.open()
        await asyncio.gather(*(backend.now_ms() for _ in range(3)))
        await asyncio.to_thread(own.server.stop)
        await asyncio.to_thread(own.server.start)
        for _ in range(5):
            await backend.now_ms()  # no failure: the dead ones are seen before they are used
        await backend.close()

    asyncio.run(main())


def test_c6_no_acknowledged_claim_is_lost_when_the_server_is_killed(own: Database, request: pytest.FixtureRequest) -> None:
    """Claims go on while the server is killed and restarted; whatever was told WON is still held afterwards."""
    kills = KILLS[request.config.getoption("--profile", "default")]

    async def main() -> None:
        backend = own.make(max=4, call_timeout=2)
        await backend.open()
        start_ms = await backend.now_ms()
        won: dict[RunKey, str] = {}
        stop = asyncio.Event()

        async def work(worker: int) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                key, token = RunKey(f"job{worker}", start_ms - number), new_token()
                claim = await until_works(partial(backend.claim, ask(key, token, max_late_ms=10**9)))
                assert (claim.outcome, claim.attempt) == (Outcome.WON, 1)
                won[key] = token

        async with asyncio.TaskGroup() as group:
            for worker in range(4):
                group.create_task(work(worker))
            for _ in range(kills):
                enough = len(won) + 40
                while len(won) < enough:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(own.server.kill)
                await asyncio.to_thread(own.server.start)
            stop.set()
        for start in range(0, len(won), 100):
            part = list(won.items())[start : start + 100]
            answers = await until_works(partial(backend.renew_many, [(key, token, 60_000) for key, token in part]))
            assert answers == [True] * len(part)
        await backend.close()

    asyncio.run(main())


def test_c24_a_borrowed_pool_serves_and_stays_open(route: Database) -> None:
    async def main() -> None:
        async with AsyncConnectionPool(
            route.base,
            min_size=1,
            max_size=3,
            open=False,
            kwargs={"prepare_threshold": None, "row_factory": psycopg.rows.dict_row},
        ) as pool:
            backend = PostgresBackend(pool=pool, table=route.table)
            await backend.open()
            key = RunKey("job", await backend.now_ms())
            answers = await asyncio.gather(*(backend.claim(ask(key)) for _ in range(10)))
            assert [answer.outcome for answer in answers].count(Outcome.WON) == 1
            other = replace(key, job="other")
            assert (await backend.claim(ask(other, "mine"))).won
            async with backend.transaction(other, "mine") as lent:
                await lent.execute("SELECT 1")
            assert await backend.finish(other, "mine", DONE)
            await backend.close()
            async with pool.connection() as connection:
                assert not connection.autocommit, "what is lent comes back as it was"
                row: Any = await (await connection.execute("SELECT 1 AS one")).fetchone()
                assert row == {"one": 1}

    asyncio.run(main())


def test_c23_dead_connections_of_a_borrowed_pool_are_thrown_out(own: Database) -> None:
    async def main() -> None:
        async with AsyncConnectionPool(own.base, min_size=3, max_size=3, open=False) as pool:
            await pool.wait()
            backend = PostgresBackend(pool=pool, table=own.table)
            await backend.open()
            await asyncio.to_thread(own.server.kill)
            await asyncio.to_thread(own.server.start)
            assert await backend.now_ms() > 0
            await backend.close()

    asyncio.run(main())


def test_c23_a_lost_reply_on_a_borrowed_pool_is_asked_again(database: Database) -> None:
    async def main() -> None:
        parts = BackendUrl.of(database.base)
        assert parts.host is not None
        assert parts.port is not None
        async with Gate(parts.host, parts.port) as gate:
            url = reroute(database.base, gate.host, gate.port)
            async with AsyncConnectionPool(url, min_size=1, max_size=2, open=False) as pool:
                backend = PostgresBackend(pool=pool, table=database.table, call_timeout=1)
                await backend.open()
                key = RunKey("job", await backend.now_ms())
                gate.set(Mode.CUT_AFTER, count=1)
                with pytest.raises(BackendUnavailable):
                    await backend.claim(ask(key, "mine"))
                assert (await until_works(lambda: backend.claim(ask(key, "mine")))).attempt == 1
                gate.set(Mode.HALF_OPEN)
                with pytest.raises(BackendTimeout):
                    await quick(backend.now_ms(), 1)
                gate.heal()
                await until_works(backend.now_ms)
                await backend.close()

    asyncio.run(main())


def test_c24_a_borrowed_connection_serves_in_turn_and_stays_open(route: Database) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(route.base, autocommit=True, prepare_threshold=None) as connection:
            backend = PostgresBackend(connection=connection, table=route.table)
            await backend.open()
            key = RunKey("job", await backend.now_ms())
            answers = await asyncio.gather(*(backend.claim(ask(key)) for _ in range(10)))
            assert [answer.outcome for answer in answers].count(Outcome.WON) == 1
            task = asyncio.create_task(backend.claim(ask(key)))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            assert await backend.now_ms() > 0
            with pytest.raises(BackendUnavailable, match="needs a connection of its own"):
                async with backend.transaction(key, "mine", DONE):
                    pytest.fail("the block must not begin")
            await backend.close()
            assert await (await connection.execute("SELECT 1")).fetchone() == (1,)

    asyncio.run(main())


def test_a_borrowed_connection_in_a_transaction_or_closed_is_refused(database: Database) -> None:
    async def main() -> None:
        connection = await psycopg.AsyncConnection.connect(database.base)
        backend = PostgresBackend(connection=connection, table=database.table)
        with pytest.raises(BackendUnavailable, match="set autocommit"):
            await backend.open()
        await connection.set_autocommit(True)
        await backend.open()
        await connection.close()
        with pytest.raises(BackendUnavailable, match="is closed: lend an open one"):
            await backend.now_ms()
        await backend.close()

    asyncio.run(main())


def test_c23_calls_beyond_the_connections_wait_and_then_say_why(database: Database) -> None:
    async def main() -> None:
        async with gated(database, call_timeout=0.5, max=1) as (gate, backend):
            gate.set(Mode.HALF_OPEN)
            answers = await quick(asyncio.gather(*(backend.now_ms() for _ in range(3)), return_exceptions=True), 0.5)
            assert all(isinstance(answer, BackendUnavailable) for answer in answers)
            assert any("raise max" in str(answer) for answer in answers)

    asyncio.run(main())
