"""Tell a violation: what each client sent, in the order of time, what it was told, and what is wrong with it."""

from __future__ import annotations

from anarchon.contract import Answer, CheckCall, ClaimCall, FinishCall, PauseCall, ReleaseCall, RenewCall
from anarchon.contract.model import Call
from anarchon.types import RunKey

from anarchon_conformance.checker import Finding
from anarchon_conformance.history import History, Op

__all__ = ["LINES_MAX", "story"]

LINES_MAX = 60
"""The most lines of a story; the last ones are kept, because that is where it breaks."""


def story(history: History, finding: Finding) -> tuple[str, ...]:
    """Return the numbered lines of the calls of one job up to the one that breaks the clause."""
    part = history.of_job(finding.job)
    slots = sorted({op.call.key for op in part.ops if not isinstance(op.call, PauseCall)})
    names = {key: "" if len(slots) == 1 else f" of slot {number}" for number, key in enumerate(slots, 1)}
    end_ns = None if finding.at is None else finding.at.return_ns
    start_ns = min((op.call_ns for op in part.ops), default=0)
    events: list[tuple[int, str]] = []
    for op in part.ops:
        events += _events(op, names, part.ops)
    for step in part.steps:
        events.append((step.call_ns, f"   the store's clock steps by {step.delta_ms:+d} ms"))
    if end_ns is not None:
        events = [event for event in events if event[0] <= end_ns]
    events.sort()
    lines = [f"{number:>4}  {text}{_at(at_ns - start_ns)}" for number, (at_ns, text) in enumerate(events, 1)]
    cut = [] if len(lines) <= LINES_MAX else [f"      ... {len(lines) - LINES_MAX} earlier lines"]
    return (*cut, *lines[-LINES_MAX:], f"      {finding.sentence}")


def _at(passed_ns: int) -> str:
    return "" if passed_ns < 1_000_000 else f"   (+{passed_ns / 1e6:.0f} ms)"


def _events(op: Op, names: dict[RunKey, str], ops: tuple[Op, ...]) -> list[tuple[int, str]]:
    sent = f"{op.client}  {_asked(op.call)}{names.get(op.call.key, '')}"
    if op.return_ns is None or op.answer is None:
        return [(op.call_ns, f"{sent}  -> no answer ({op.error or 'still on its way'})")]
    told = _told(op.answer)
    between = any(
        op.call_ns < instant < op.return_ns
        for other in ops
        if other is not op
        for instant in (other.call_ns, other.return_ns or other.call_ns)
    )
    if not between:
        return [(op.return_ns, f"{sent}  -> {told}")]
    return [(op.call_ns, f"{sent}  -> ..."), (op.return_ns, f"{op.client}  <- {told}")]


def _asked(call: Call) -> str:
    match call:
        case ClaimCall(request):
            limit = "" if request.attempt_limit == 3 else f", {request.attempt_limit} attempts"
            return f"claim {request.token[:6]} (lease {request.lease_ms} ms{limit})"
        case RenewCall(_, token, lease_ms):
            return f"renew {token[:6]} (lease {lease_ms} ms)"
        case FinishCall(_, token, result):
            return f"finish {token[:6]} ({result.status})"
        case ReleaseCall(_, token, delay_ms, counted):
            return f"release {token[:6]} (delay {delay_ms} ms, {'counted' if counted else 'not counted'})"
        case CheckCall():
            return "check"
        case PauseCall(_, paused):
            return "pause" if paused else "resume"


def _told(answer: Answer) -> str:
    if answer.outcome is not None:
        return f"{answer.outcome.upper()}{f' attempt {answer.attempt}' if answer.attempt else ''}"
    if answer.ok is not None:
        return "yes" if answer.ok is True else "no" if answer.ok is False else repr(answer.ok)
    if answer.status is not None:
        return f"{answer.status}{', free' if answer.free else ''}"
    return "nothing" if answer.free is None else "free"
