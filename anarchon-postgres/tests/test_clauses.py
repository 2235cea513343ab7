"""The claim contract on a real server, by each way a claim may go: what the conformance kit does not know of PostgreSQL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from anarchon.errors import BackendError, BackendTimeout
from anarchon.types import Claim, ClaimRequest, Outcome, RunKey, RunResult, RunStatus, new_token
from anarchon_postgres import PostgresBackend

Database = Any
Use = Callable[..., None]
DONE = RunResult(RunStatus.SUCCESS)
HOSTILE = [
    "a'b",
    'a"b',
    "%s %(x)s",
    "a\\b",
    "$1; --",
    "ünïcödé 作业",
    "{runs}",
    ":name ::text",
    "\u2028".strip() or "x",
    "A" * 200,
]


def ask(key: RunKey, token: str | None = None, **changes: Any) -> ClaimRequest:
    return replace(ClaimRequest(key=key, token=token or new_token(), instance="test", lease_ms=5000, exclusive=False), **changes)


async def slot(backend: PostgresBackend, job: str = "sync") -> RunKey:
    return RunKey(job, await backend.now_ms() - 1)


def test_c1_of_many_claims_at_once_exactly_one_wins(route: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await slot(backend)
        answers = await asyncio.gather(*(backend.claim(ask(key)) for _ in range(40)))
        assert [answer.outcome for answer in answers].count(Outcome.WON) == 1
        assert {answer.outcome for answer in answers} == {Outcome.WON, Outcome.RUNNING}

    play(route.make(max=8), act)


def test_c3_claims_of_one_job_take_turns_on_its_row(route: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await slot(backend)
        await backend.claim(ask(key))
        with psycopg.connect(route.server.url()) as holder:
            holder.execute(f"SELECT FROM {route.table}_jobs WHERE job = 'sync' FOR UPDATE".encode())
            waiting = asyncio.create_task(backend.claim(ask(replace(key, slot_ms=key.slot_ms - 1))))
            done, _ = await asyncio.wait({waiting}, timeout=0.3)
            assert not done
            holder.rollback()
        assert (await waiting).won

    play(route.make(), act)


def test_c11_the_clock_is_read_after_the_lock(route: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await slot(backend)
        await backend.claim(ask(key))
        with psycopg.connect(route.server.url()) as holder:
            holder.execute(f"SELECT FROM {route.table}_jobs WHERE job = 'sync' FOR UPDATE".encode())
            waiting = asyncio.create_task(backend.claim(ask(replace(key, slot_ms=key.slot_ms - 1))))
            await asyncio.wait({waiting}, timeout=0.3)
            free_ms = await backend.now_ms()
            holder.rollback()
        claim = await waiting
        assert claim.store_now_ms is not None
        assert claim.store_now_ms >= free_ms

    play(route.make(), act)


def test_c23_a_held_lock_ends_in_an_error_within_the_limit_and_writes_nothing(route: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await slot(backend)
        await backend.claim(ask(key))
        late = replace(key, slot_ms=key.slot_ms - 1)
        with psycopg.connect(route.server.url()) as holder:
            holder.execute(f"SELECT FROM {route.table}_jobs WHERE job = 'sync' FOR UPDATE".encode())
            with pytest.raises(BackendTimeout):
                await backend.claim(ask(late))
            holder.rollback()
        assert await backend.check([late]) == [None]
        assert (await backend.claim(ask(late))).won

    play(route.make(call_timeout=0.5), act)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_c3_another_default_isolation_changes_no_answer(database: Database, pgbouncer: Any, play: Use, level: str) -> None:
    name = f"iso_{level[:4]}_{database.table}"
    database.sql(f"CREATE DATABASE {name}")
    database.sql(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
    database.base = pgbouncer.url(database=name)

    async def act(backend: PostgresBackend) -> None:
        assert any(level in line for line in await backend.warnings())
        for _ in range(3):
            key = await slot(backend)
            answers = await asyncio.gather(*(backend.claim(ask(key)) for _ in range(12)))
            assert [answer.outcome for answer in answers].count(Outcome.WON) == 1

    play(database.make(max=6), act)


def test_c3_an_isolation_changed_later_is_noticed_by_the_claim(database: Database, pgbouncer: Any, play: Use) -> None:
    name = f"iso_later_{database.table}"
    database.sql(f"CREATE DATABASE {name}")
    database.base = pgbouncer.url(database=name)

    async def act(backend: PostgresBackend) -> None:
        key = await slot(backend)
        database.sql(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
        # The pooler's server connections must begin anew to see the change.
        database.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        answers: list[Claim | BaseException] = []
        for _ in range(3):
            answers += await asyncio.gather(*(backend.claim(ask(key)) for _ in range(6)), return_exceptions=True)
        outcomes = [answer.outcome for answer in answers if isinstance(answer, Claim)]
        assert outcomes.count(Outcome.WON) == 1
        assert set(outcomes) == {Outcome.WON, Outcome.RUNNING}

    play(database.make(max=4), act)


def test_c7_hostile_job_names_work_and_do_not_meet(route: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        keys = [await slot(backend, name) for name in HOSTILE]
        claims = await backend.claim_many([ask(key, f"token {number}") for number, key in enumerate(keys)])
        assert [claim.outcome for claim in claims if isinstance(claim, Claim)] == [Outcome.WON] * len(keys)
        assert {job.job for job in await backend.jobs()} >= set(HOSTILE)
        for number, key in enumerate(keys):
            assert await backend.renew(key, f"token {number}", 9000)
            assert await backend.finish(key, f"token {number}", RunResult(RunStatus.FAILED, "ko\0puts \ud800 'x' %s"))
            (record,) = await backend.history(key.job, limit=9)
            assert (record.job, record.status) == (key.job, RunStatus.FAILED)
            assert record.error is not None
            assert record.error.endswith("'x' %s")
        for name in HOSTILE:
            await backend.forget(name)

    play(route.make(), act)


def test_c7_two_tables_of_one_schema_do_not_meet(database: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await slot(backend)
        assert (await backend.claim(ask(key))).won
        other = database.make(table=f"{database.table}x")
        await other.open()
        assert (await other.claim(ask(key))).won
        assert [job.job for job in await other.jobs()] == ["sync"]
        await other.forget("sync")
        await other.close()
        assert len(await backend.jobs()) == 1

    play(database.make(), act)


def test_c9_a_refused_first_claim_writes_not_even_the_job(route: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        now_ms = await backend.now_ms()
        early = await backend.claim(ask(RunKey("sync", now_ms + 60_000)))
        late = await backend.claim(ask(RunKey("sync", now_ms - 600_000)))
        assert (early.outcome, late.outcome) == (Outcome.EARLY, Outcome.LATE)
        assert await backend.jobs() == []

    play(route.make(), act)


def test_c3_claim_many_leaves_out_locked_jobs_and_claims_them_alone(route: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        keys = [await slot(backend, f"job{number}") for number in range(10)]
        await backend.claim_many([ask(key) for key in keys])
        again = [ask(replace(key, slot_ms=key.slot_ms - 1)) for key in keys]
        with psycopg.connect(route.server.url()) as holder:
            holder.execute(f"SELECT FROM {route.table}_jobs WHERE job = 'job3' FOR UPDATE".encode())
            waiting = asyncio.create_task(backend.claim_many(again))
            for _ in range(200):
                seen = await backend.check([request.key for request in again])
                if [view is None for view in seen].count(True) == 1:
                    break
                await asyncio.wait({waiting}, timeout=0.02)
            assert [request.key.job for request, view in zip(again, seen, strict=True) if view is None] == ["job3"]
            holder.rollback()
        assert [claim.outcome for claim in await waiting if isinstance(claim, Claim)] == [Outcome.WON] * 10

    play(database_with_function(route), act)


def database_with_function(route: Database) -> PostgresBackend:
    """Without the function claim_many goes one by one, and stops at the locked one: nothing to see there."""
    route.base = route.server.url()
    made: PostgresBackend = route.make(max=8)
    return made


def test_c3_claim_many_of_two_instances_at_once_wins_each_run_once(route: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        other = route.make()
        await other.open()
        keys = [await slot(backend, f"job{number}") for number in range(60)]
        both = await asyncio.gather(*(side.claim_many([ask(key) for key in keys]) for side in (backend, other)))
        for first, second in zip(*both, strict=True):
            assert isinstance(first, Claim)
            assert isinstance(second, Claim)
            assert {first.outcome, second.outcome} == {Outcome.WON, Outcome.RUNNING}
        await other.close()

    play(route.make(), act)


def test_c3_one_bad_item_of_claim_many_spoils_no_other(database: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        keys = [await slot(backend, name) for name in ("a", "b\0b", "c")]
        first, bad, last = await backend.claim_many([ask(key) for key in keys])
        assert isinstance(first, Claim)
        assert isinstance(last, Claim)
        assert (first.won, last.won, isinstance(bad, BackendError)) == (True, True, True)

    play(database.make(), act)


def test_c14_renew_many_tells_holders_from_strangers(route: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        keys = [await slot(backend, f"job{number}") for number in range(5)]
        await backend.claim_many([ask(key, f"mine {key.job}") for key in keys])
        items = [(key, f"mine {key.job}", 60_000) for key in keys] + [(keys[0], "stranger", 1), (keys[1], "mine job1", 60_000)]
        assert await backend.renew_many(items) == [True] * 5 + [False, True]
        views = await backend.check(keys)
        assert all(view is not None and view.left_ms > 50_000 for view in views)

    play(route.make(), act)


def test_c17_backups_and_losers_write_nothing(database: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await slot(backend)
        assert (await backend.claim(ask(key, info="v1"))).won
        before = database.sql("SELECT txid_current()")[0][0]
        for _ in range(10):
            await backend.check([key])
            assert (await backend.claim(ask(key, info="v1"))).outcome is Outcome.RUNNING
        assert database.sql("SELECT txid_current()")[0][0] == before + 1, "a transaction number was used up: something wrote"

    play(database.make(), act)


def test_c6_pruning_keeps_the_limit_and_raises_the_floor(route: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        now_ms = await backend.now_ms()
        for number in range(8):
            key = RunKey("sync", now_ms - 1000 + number)
            claim = await backend.claim(ask(key, "t", keep_ms=0, history_size=3))
            assert claim.won
            assert await backend.finish(key, "t", DONE)
        assert [record.slot_ms for record in await backend.history("sync", limit=99)] == [
            now_ms - 1000 + number for number in (7, 6, 5)
        ]
        (job,) = await backend.jobs()
        assert job.floor_ms == now_ms - 1000 + 4
        assert (await backend.claim(ask(RunKey("sync", now_ms - 1000)))).outcome is Outcome.LATE

    play(route.make(), act)


def test_c7_nobodys_search_path_chooses_the_tables(database: Database, pgbouncer: Any, play: Use) -> None:
    database.base = pgbouncer.url()

    async def act(backend: PostgresBackend) -> None:
        async with await psycopg.AsyncConnection.connect(pgbouncer.url(), autocommit=True, prepare_threshold=None) as vandal:
            await vandal.execute("CREATE SCHEMA IF NOT EXISTS elsewhere")
            for _ in range(20):
                await vandal.execute("SET search_path = elsewhere")
        assert (await backend.claim(ask(await slot(backend)))).won
        assert (await backend.history("sync", limit=1))[0].job == "sync"
        async with await psycopg.AsyncConnection.connect(pgbouncer.url(), autocommit=True, prepare_threshold=None) as vandal:
            for _ in range(20):
                await vandal.execute("RESET search_path")

    play(database.make(), act)


def test_the_text_of_the_decision_changes_only_with_its_version() -> None:
    import hashlib

    from anarchon_postgres.decision import DECISION_VERSION, FUNCTION

    known = {1: "aee7e5729f6a9483"}
    digest = hashlib.sha256(FUNCTION.encode()).hexdigest()[:16]
    assert known[DECISION_VERSION] == digest, "an installed function is never replaced: raise DECISION_VERSION and add its digest"


def test_k8_an_open_backend_that_is_not_asked_is_silent(database: Database, play: Use) -> None:
    name = f"idle_{database.table}"
    database.sql(f"CREATE DATABASE {name}")
    database.base = database.server.url(database=name)

    def last_change() -> Any:
        query = "SELECT max(state_change), count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
        return database.sql(query, name)[0]

    async def act(backend: PostgresBackend) -> None:
        keys = [await slot(backend, f"job{number}") for number in range(8)]
        await asyncio.gather(*(backend.claim(ask(key)) for key in keys))
        before = last_change()
        assert before[1] > 0
        await asyncio.sleep(2.5)
        assert last_change() == before

    play(database.make(), act)


def test_answers_are_json_whatever_the_names(database: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        key = await slot(backend, 'a"b\\')
        await backend.claim(ask(key, instance='i"\\{}'))
        claim = await backend.claim(ask(replace(key, slot_ms=key.slot_ms - 1), exclusive=True))
        assert (claim.outcome, claim.other, claim.winner) == (Outcome.OVERLAP, key, 'i"\\{}')
        assert json.dumps(claim.winner)

    play(database.make(), act)
