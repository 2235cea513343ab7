"""The same calls on the reference store and on Redis get the same answers (C2-C20).

Redis keeps its own clock, so the reference takes the time that each script read, and both decide at the same millisecond.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from anarchon.clock import Clock
from anarchon.memory import MemoryStore
from anarchon.types import Claim, ClaimRequest, Outcome, RunKey, RunResult, RunStatus
from anarchon_redis import RedisLeaseBackend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FINAL = [status for status in RunStatus if status.final]
SLOTS_MS = (-400, -300, -200, -100, 0, 60_000)
"""Slots as distances from the time at which a plan begins; no decision hangs on the milliseconds that a plan takes."""


class StoreClock(Clock):
    """The time that Redis read."""

    def __init__(self) -> None:
        self.now_ms = 0

    def wall_ms(self) -> float:
        return float(self.now_ms)


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a plan."""

    name: str
    key: RunKey
    token: str = "t1"
    request: ClaimRequest | None = None
    span_ms: int = 0
    yes: bool = False
    result: RunResult = RunResult(RunStatus.SUCCESS)  # noqa: RUF009 - a frozen value


keys = st.builds(RunKey, st.sampled_from(["a", "b"]), st.sampled_from(SLOTS_MS), st.sampled_from(["", "", "", "n", "m1", "m2"]))
tokens = st.sampled_from(["t1", "t2", "t3", "t4"])
small = st.integers(0, 3)
ages = st.sampled_from([0, 50, 150, 250, 350, 90_000])
requests = st.builds(
    ClaimRequest,
    key=keys,
    token=tokens,
    instance=st.sampled_from(["i1", "i|2", "ünï\n"]),
    attempt_limit=small,
    lease_ms=st.sampled_from([-1, 60_000]),
    max_late_ms=ages,
    exclusive=st.booleans(),
    keep_ms=ages,
    history_size=small,
    history_ttl_ms=st.none() | ages,
    info=st.sampled_from(["", "v1", '{"v":"2"}']),
)
results = st.builds(RunResult, st.sampled_from(FINAL), st.none() | st.just("broke|twice\n"))
steps = st.one_of(
    st.builds(lambda request: Step("claim", request.key, request=request), requests),
    st.builds(lambda request: Step("claim", request.key, request=request), requests),
    st.builds(Step, st.just("finish"), keys, tokens, result=results),
    st.builds(Step, st.just("renew"), keys, tokens, span_ms=st.sampled_from([-1, 60_000])),
    st.builds(Step, st.just("release"), keys, tokens, span_ms=st.sampled_from([-1, 60_000]), yes=st.booleans()),
    st.builds(Step, st.just("pause"), keys, yes=st.booleans()),
    st.builds(Step, st.just("look"), keys),
)


def hold(claim: Claim) -> Claim:
    """Return an answer without which of several live runs it names: any of them is right."""
    if claim.outcome is not Outcome.OVERLAP:
        return claim
    return replace(claim, other=None, winner=None, left_ms=None)


class Both:
    """One plan on both stores."""

    def __init__(self, backend: RedisLeaseBackend, begin_ms: int) -> None:
        self.backend = backend
        self.clock = StoreClock()
        self.memory = MemoryStore(self.clock)
        self.begin_ms = begin_ms
        self.names: set[str] = set()
        run = backend._link.run

        async def told(command: Any) -> Any:
            reply = await run(command)
            now = reply[0] if isinstance(reply, list) and reply else reply
            if command[0] == "EVALSHA" and isinstance(now, bytes):
                self.clock.now_ms = int(now.split(b"|")[-1])
            return reply

        backend._link.run = told  # type: ignore[method-assign]

    def place(self, key: RunKey, salt: str) -> RunKey:
        self.names.add(f"{key.job}{salt}")
        return replace(key, job=f"{key.job}{salt}", slot_ms=self.begin_ms + key.slot_ms)

    async def step(self, step: Step, salt: str) -> None:
        key, token, memory, backend = self.place(step.key, salt), step.token, self.memory, self.backend
        theirs: Any
        mine: Any
        match step.name:
            case "claim":
                assert step.request is not None
                request = replace(step.request, key=key)
                answer = await backend.claim(request)
                self.clock.now_ms = answer.store_now_ms or 0
                mine, theirs = hold(answer), hold(memory.claim(request))
            case "finish":
                mine, theirs = await backend.finish(key, token, step.result), memory.finish(key, token, step.result)
            case "renew":
                mine = await backend.renew(key, token, step.span_ms)
                theirs = memory.renew(key, token, step.span_ms)
            case "release":
                span, yes = step.span_ms, step.yes
                mine = await backend.release(key, token, delay_ms=span, counted=yes, error="why")
                theirs = memory.release(key, token, delay_ms=span, counted=yes, error="why")
            case "pause":
                await backend.set_paused(key.job, step.yes)
                memory.set_paused(key.job, paused=step.yes)
                mine = theirs = None
            case _:
                mine = theirs = None
        assert mine == theirs, (step, mine, theirs)
        await self.compare(key)

    async def compare(self, key: RunKey) -> None:
        """Compare everything that can be looked at; remaining times to a moment."""
        backend, memory = self.backend, self.memory
        (view,) = await backend.check([key])
        known = memory.view(key)
        assert (view is None) == (known is None)
        if view is not None and known is not None:
            assert replace(view, left_ms=0) == replace(known, left_ms=0)
            assert (view.left_ms > 0) == (known.left_ms > 0), (view, known)
        open_here = sorted((v.key, v.status, v.attempt) for v in await backend.unfinished([key.job, key.job]))
        assert open_here == sorted((v.key, v.status, v.attempt) for v in memory.unfinished([key.job]))
        for limit, since_ms in ((100, 0), (2, 0), (100, key.slot_ms)):
            found = await backend.history(key.job, limit=limit, since_ms=since_ms)
            expected = memory.history(key.job, limit, since_ms)
            assert [r.slot_ms for r in found] == [r.slot_ms for r in expected]
            if limit == 100:
                assert sorted(found, key=repr) == sorted(expected, key=repr)
        assert [v for v in await backend.jobs() if v.job in self.names] == memory.jobs()


class OldestOfASlot:
    """Pruning among runs of one slot has no order in the contract: plans keep runs of one slot and job in one space."""

    def __init__(self) -> None:
        self.spaces: dict[tuple[str, int], str] = {}

    def fits(self, step: Step) -> bool:
        return self.spaces.setdefault((step.key.job, step.key.slot_ms), step.key.space) == step.key.space


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(plan=st.lists(steps, min_size=1, max_size=25))
def test_c03_any_calls_are_answered_as_by_the_reference(lease: Any, play: Callable[..., None], plan: list[Step]) -> None:
    async def act(backend: RedisLeaseBackend) -> None:
        both, rule, salt = Both(backend, await backend.now_ms()), OldestOfASlot(), secrets.token_hex(4)
        for step in plan:
            if rule.fits(step):
                await both.step(step, salt)

    play(act, lease.make())


@pytest.mark.parametrize("ending", [0, 1, -1])
def test_c11_a_lease_that_ends_now_is_alive(ending: int, lease: Any, play: Callable[..., None]) -> None:
    """The boundary itself: asked again and again, the answer fits the time that the script read."""

    async def act(backend: RedisLeaseBackend) -> None:
        request = await lease.request(backend, lease_ms=3 + ending)
        won = await backend.claim(request)
        end_ms = (won.store_now_ms or 0) + request.lease_ms
        for _ in range(200):
            answer = await backend.claim(replace(request, token="other"))
            now_ms = answer.store_now_ms or 0
            if answer.outcome is Outcome.WON:
                assert now_ms > end_ms
                return
            assert answer.outcome is Outcome.RUNNING
            assert now_ms <= end_ms
            assert answer.left_ms == end_ms - now_ms
            await asyncio.sleep(0)
        pytest.fail("the lease never ended")

    play(act, lease.make())
