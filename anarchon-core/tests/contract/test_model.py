"""The model: the order of decision, exact lease ends, and what a span of time leaves open."""

from __future__ import annotations

import pytest
from anarchon.contract import Answer, ClaimCall, FinishCall, JobState, PauseCall, ReleaseCall, RenewCall, Window, step
from anarchon.types import ClaimRequest, Limits, Outcome, RunKey, RunResult, RunStatus

NOW = 1_800_000_000_000
KEY = RunKey("job", NOW - 100)
DONE = RunResult(RunStatus.SUCCESS)


def claim(token: str, key: RunKey = KEY, **more: object) -> ClaimCall:
    values: dict[str, object] = {"lease_ms": 1_000, "max_late_ms": 5_000, "keep_ms": 6_000, **more}
    return ClaimCall(ClaimRequest(key=key, token=token, instance="i", **values))  # type: ignore[arg-type]


def only(state: JobState, call: object, at: float = NOW) -> tuple[Answer, JobState]:
    (transition,) = step(state, call, Window.at(at))  # type: ignore[arg-type]
    return transition.answer, transition.state


def outcomes(state: JobState, call: object, low: float, high: float, **more: object) -> set[Outcome | None]:
    return {each.answer.outcome for each in step(state, call, Window(low, high), **more)}  # type: ignore[arg-type]


def test_c1_first_token_wins_and_c4_keeps_winning() -> None:
    answer, state = only(JobState(), claim("a"))
    assert (answer.outcome, answer.attempt) == (Outcome.WON, 1)
    assert only(state, claim("a"))[0] == answer
    assert only(state, claim("b"))[0].outcome is Outcome.RUNNING


@pytest.mark.parametrize(("after", "outcome"), [(1_000, Outcome.RUNNING), (1_001, Outcome.WON)])
def test_c11_a_lease_that_ends_now_is_alive(after: int, outcome: Outcome) -> None:
    _, state = only(JobState(), claim("a"))
    assert only(state, claim("b"), NOW + after)[0].outcome is outcome


def test_c12_a_span_around_the_lease_end_leaves_both_open() -> None:
    _, state = only(JobState(), claim("a"))
    assert outcomes(state, claim("b"), NOW + 999, NOW + 1_002) == {Outcome.RUNNING, Outcome.WON}


def test_c13_the_limit_interrupts_and_hand_overs_are_not_counted() -> None:
    _, state = only(JobState(), claim("a", attempt_limit=1))
    _, handed = only(state, ReleaseCall(KEY, "a"))
    answer, second = only(handed, claim("b", attempt_limit=1))
    assert (answer.outcome, answer.attempt) == (Outcome.WON, 2)
    answer, ended = only(second, claim("c", attempt_limit=1), NOW + 5_000)
    assert answer.outcome is Outcome.DONE
    assert ended.runs[0].status is RunStatus.INTERRUPTED


def test_c15_a_stale_token_changes_nothing_and_c18_a_finish_repeats() -> None:
    _, state = only(JobState(), claim("a"))
    _, taken = only(state, claim("b"), NOW + 2_000)
    for call in (RenewCall(KEY, "a", 1_000), FinishCall(KEY, "a", DONE), ReleaseCall(KEY, "a")):
        answer, after = only(taken, call)
        assert (answer.ok, after) == (False, taken)
    _, finished = only(taken, FinishCall(KEY, "b", DONE))
    answer, again = only(finished, FinishCall(KEY, "b", RunResult(RunStatus.FAILED)))
    assert (answer.ok, again) == (True, finished)


@pytest.mark.parametrize(("after", "outcome"), [(499, Outcome.RUNNING), (500, Outcome.WON)])
def test_c16_a_release_delay_that_ends_now_has_passed(after: int, outcome: Outcome) -> None:
    _, state = only(JobState(), claim("a"))
    _, released = only(state, ReleaseCall(KEY, "a", delay_ms=500, counted=True))
    assert only(released, claim("b"), NOW + after)[0].outcome is outcome


@pytest.mark.parametrize(("slot", "outcome"), [(NOW + 1, Outcome.EARLY), (NOW - 5_000, Outcome.WON), (NOW - 5_001, Outcome.LATE)])
def test_c9_early_and_late(slot: int, outcome: Outcome) -> None:
    assert only(JobState(), claim("a", RunKey("job", slot)))[0].outcome is outcome


def test_c10_pause_and_overlap_are_judged_in_the_claim() -> None:
    _, state = only(JobState(), claim("a"))
    newer = RunKey("job", NOW - 50)
    assert only(state, claim("b", newer))[0].outcome is Outcome.OVERLAP
    assert only(state, claim("b", newer, exclusive=False))[0].outcome is Outcome.WON
    assert only(state, claim("b", RunKey("job", NOW - 50, "n")))[0].outcome is Outcome.WON
    _, paused = only(JobState(), PauseCall(KEY, paused=True))
    assert only(paused, claim("a"))[0].outcome is Outcome.PAUSED
    assert only(paused, claim("a", RunKey("job", NOW, "m1")))[0].outcome is Outcome.WON


def test_c6_what_may_be_forgotten_may_be_late_but_never_won_again() -> None:
    state = JobState()
    for number in range(4):
        key = RunKey("job", NOW + number * 10_000)
        _, state = only(state, claim(f"t{number}", key, history_size=2, keep_ms=6_000), key.slot_ms)
        _, state = only(state, FinishCall(key, f"t{number}", DONE), key.slot_ms)
    assert state.may_floor_ms == NOW + 10_000
    at = NOW + 30_000
    assert outcomes(state, claim("x", RunKey("job", NOW)), at, at) == {Outcome.DONE, Outcome.LATE}
    assert outcomes(state, claim("x", RunKey("job", NOW + 20_000)), at, at) == {Outcome.DONE}


def test_claim_only_stores_say_lost_and_may_be_ordered() -> None:
    def ask(state: JobState, call: ClaimCall, limits: Limits) -> set[Outcome | None]:
        return outcomes(state, call, NOW, NOW, lease=False, limits=limits)

    (won,) = step(JobState(), claim("a"), Window.at(NOW), lease=False)
    assert ask(won.state, claim("b"), Limits()) == {Outcome.LOST}
    assert ask(won.state, claim("a"), Limits()) == {Outcome.WON}
    assert ask(won.state, claim("a"), Limits(resolves_unknown=False)) == {Outcome.LOST}
    older = claim("c", RunKey("job", NOW - 500))
    assert Outcome.WON not in ask(won.state, older, Limits(ordered=True))
    assert ask(won.state, older, Limits()) == {Outcome.WON}
