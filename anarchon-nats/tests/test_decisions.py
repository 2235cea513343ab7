"""The lease's rules get the same answers as the reference store, through the form in which the bucket keeps a job (C2-C20)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from anarchon.clock import Clock
from anarchon.memory import MemoryStore
from anarchon.types import Claim, ClaimRequest, Outcome, RunKey, RunResult, RunStatus
from anarchon_nats import decisions
from anarchon_nats.first import by_slot
from anarchon_nats.jobstate import JobState, records_of, runs_from
from hypothesis import given, settings
from hypothesis import strategies as st

FINAL = [status for status in RunStatus if status.final]
BEGIN_MS = 1_800_000_000_000


class Hands(Clock):
    """A clock that a plan moves."""

    def __init__(self) -> None:
        self.now_ms = BEGIN_MS

    def wall_ms(self) -> float:
        return float(self.now_ms)


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a plan, and how far the clock goes on before it."""

    name: str
    key: RunKey
    token: str = "t1"
    request: ClaimRequest | None = None
    span_ms: int = 0
    yes: bool = False
    result: RunResult = RunResult(RunStatus.SUCCESS)  # noqa: RUF009 - a frozen value
    after_ms: int = 0


keys = st.builds(
    RunKey,
    st.just("a"),
    st.sampled_from([-400, -300, -200, -100, 0, 90]).map(lambda ms: BEGIN_MS + ms),
    st.sampled_from(["", "", "", "n", "m1"]),
)
tokens = st.sampled_from(["t1", "t2", "t3"])
small = st.integers(0, 3)
spans = st.sampled_from([0, 1, 50, 100, 60_000])
after = st.sampled_from([0, 0, 1, 49, 50, 51, 100])
requests = st.builds(
    ClaimRequest,
    key=keys,
    token=tokens,
    instance=st.sampled_from(["i1", 'i"2', "ünï\n"]),
    attempt_limit=small,
    lease_ms=spans,
    max_late_ms=st.sampled_from([0, 150, 350, 90_000]),
    exclusive=st.booleans(),
    keep_ms=st.sampled_from([0, 150, 350, 90_000]),
    history_size=small,
    history_ttl_ms=st.none() | st.sampled_from([50, 250]),
    info=st.sampled_from(["", "v1", '{"v":"2"}']),
)
results = st.builds(RunResult, st.sampled_from(FINAL), st.none() | st.just('broke"twice\n'))
steps = st.one_of(
    st.builds(lambda request, ms: Step("claim", request.key, request=request, after_ms=ms), requests, after),
    st.builds(lambda request, ms: Step("claim", request.key, request=request, after_ms=ms), requests, after),
    st.builds(Step, st.just("finish"), keys, tokens, result=results, after_ms=after),
    st.builds(Step, st.just("renew"), keys, tokens, span_ms=spans, after_ms=after),
    st.builds(Step, st.just("release"), keys, tokens, span_ms=spans, yes=st.booleans(), after_ms=after),
    st.builds(Step, st.just("pause"), keys, yes=st.booleans(), after_ms=after),
)


def hold(claim: Claim) -> Claim:
    """Return an answer without which of several live runs it names: any of them is right."""
    return claim if claim.outcome is not Outcome.OVERLAP else replace(claim, other=None, winner=None, left_ms=None)


class Both:
    """One plan on both stores; ours goes through bytes between any two calls."""

    def __init__(self) -> None:
        self.hands = Hands()
        self.memory = MemoryStore(self.hands)
        self.data, self.stored_ms = b"", 0

    def mine(self, step: Step) -> Any:
        job = JobState.unpack(self.data, self.stored_ms) if self.data else None
        key, token, now_ms = step.key, step.token, self.hands.now_ms
        answer: Any
        match step.name:
            case "claim":
                assert step.request is not None
                answer, changed = decisions.claim(job, step.request, now_ms=now_ms, archived=None)
                answer = hold(answer)
            case "finish":
                answer, changed = decisions.finish(job, key, token, result=step.result, now_ms=now_ms, archived=None)
            case "renew":
                answer, changed = decisions.renew(job, key, token, lease_ms=step.span_ms, now_ms=now_ms)
            case "release":
                how = decisions.Release(step.span_ms, step.yes, "why")
                answer, changed = decisions.release(job, key, token, how=how, now_ms=now_ms)
            case _:
                answer, changed = decisions.pause(job, key.job, paused=step.yes, now_ms=now_ms)
        if changed is not None:
            self.data, self.stored_ms = changed.pack(), now_ms
        return answer

    def theirs(self, step: Step) -> Any:
        key, token, memory = step.key, step.token, self.memory
        match step.name:
            case "claim":
                assert step.request is not None
                return hold(memory.claim(step.request))
            case "finish":
                return memory.finish(key, token, step.result)
            case "renew":
                return memory.renew(key, token, step.span_ms)
            case "release":
                return memory.release(key, token, delay_ms=step.span_ms, counted=step.yes, error="why")
            case _:
                return memory.set_paused(key.job, paused=step.yes)

    def compare(self, key: RunKey) -> None:
        job = JobState.unpack(self.data, self.stored_ms) if self.data else None
        known, run = self.memory.view(key), job.get(key) if job else None
        assert (run.view(self.hands.now_ms) if run else None) == known
        runs = [*job.live.values(), *runs_from("a", b"\n".join(job.final.values()))] if job else []
        mine = by_slot([record for run in runs for record in records_of(run)], 100)
        assert sorted(mine, key=repr) == sorted(self.memory.history("a", 100, 0), key=repr)
        dates = [(job.first_ms, job.paused_ms, job.resumed_ms, job.floor_ms, job.info)] if job else []
        assert [(v.first_ms, v.paused_ms, v.resumed_ms, v.floor_ms, v.info) for v in self.memory.jobs()] == dates


@settings(max_examples=200, deadline=None, derandomize=True)
@given(plan=st.lists(steps, min_size=1, max_size=30))
def test_c03_any_calls_are_answered_as_by_the_reference(plan: list[Step]) -> None:
    both, spaces = Both(), dict[int, str]()
    for step in plan:
        # Pruning among runs of one slot has no order in the contract: plans keep runs of one slot in one space.
        if spaces.setdefault(step.key.slot_ms, step.key.space) != step.key.space:
            continue
        both.hands.now_ms += step.after_ms
        assert both.mine(step) == both.theirs(step), step
        both.compare(step.key)


def test_c16_a_run_released_without_a_delay_is_free_by_the_least_exact_reading_too() -> None:
    key = RunKey("a", BEGIN_MS - 100)
    request = ClaimRequest(key=key, token="t1", instance="i1")
    _, job = decisions.claim(None, request, now_ms=BEGIN_MS, archived=None)
    _, job = decisions.release(job, key, "t1", how=decisions.Release(0, counted=False, error=None), now_ms=BEGIN_MS + 5)
    answer, _ = decisions.claim(job, replace(request, token="t2", instance="i2"), now_ms=BEGIN_MS - 4, archived=None)
    assert (answer.outcome, answer.attempt) == (Outcome.WON, 2)


def test_c19_a_later_attempt_is_not_claimed_before_an_earlier_one() -> None:
    """Two instances read the server's clock within some milliseconds of each other."""
    key = RunKey("a", 1_000)
    first = ClaimRequest(key=key, token="t", instance="i", max_late_ms=10**6)
    _, job = decisions.claim(None, first, now_ms=5_002, archived=None)
    decisions.release(job, key, "t", how=decisions.Release(0, counted=False, error=None), now_ms=5_002)
    claim, job = decisions.claim(job, replace(first, token="u"), now_ms=5_000, archived=None)
    assert claim.won
    run = job.get(key) if job else None
    assert run is not None
    assert [record.attempt for record in by_slot(records_of(run), 10)] == [2, 1]


@pytest.mark.parametrize("call", ["claim", "renew", "release"])
def test_c14_a_lease_begins_when_the_server_stores_it(call: str) -> None:
    """A write that was on its way for longer than the lease gives the whole lease; the kit's plans found that it did not."""
    key, now_ms = RunKey("a", 1_000), 5_000
    request = ClaimRequest(key=key, token="t", instance="i", lease_ms=60, max_late_ms=10**6)
    claim, job = decisions.claim(None, request, now_ms=now_ms, archived=None)
    assert claim.won
    assert job is not None
    if call == "renew":
        decisions.renew(job, key, "t", lease_ms=60, now_ms=now_ms)
    if call == "release":
        decisions.release(job, key, "t", how=decisions.Release(60, counted=True, error=None), now_ms=now_ms)
    stored = JobState.unpack(job.pack(), now_ms + 500).get(key)
    assert stored is not None
    assert stored.end_ms == now_ms + 560
    again = JobState.unpack(job.pack(), now_ms + 500)
    assert JobState.unpack(again.pack(), now_ms + 900).live == again.live  # a later message does not prolong it
