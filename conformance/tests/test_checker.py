"""The checker on histories made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from anarchon.contract import Answer, ClaimCall, FinishCall, ReleaseCall, RenewCall
from anarchon.types import ClaimRequest, Limits, Outcome, RunKey, RunRecord, RunResult, RunStatus
from anarchon_conformance.checker import Finding, Judgement, Windows, check
from anarchon_conformance.history import ClockStep, History, Look, Op, Timebase
from anarchon_conformance.story import story

MS = 1_000_000
NOW_MS = 1_000_000
KEY = RunKey("job", NOW_MS - 1_000)
LEASE_MS = 100


def claim(token: str, *, key: RunKey = KEY, limit: int = 3, lease_ms: int = LEASE_MS) -> ClaimCall:
    return ClaimCall(ClaimRequest(key=key, token=token, instance=token, lease_ms=lease_ms, attempt_limit=limit))


def won(attempt: int = 1) -> Answer:
    return Answer(Outcome.WON, attempt)


RUNNING, DONE, OVERLAP = Answer(Outcome.RUNNING), Answer(Outcome.DONE), Answer(Outcome.OVERLAP)


def made(*ops: Op, exact: bool = True, steps: tuple[ClockStep, ...] = (), looks: tuple[Look, ...] = ()) -> History:
    return History(ops, Timebase(NOW_MS, exact=exact), steps=steps, looks=looks)


def op(client: str, call: object, span: tuple[float, float], answer: Answer | None) -> Op:
    low, high = span
    return Op(client, call, int(low * MS), None if answer is None else int(high * MS), answer)  # type: ignore[arg-type]


def judged(*ops: Op, exact: bool = True) -> Finding:
    return check(made(*ops, exact=exact))


def test_c03_overlapping_calls_may_have_any_order() -> None:
    one, two = op("A", claim("a"), (0, 10), RUNNING), op("B", claim("b"), (1, 9), won())
    assert judged(one, two).judgement is Judgement.OK


def test_c03_a_call_after_an_answer_comes_after_it() -> None:
    found = judged(op("A", claim("a"), (0, 1), RUNNING), op("B", claim("b"), (2, 3), won()))
    assert (found.judgement, found.clause) == (Judgement.VIOLATION, "C2")
    assert "fresh slot" in found.sentence


def test_c01_two_winners_of_one_attempt() -> None:
    found = judged(op("A", claim("a"), (0, 10), won()), op("B", claim("b"), (0.5, 9), won()))
    assert (found.clause, found.sentence) == ("C1", "two tokens hold attempt 1")


@pytest.mark.parametrize(
    ("at_ms", "answer", "judgement"),
    [
        (LEASE_MS, RUNNING, Judgement.OK),
        (LEASE_MS, won(2), Judgement.VIOLATION),
        (LEASE_MS + 1, won(2), Judgement.OK),
        (LEASE_MS + 1, RUNNING, Judgement.VIOLATION),
    ],
)
def test_c11_a_lease_that_ends_now_is_alive(at_ms: int, answer: Answer, judgement: Judgement) -> None:
    found = judged(op("A", claim("a"), (0, 0.1), won()), op("B", claim("b"), (at_ms, at_ms + 0.1), answer))
    assert found.judgement is judgement


@pytest.mark.parametrize("answer", [RUNNING, won(2)])
@pytest.mark.parametrize("at_ms", [LEASE_MS - 1, LEASE_MS, LEASE_MS + 1])
def test_c11_on_a_real_clock_an_instant_near_the_end_proves_nothing(at_ms: int, answer: Answer) -> None:
    ops = (op("A", claim("a"), (0, 0.2), won()), op("B", claim("b"), (at_ms, at_ms + 0.2), answer))
    assert judged(*ops, exact=False).judgement is Judgement.OK


@pytest.mark.parametrize(("at_ms", "answer"), [(LEASE_MS / 2, won(2)), (3 * LEASE_MS, RUNNING)])
def test_c11_on_a_real_clock_an_instant_far_from_the_end_proves_it(at_ms: float, answer: Answer) -> None:
    ops = (op("A", claim("a"), (0, 0.2), won()), op("B", claim("b"), (at_ms, at_ms + 0.2), answer))
    assert judged(*ops, exact=False).judgement is Judgement.VIOLATION


def test_c05_an_open_call_may_take_effect_later_or_never() -> None:
    lost = op("A", claim("a"), (0, 0), None)
    assert judged(lost, op("B", claim("b"), (1, 2), won())).judgement is Judgement.OK
    assert judged(lost, op("B", claim("b"), (1, 2), RUNNING), op("A", claim("a"), (3, 4), won())).judgement is Judgement.OK


def test_c05_an_open_call_does_not_explain_everything() -> None:
    found = judged(op("A", claim("a"), (0, 0), None), op("B", claim("b"), (1, 2), DONE))
    assert found.judgement is Judgement.VIOLATION


def test_c15_a_stale_renewal_must_be_refused() -> None:
    late = 2 * LEASE_MS
    found = judged(
        op("A", claim("a"), (0, 1), won()),
        op("B", claim("b"), (late, late + 1), won(2)),
        op("A", RenewCall(KEY, "a", LEASE_MS), (late + 2, late + 3), Answer(ok=True)),
    )
    assert found.clause == "C15"
    assert found.at is not None
    assert found.at.client == "A"


def test_c16_a_released_run_counts_its_delay() -> None:
    ops = (op("A", claim("a"), (0, 0.1), won()), op("A", ReleaseCall(KEY, "a", 50), (1, 1.1), Answer(ok=True)))
    assert judged(*ops, op("B", claim("b"), (50, 50.1), won(2))).clause == "C16"
    assert judged(*ops, op("B", claim("b"), (51, 51.1), won(2))).judgement is Judgement.OK


def test_c18_a_finished_run_is_not_won_again() -> None:
    found = judged(
        op("A", claim("a"), (0, 1), won()),
        op("A", FinishCall(KEY, "a", RunResult(RunStatus.SUCCESS)), (2, 3), Answer(ok=True)),
        op("B", claim("b"), (999, 1_000), won(2)),
    )
    assert found.clause == "C18"


def test_c08_attempts_have_no_gaps() -> None:
    found = judged(op("A", claim("a"), (0, 1), won()), op("B", claim("b"), (500, 501), won(3)))
    assert found.clause == "C8"


def test_c10_overlap_couples_the_slots_of_a_job_and_nothing_else() -> None:
    other, elsewhere = replace(KEY, slot_ms=KEY.slot_ms - 10), RunKey("elsewhere", KEY.slot_ms)
    first = op("A", claim("a"), (0, 1), won())
    assert judged(first, op("B", claim("b", key=other), (2, 3), OVERLAP)).judgement is Judgement.OK
    assert judged(first, op("B", claim("b", key=other), (2, 3), won())).clause == "C10"
    assert judged(first, op("B", claim("b", key=elsewhere), (2, 3), OVERLAP)).clause == "C10"


def test_c13_the_limit_ends_the_run() -> None:
    first = op("A", claim("a"), (0, 1), won())
    assert judged(first, op("B", claim("b", limit=1), (500, 501), won(2))).clause == "C13"
    assert judged(first, op("B", claim("b", limit=1), (500, 501), DONE)).judgement is Judgement.OK


def test_c19_a_won_attempt_is_in_the_history() -> None:
    first = op("A", claim("a"), (0, 1), won())
    record = RunRecord("job", KEY.slot_ms, "", 1, "a", "a", RunStatus.RUNNING, NOW_MS)
    assert check(made(first, looks=(Look("job", (), 2 * MS, 3 * MS),))).clause == "C19"
    assert check(made(first, looks=(Look("job", (record,), 2 * MS, 3 * MS),))).judgement is Judgement.OK
    assert check(made(first, looks=(Look("job", (record, record), 2 * MS, 3 * MS),))).clause == "C19"


def test_c25_a_clock_step_moves_the_windows() -> None:
    history = made(steps=(ClockStep(1_000, 10 * MS, 10 * MS + 1),))
    windows = Windows(history)
    assert windows.of(5 * MS, 6 * MS).high_ms == NOW_MS + 6
    assert windows.of(11 * MS, 12 * MS).low_ms == NOW_MS + 1_011
    across = windows.of(5 * MS, 12 * MS)
    assert (across.low_ms, across.high_ms) == (NOW_MS + 5, NOW_MS + 1_012)


def test_c25_a_step_forward_ends_leases_and_a_step_back_prolongs_them() -> None:
    first, later = op("A", claim("a"), (0, 1), won()), (20, 21)
    forward, back = ClockStep(500, 10 * MS, 10 * MS + 1), ClockStep(-500, 10 * MS, 10 * MS + 1)
    assert check(made(first, op("B", claim("b"), later, won(2)), steps=(forward,))).judgement is Judgement.OK
    ended = op("B", claim("b"), (300, 301), won(2))
    assert check(made(first, ended, steps=(back,))).judgement is Judgement.VIOLATION


def test_a_search_that_is_too_long_is_undecided() -> None:
    ops = [op(f"C{number}", claim(f"t{number}"), (0, 0), None) for number in range(12)]
    ops.append(op("A", claim("x"), (1, 2), DONE))
    assert check(made(*ops), nodes_max=5).judgement is Judgement.UNDECIDED


def test_a_claim_only_store_says_lost() -> None:
    lost = Answer(Outcome.LOST)
    ops = (op("A", claim("a"), (0, 1), won()), op("B", claim("b"), (2, 3), lost), op("A", claim("a"), (4, 5), won()))
    history = replace(made(*ops), lease=False)
    assert check(history).judgement is Judgement.OK
    assert check(replace(history, limits=Limits(resolves_unknown=False))).judgement is Judgement.VIOLATION
    assert check(replace(made(op("A", claim("a"), (0, 1), lost)), lease=False)).clause == "C2"


def test_an_ordered_store_may_refuse_older_slots() -> None:
    older = replace(KEY, slot_ms=KEY.slot_ms - 10)
    ops = (op("A", claim("a"), (0, 1), won()), op("B", claim("b", key=older), (2, 3), Answer(Outcome.LATE)))
    history = replace(made(*ops), lease=False)
    assert check(history).judgement is Judgement.VIOLATION
    assert check(replace(history, limits=Limits(ordered=True))).judgement is Judgement.OK


def test_a_story_ends_where_it_breaks() -> None:
    history = made(
        op("A", claim("a" * 32), (0, 10), won()),
        op("B", claim("b" * 32), (1, 9), won()),
        op("B", RenewCall(KEY, "b" * 32, 5), (20, 21), Answer(ok=True)),
    )
    lines = story(history, check(history))
    assert lines == (
        "   1  A  claim aaaaaa (lease 100 ms)  -> ...",
        "   2  B  claim bbbbbb (lease 100 ms)  -> WON attempt 1   (+9 ms)",
        "   3  A  <- WON attempt 1   (+10 ms)",
        "      two tokens hold attempt 1",
    )


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    record = RunRecord("job", KEY.slot_ms, "", 1, "a", "a", RunStatus.SUCCESS, NOW_MS, NOW_MS + 1, "late \u2028 line")
    history = made(
        op("A", claim("a"), (0, 1), won()),
        op("A", FinishCall(KEY, "a", RunResult(RunStatus.FAILED, "x")), (2, 3), Answer(ok=True)),
        op("B", ReleaseCall(KEY, "a", 5, counted=True), (4, 5), None),
        steps=(ClockStep(5, 6, 7),),
        looks=(Look("job", (record,), 8, 9),),
    )
    path = tmp_path / "run.jsonl"
    history.save(path)
    assert History.load(path) == history


@pytest.mark.parametrize("text", ["", "no json\n", '{"kind": "op"}\n', "[]\n"])
def test_a_file_that_is_no_history_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="this is no history of the kit"):
        History.load(path)
