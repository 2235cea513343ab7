"""The same calls on the reference backend and on a file, on one clock, get the same answers (C2-C20)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from anarchon.backend import LeaseBackend
from anarchon.clock import Clock
from anarchon.memory import MemoryBackend, MemoryStore
from anarchon.types import ClaimRequest, RunKey, RunRecord, RunResult, RunStatus, RunView
from anarchon_sqlite import SQLiteBackend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

T0 = 1_800_000_000_000
FINAL = [status for status in RunStatus if status.final]


class StoreClock(Clock):
    """One clock for both stores."""

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
keys = st.builds(
    RunKey, jobs, st.sampled_from([T0 - 300, T0 - 200, T0 - 100, T0, T0 + 100]), st.sampled_from(["", "", "", "n", "m1", "m2"])
)
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
calls = st.one_of(
    st.builds(lambda *a: Call("claim", a), requests),
    st.builds(lambda *a: Call("claim", a), requests),
    st.builds(lambda a: Call("claim_many", (a,)), st.lists(requests, max_size=4)),
    st.builds(lambda *a: Call("finish", a), keys, tokens, results),
    st.builds(lambda *a: Call("renew", a), keys, tokens, spans),
    st.builds(lambda a: Call("renew_many", (a,)), st.lists(st.tuples(keys, tokens, spans), max_size=3)),
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
    slots, spaces = range(T0 - 300, T0 + 101, 100), ("", "n", "m1", "m2")
    seen = [RunKey(job, slot_ms, space) for job in names for slot_ms in slots for space in spaces]
    return [
        plain(await backend.unfinished(names)),
        await backend.check(seen),
        [plain(await backend.history(name, limit=1000)) for name in names],
        [job for job in await backend.jobs() if job.job in names],
    ]


def rename(call: Call, prefix: str) -> Call:
    """Give a plan jobs of its own, so that one file serves all of them."""

    def new(value: object) -> object:
        if isinstance(value, RunKey):
            return replace(value, job=prefix + value.job)
        if isinstance(value, ClaimRequest):
            return replace(value, key=replace(value.key, job=prefix + value.key.job))
        if isinstance(value, list | tuple):
            return type(value)(new(item) for item in value)
        return prefix + value if value in ("a", "b") and isinstance(value, str) else value

    return replace(call, arguments=tuple(new(value) for value in call.arguments))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.Runner, StoreClock, SQLiteBackend]]:
    clock = StoreClock()
    path: Path = tmp_path_factory.mktemp("equivalence") / "cron.db"
    with asyncio.Runner() as runner:
        backend = SQLiteBackend(path, synchronous="normal", clock=clock)
        runner.run(backend.open())
        yield runner, clock, backend
        runner.run(backend.close())


numbers = count()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans)
def test_c3_every_plan_of_calls_is_answered_as_by_the_reference(
    stores: tuple[asyncio.Runner, StoreClock, SQLiteBackend], plan: list[Call]
) -> None:
    runner, clock, file = stores
    prefix = f"{next(numbers)}-"
    clock.now_ms = T0

    async def play() -> None:
        reference = MemoryBackend(MemoryStore(clock))
        names = [prefix + "a", prefix + "b"]
        for call in (rename(call, prefix) for call in plan):
            if call.name == "clock":
                clock.now_ms += call.clock_ms
            else:
                assert await answer(file, call) == await answer(reference, call), call
            assert await whole(file, names) == await whole(reference, names), call

    runner.run(play())


def test_c13_at_attempt_1000_hand_overs_count_as_in_the_reference(
    stores: tuple[asyncio.Runner, StoreClock, SQLiteBackend],
) -> None:
    runner, clock, file = stores
    clock.now_ms = T0

    async def play() -> None:
        request = ClaimRequest(key=RunKey("handed round", T0), token="t", instance="i")
        for backend in (file, MemoryBackend(MemoryStore(clock))):
            for attempt in range(1, 1001):
                assert (await backend.claim(request)).attempt == attempt
                assert await backend.release(request.key, "t")
            assert (await backend.claim(request)).attempt == 0
        assert len(await file.history("handed round", limit=2000)) == 1000

    runner.run(play())
