"""The same calls on the reference backend and on PostgreSQL, on one clock, get the same answers (C2-C20)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import psycopg
import pytest
from anarchon.backend import LeaseBackend
from anarchon.clock import Clock
from anarchon.memory import MemoryBackend, MemoryStore
from anarchon.types import ClaimRequest, RunKey, RunRecord, RunResult, RunStatus, RunView
from anarchon_postgres import PostgresBackend, schema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

T0 = 1_800_000_000_000
FINAL = [status for status in RunStatus if status.final]
SLOTS = [T0 - 300, T0 - 200, T0 - 100, T0, T0 + 100]
SPACES = ["", "n", "m1", "m2"]


class StoreClock(Clock):
    """One clock for both stores; PostgreSQL reads it from a table."""

    def __init__(self) -> None:
        self.now_ms = T0

    def wall_ms(self) -> float:
        return float(self.now_ms)


@dataclass(frozen=True, slots=True)
class Call:
    """One step of a plan: a method of the backend, or a move of the clock."""

    name: str
    arguments: tuple[Any, ...] = ()
    clock_ms: int = 0


jobs = st.sampled_from(["a", "b"])
keys = st.builds(RunKey, jobs, st.sampled_from(SLOTS), st.sampled_from(["", "", *SPACES]))
tokens = st.sampled_from(["t1", "t2", "t3", "t4"])
small = st.integers(0, 3)
spans = st.sampled_from([0, 1, 50, 100, 150, 400])
requests = st.builds(
    ClaimRequest,
    key=keys,
    token=tokens,
    instance=st.sampled_from(["i1", "i2"]),
    attempt_limit=small,
    lease_ms=spans,
    max_late_ms=spans,
    exclusive=st.booleans(),
    keep_ms=spans,
    history_size=small,
    history_ttl_ms=st.none() | spans,
    info=st.sampled_from(["", "v1", "v2"]),
)
results = st.builds(RunResult, st.sampled_from(FINAL), st.none() | st.just("broke"))
renewals = st.lists(st.tuples(keys, tokens, spans), max_size=3)
calls = st.one_of(
    st.builds(lambda *a: Call("claim", a), requests),
    st.builds(lambda *a: Call("claim", a), requests),
    st.builds(lambda a: Call("claim_many", (sorted(a, key=lambda item: item.key),)), st.lists(requests, max_size=4)),
    st.builds(lambda *a: Call("finish", a), keys, tokens, results),
    st.builds(lambda *a: Call("renew", a), keys, tokens, spans),
    st.builds(lambda a: Call("renew_many", (a,)), renewals),
    st.builds(lambda *a: Call("release", a), keys, tokens, spans, st.booleans(), st.none() | st.just("broke")),
    st.builds(lambda a: Call("check", (a,)), st.lists(keys, max_size=3)),
    st.builds(lambda *a: Call("set_paused", a), jobs, st.booleans()),
    st.builds(lambda *a: Call("forget", a), jobs),
    st.builds(lambda *a: Call("history", a), jobs, st.integers(0, 5), st.sampled_from([0, T0 - 200, T0])),
    st.builds(lambda a: Call("clock", clock_ms=a), st.sampled_from([-50, 1, 50, 100, 101, 400])),
)
plans = st.lists(calls, min_size=5, max_size=40)


def plain(answer: object) -> object:
    """Take the order out of where the contract leaves it open: attempts and runs of one instant in several spaces."""
    if isinstance(answer, list) and answer and isinstance(answer[0], RunRecord):
        return sorted(answer, key=lambda r: (-r.slot_ms, -r.claimed_ms, -r.attempt, r.space))
    if isinstance(answer, list) and answer and all(isinstance(item, RunView) for item in answer):
        return sorted(answer, key=lambda v: (v.key.slot_ms, v.key))
    return answer


async def answer(backend: LeaseBackend, call: Call) -> object:
    if call.name == "release":
        key, token, delay_ms, counted, error = call.arguments
        return await backend.release(key, token, delay_ms=delay_ms, counted=counted, error=error)
    if call.name == "history":
        job, limit, since_ms = call.arguments
        found = await backend.history(job, limit=99, since_ms=since_ms)
        assert len(await backend.history(job, limit=limit, since_ms=since_ms)) == min(limit, len(found))
        return plain(found)
    method: Callable[..., Any] = getattr(backend, call.name)
    return await method(*call.arguments)


async def whole(backend: LeaseBackend, names: list[str]) -> list[object]:
    """Everything that can be seen from outside."""
    seen = [RunKey(job, slot_ms, space) for job in names for slot_ms in SLOTS for space in SPACES]
    return [
        plain(await backend.unfinished(names)),
        await backend.check(seen),
        [plain(await backend.history(name, limit=1000)) for name in names],
        [job for job in await backend.jobs() if job.job in names],
    ]


def rename(call: Call, prefix: str) -> Call:
    """Give a plan jobs of its own, so that one table serves all of them."""

    def new(value: object) -> object:
        if isinstance(value, RunKey):
            return replace(value, job=prefix + value.job)
        if isinstance(value, ClaimRequest):
            return replace(value, key=replace(value.key, job=prefix + value.key.job))
        if isinstance(value, list | tuple):
            return type(value)(new(item) for item in value)
        return prefix + value if value in ("a", "b") and isinstance(value, str) else value

    return replace(call, arguments=tuple(new(value) for value in call.arguments))


@dataclass(frozen=True, slots=True)
class Pair:
    """Both stores on one clock."""

    runner: asyncio.Runner
    clock: StoreClock
    theirs: PostgresBackend
    side: psycopg.AsyncConnection[Any]
    table: str

    async def move(self, now_ms: int) -> None:
        self.clock.now_ms = now_ms
        await self.side.execute(f"UPDATE {self.table} SET now_ms = {now_ms}".encode())


@pytest.fixture(scope="module", params=["function", "block"])
def pair(request: pytest.FixtureRequest, postgres: Any) -> Iterator[Pair]:
    database = request.getfixturevalue("shared_database")
    database.table += f"_{request.param}"
    clock_table = f"{database.table}_clock"
    database.sql(f"CREATE TABLE {clock_table} AS SELECT {T0}::bigint AS now_ms")
    database.sql(f"GRANT SELECT ON {clock_table} TO public")
    with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patch:
        for name in ("NOW", "BEFORE"):
            patch.setattr(schema, name, f"(SELECT now_ms FROM public.{clock_table})")
        user = database.without_function() if request.param == "block" else None
        database.base = postgres.url(user=user)
        backend = database.make()
        runner.run(backend.open())
        slow = any("may not create functions" in line for line in runner.run(backend.warnings()))
        assert slow == (request.param == "block")
        side = runner.run(psycopg.AsyncConnection.connect(postgres.url(), autocommit=True))
        yield Pair(runner, StoreClock(), backend, side, clock_table)
        runner.run(side.close())
        runner.run(backend.close())


_prefixes = count()


@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plan=plans)
def test_c3_random_calls_answer_as_the_reference_does(pair: Pair, plan: list[Call]) -> None:
    prefix = f"p{next(_prefixes)}."

    async def main() -> None:
        mine = MemoryBackend(MemoryStore(pair.clock))
        await pair.move(T0)
        for call in (rename(call, prefix) for call in plan):
            if call.clock_ms:
                await pair.move(pair.clock.now_ms + call.clock_ms)
                continue
            assert await answer(pair.theirs, call) == await answer(mine, call), call
        names = [f"{prefix}a", f"{prefix}b"]
        assert await whole(pair.theirs, names) == await whole(mine, names)

    pair.runner.run(main())
