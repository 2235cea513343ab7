"""What a history shows: which clauses it put to the test, and which marks it left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from anarchon.contract import CheckCall, ClaimCall, FinishCall, PauseCall, ReleaseCall, RenewCall
from anarchon.types import Limits, Outcome

from anarchon_conformance.history import History, Op
from anarchon_conformance.report import Mark

__all__ = ["clauses_of", "expected_marks", "marks_of"]


def expected_marks(limits: Limits, *, lease: bool) -> frozenset[Mark]:
    """Return the marks that a tier must leave on a backend of this kind, or it was vacuous."""
    marks = {Mark.CONCURRENT}
    if lease:
        marks |= {Mark.TAKEOVER, Mark.STALE_FINISH, Mark.OVERLAP, Mark.LIMIT}
    if lease or limits.resolves_unknown:
        marks.add(Mark.LOST_REPLY_RETRY)
    if lease or limits.store_clock:
        marks |= {Mark.EARLY, Mark.LATE}
    return frozenset(marks)


def marks_of(history: History) -> Counter[Mark]:
    """Count the events that a green run must have seen."""
    marks: Counter[Mark] = Counter()
    finished = {op.call.key for op in history.ops if isinstance(op.call, FinishCall) and op.answer and op.answer.ok}
    asked: set[str] = set()
    claims = [(op, op.call) for op in history.ops if isinstance(op.call, ClaimCall)]
    for op, call in claims:
        token = call.request.token
        if op.open:
            asked.add(token)
        if op.answer is None:
            continue
        marks[Mark.LOST_REPLY_RETRY] += token in asked
        marks[Mark.TAKEOVER] += op.answer.attempt > 1
        outcome = op.answer.outcome
        marks[Mark.OVERLAP] += outcome is Outcome.OVERLAP
        marks[Mark.EARLY] += outcome is Outcome.EARLY
        marks[Mark.LATE] += outcome is Outcome.LATE
        marks[Mark.LIMIT] += outcome is Outcome.DONE and call.key not in finished
    for op in history.ops:
        stale = isinstance(op.call, FinishCall) and op.answer is not None and not op.answer.ok
        marks[Mark.STALE_FINISH] += stale
    for place, (one, _) in enumerate(claims):
        later = (two for two, _ in claims[place + 1 :] if two.client != one.client)
        marks[Mark.CONCURRENT] += any(_met(one, two) for two in later)
    return marks


def _met(one: Op, two: Op) -> bool:
    """Whether two answered calls were on their way at the same time."""
    if one.return_ns is None or two.return_ns is None:
        return False
    return one.call_ns < two.return_ns and two.call_ns < one.return_ns


def clauses_of(history: History) -> frozenset[str]:
    """Return the clauses that the answers in a history put to the test."""
    found = {"C3"}
    for op in history.ops:
        found.update(_touched(op, history))
    if history.looks:
        found.add("C19")
    if history.steps:
        found.add("C25")
    return frozenset(found)


_OF_OUTCOME = {
    Outcome.WON: ("C1", "C8"),
    Outcome.LOST: ("C1",),
    Outcome.RUNNING: ("C1", "C11"),
    Outcome.DONE: ("C18",),
    Outcome.EARLY: ("C9",),
    Outcome.LATE: ("C9",),
    Outcome.PAUSED: ("C10",),
    Outcome.OVERLAP: ("C10",),
}


def _touched(op: Op, history: History) -> Iterator[str]:
    answer = op.answer
    if answer is None:
        yield "C22" if op.error == "cancelled" else "C5"
        return
    match op.call:
        case ClaimCall(request):
            yield from _OF_OUTCOME.get(answer.outcome or Outcome.UNKNOWN, ())
            if answer.outcome is Outcome.WON:
                before = [other for other in history.ops if other.call_ns < op.call_ns and other.call.key == op.call.key]
                same = any(isinstance(o.call, ClaimCall) and o.call.request.token == request.token for o in before)
                yield "C4" if same else "C12" if answer.attempt > 1 else "C2" if not before else "C3"
            if answer.outcome is Outcome.DONE and request.attempt_limit <= 1:
                yield "C13"
        case RenewCall():
            yield "C14" if answer.ok else "C15"
        case ReleaseCall():
            yield "C16" if answer.ok else "C15"
        case FinishCall():
            yield "C18" if answer.ok or not history.lease else "C15"
        case CheckCall():
            yield "C17"
        case PauseCall():
            yield "C10"
