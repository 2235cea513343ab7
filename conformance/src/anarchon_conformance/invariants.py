"""What must hold of a whole history, whatever order its calls had: the plainest stories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from anarchon.contract import ClaimCall, FinishCall
from anarchon.types import Outcome, RunKey

from anarchon_conformance.history import History, Look, Op

__all__ = ["Broken", "broken_invariants"]


@dataclass(frozen=True, slots=True)
class Broken:
    """An invariant that does not hold, and the call that shows it."""

    clause: str
    sentence: str
    job: str
    at: Op | None


def broken_invariants(history: History) -> Iterator[Broken]:
    """Yield what is broken in the history of one job, single winners first."""
    won = [op for op in history.ops if op.answer is not None and op.answer.outcome is Outcome.WON]
    yield from _one_winner(won)
    yield from _finished_stays(history, won)
    if history.lease:
        yield from _no_gaps(history, won)
    for look in history.looks:
        yield from _recorded(history, won, look)
        yield from _ordered(look)


def _token(op: Op) -> str:
    assert isinstance(op.call, ClaimCall)
    return op.call.request.token


def _one_winner(won: list[Op]) -> Iterator[Broken]:
    """C1: no two tokens hold the same attempt."""
    holders: dict[tuple[RunKey, int], str] = {}
    for op in sorted(won, key=lambda item: item.return_ns or 0):
        assert op.answer is not None
        place = (op.call.key, op.answer.attempt)
        if holders.setdefault(place, _token(op)) != _token(op):
            clause = "C1" if op.answer.attempt == 1 else "C12"
            yield Broken(clause, f"two tokens hold attempt {op.answer.attempt}", op.job, op)


def _no_gaps(history: History, won: list[Op]) -> Iterator[Broken]:
    """C8: attempt n + 1 is won only where attempt n was, or may have been by an open claim."""
    for key in {op.call.key for op in won}:
        attempts = {op.answer.attempt for op in won if op.call.key == key and op.answer is not None}
        open_claims = sum(1 for op in history.ops if op.open and op.call.key == key and isinstance(op.call, ClaimCall))
        missing = set(range(1, max(attempts))) - attempts
        if min(attempts) < 1 or len(missing) > open_claims:
            last = max((op for op in won if op.call.key == key), key=lambda item: item.return_ns or 0)
            yield Broken("C8", f"the attempts {sorted(attempts)} of one run have a gap", last.job, last)


def _finished_stays(history: History, won: list[Op]) -> Iterator[Broken]:
    """C18: after a finish said True no other token wins the run."""
    for op in history.ops:
        if not isinstance(op.call, FinishCall) or op.answer is None or not op.answer.ok:
            continue
        for later in won:
            after = op.return_ns is not None and later.call_ns > op.return_ns
            if after and later.call.key == op.call.key and history.lease:
                yield Broken("C18", "a finished run is won again", op.job, later)


def _recorded(history: History, won: list[Op], look: Look) -> Iterator[Broken]:
    """C19: what was won and finished before the look began stands in it, unless it may be trimmed."""
    shown = {(record.key, record.token) for record in look.records}
    finished = {
        (op.call.key, op.call.token)
        for op in history.ops
        if isinstance(op.call, FinishCall) and op.answer is not None and op.answer.ok and (op.return_ns or 0) < look.call_ns
    }
    trimmed = len({op.call.key for op in won}) >= min((_kept(op) for op in history.ops), default=1)
    for op in won:
        assert op.answer is not None
        wanted = (op.call.key, _token(op))
        settled = op.return_ns is not None and op.return_ns < look.call_ns and (history.lease or wanted in finished)
        if settled and not trimmed and wanted not in shown:
            yield Broken("C19", f"attempt {op.answer.attempt} was won and is not in the history", op.job, op)
    attempts = [(record.key, record.attempt, record.token) for record in look.records]
    if len(set(attempts)) != len(attempts):
        yield Broken("C19", "the history shows one attempt with one token twice", look.job, None)


def _kept(op: Op) -> int:
    return op.call.request.history_size if isinstance(op.call, ClaimCall) else 1_000


def _ordered(look: Look) -> Iterator[Broken]:
    """C19: newest slot first, then the newest attempt."""
    order = [(record.slot_ms, record.space, record.attempt) for record in look.records]
    slots = [record.slot_ms for record in look.records]
    if slots != sorted(slots, reverse=True):
        yield Broken("C19", "the history is not in order: newest slot first", look.job, None)
    for one, two in pairwise(order):
        if one[:2] == two[:2] and one[2] < two[2]:
            yield Broken("C19", "the history is not in order: newest attempt first", look.job, None)
