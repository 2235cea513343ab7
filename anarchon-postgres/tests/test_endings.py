"""Ends of runs that come at once: they travel together, and none pays for another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from anarchon.errors import BackendError, BackendUnavailable
from anarchon.types import ClaimRequest, RunKey, RunResult, RunStatus, new_token
from anarchon_postgres import PostgresBackend

Database = Any
Use = Callable[..., None]
DONE = RunResult(RunStatus.SUCCESS)
MANY = 250


async def won(backend: PostgresBackend, count: int) -> list[ClaimRequest]:
    """Win a run of each of many jobs."""
    slot_ms = await backend.now_ms() - 1
    wanted = [ClaimRequest(key=RunKey(f"job{number:04}", slot_ms), token=new_token(), instance="t") for number in range(count)]
    answers = await backend.claim_many(wanted)
    assert all(not isinstance(answer, BackendError) and answer.won for answer in answers)
    return wanted


async def status(backend: PostgresBackend, request: ClaimRequest) -> RunStatus:
    (view,) = await backend.check([request.key])
    assert view is not None
    return view.status


def test_c18_many_ends_at_once_are_all_written_with_few_commits(route: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        runs = await won(backend, MANY)
        before = commits(route)
        results = [RunResult(RunStatus.FAILED, f"no. {n}") if n % 2 else DONE for n in range(MANY)]
        answers = await asyncio.gather(
            *(backend.finish(run.key, run.token, result) for run, result in zip(runs, results, strict=True))
        )
        assert answers == [True] * MANY
        records = [(await backend.history(run.key.job, limit=1))[0] for run in runs]
        assert [RunResult(record.status, record.error) for record in records] == results
        written = commits(route) - before
        assert written < MANY + MANY // 2, "each look at the history is one, and the ends together are few"

    def commits(database: Database) -> int:
        (row,) = database.sql("SELECT txid_current()::text")
        return int(row[0])

    play(route.make(), act)


def test_c15_who_holds_nothing_is_refused_among_many_who_do(route: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        runs = await won(backend, 20)
        stranger = replace(runs[3], token=new_token())
        asked = [*runs[:10], stranger, *runs[10:], runs[0]]
        answers = await asyncio.gather(*(backend.finish(run.key, run.token, DONE) for run in asked))
        assert answers == [run is not stranger for run in asked]  # C18: its own end said twice is no refusal

    play(route.make(), act)


def test_c23_an_end_whose_row_is_locked_keeps_no_other_waiting(route: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        runs = await won(backend, 20)
        locked = runs[7]
        with psycopg.connect(route.server.url()) as holder:
            holder.execute(f"SELECT FROM {route.table} WHERE job = %s FOR UPDATE".encode(), (locked.key.job,))
            ends = {run.key: asyncio.create_task(backend.finish(run.key, run.token, DONE)) for run in runs}
            late = ends.pop(locked.key)
            assert all(await asyncio.gather(*ends.values()))
            assert not late.done()
        assert await late
        assert await status(backend, locked) is RunStatus.SUCCESS

    play(route.make(), act)


def test_c24_ends_that_wait_when_the_backend_is_closed_are_told_so(route: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        runs = await won(backend, 20)
        with psycopg.connect(route.server.url()) as holder:
            holder.execute(f"SELECT FROM {route.table} FOR UPDATE".encode())
            ends = [asyncio.create_task(backend.finish(run.key, run.token, DONE)) for run in runs]
            await asyncio.sleep(0)
            await backend.close()
            found = await asyncio.gather(*ends, return_exceptions=True)
        assert all(isinstance(each, BackendError) for each in found)
        assert any(isinstance(each, BackendUnavailable) and "closed" in str(each) for each in found)

    play(route.make(call_timeout=1), act)


@pytest.mark.parametrize("given_up", [0, 5])
def test_c22_an_end_that_is_given_up_spoils_no_other(route: Database, play: Use, given_up: int) -> None:
    async def act(backend: PostgresBackend) -> None:
        runs = await won(backend, 20)
        ends = [asyncio.create_task(backend.finish(run.key, run.token, DONE)) for run in runs]
        await asyncio.sleep(0)
        ends[given_up].cancel()
        answers = await asyncio.gather(*ends, return_exceptions=True)
        assert isinstance(answers.pop(given_up), asyncio.CancelledError)
        assert answers == [True] * 19
        assert await backend.finish(runs[given_up].key, runs[given_up].token, DONE)

    play(route.make(), act)
