"""Which clause an answer breaks: the contract's model refused it in this state; say why in one sentence."""

from __future__ import annotations

from anarchon.contract import (
    Answer,
    CheckCall,
    ClaimCall,
    FinishCall,
    JobState,
    PauseCall,
    ReleaseCall,
    RenewCall,
    RunState,
    Window,
)
from anarchon.contract.model import Call
from anarchon.types import ClaimRequest, Limits, Outcome, RunStatus

__all__ = ["blame"]


def blame(state: JobState, call: Call, answer: Answer, window: Window, *, lease: bool, limits: Limits) -> tuple[str, str]:
    """Return the clause and a sentence for an answer that the model does not allow in this state."""
    run = state.get(call.key)
    match call:
        case ClaimCall(request) if lease:
            return _claim(state, run, request, answer, window=window)
        case ClaimCall(request):
            return _first(run, request, answer, limits)
        case RenewCall(_, token, _):
            if answer.ok:
                return "C15", f"a renewal with a token that does not hold the run is told yes ({_what(run, token)})"
            return "C14", "the holder's renewal is refused"
        case ReleaseCall(_, token, _, _):
            if answer.ok:
                return "C15", f"a release with a token that does not hold the run is told yes ({_what(run, token)})"
            return "C16", "the holder's release is refused"
        case FinishCall(_, token, _):
            if answer.ok:
                return "C15", f"a finish with a token that does not hold the run is told yes ({_what(run, token)})"
            if run is not None and run.finisher == token:
                return "C18", "the token that finished the run asks again and is refused"
            return "C18", "the holder's finish is refused"
        case CheckCall():
            return _check(run, answer, window)
        case PauseCall():
            return "C10", "a pause or resume answers something"


def _what(run: RunState | None, token: str) -> str:
    if run is None:
        return "there is no such run"
    if run.status.final:
        return f"the run is {run.status}"
    if run.released:
        return "the run was released"
    return "it holds it" if run.token == token else f"attempt {run.attempt} belongs to another token"


def _claim(state: JobState, run: RunState | None, request: ClaimRequest, answer: Answer, *, window: Window) -> tuple[str, str]:
    if answer.outcome is Outcome.LOST or answer.outcome is Outcome.UNKNOWN or answer.outcome is None:
        return "C3", f"a lease backend answers {answer.outcome}"
    if run is None:
        return _fresh(state, request, answer, window)
    won = answer.outcome is Outcome.WON
    if run.status is RunStatus.RUNNING and run.token == request.token:
        said = f"attempt {answer.attempt}" if won else str(answer.outcome)
        return "C4", f"the token that holds attempt {run.attempt} asks again and is told {said}"
    if run.status.final:
        if won:
            return "C18", f"a run that is {run.status} is won again, as attempt {answer.attempt}"
        return "C18", f"a run that is {run.status} answers {answer.outcome}"
    if won:
        return _taken(run, request, answer, window)
    if run.may_be_over(window) and not run.may_be_alive(window):
        return _not_taken(run, request, answer)
    if answer.outcome is Outcome.DONE:
        return "C13", "a run that is alive is reported done"
    rule = {Outcome.OVERLAP: "C10", Outcome.PAUSED: "C10", Outcome.LATE: "C9", Outcome.EARLY: "C9"}
    if run.may_be_over(window):
        return rule.get(answer.outcome, "C3"), f"a claim of a known run answers {answer.outcome}"
    return rule.get(answer.outcome, "C12"), f"a run that is alive answers {answer.outcome}"


def _taken(run: RunState, request: ClaimRequest, answer: Answer, window: Window) -> tuple[str, str]:
    if not run.may_be_over(window):
        if run.released:
            return "C16", "a released run is won before its delay has passed"
        if answer.attempt == run.attempt:
            return "C1", f"two tokens hold attempt {run.attempt}"
        return "C11", f"attempt {run.attempt} is alive on the store's clock and is taken over"
    if not run.attempts_left(request.attempt_limit):
        return "C13", f"attempt {answer.attempt} is won though {request.attempt_limit} were allowed"
    return "C8", f"after attempt {run.attempt} came attempt {answer.attempt}"


def _not_taken(run: RunState, request: ClaimRequest, answer: Answer) -> tuple[str, str]:
    if not run.attempts_left(request.attempt_limit):
        return "C13", f"a run with no attempt left answers {answer.outcome}"
    if answer.outcome is Outcome.DONE:
        return "C13", f"a run with attempts left ({run.attempt - run.uncounted} of {request.attempt_limit} counted) is ended"
    if answer.outcome in {Outcome.LATE, Outcome.EARLY}:
        return "C9", f"a takeover is told {answer.outcome}"
    if run.released:
        return "C16", f"a released run whose delay has passed answers {answer.outcome}"
    return "C12", f"a run whose lease is over on the store's clock answers {answer.outcome}"


def _fresh(state: JobState, request: ClaimRequest, answer: Answer, window: Window) -> tuple[str, str]:
    early, late = request.key.slot_ms > window.high_ms, request.key.slot_ms + request.max_late_ms < window.low_ms
    if answer.outcome in {Outcome.EARLY, Outcome.LATE} or early or late:
        place = "early" if early else "late" if late else "in time"
        return "C9", f"the slot is {place} on the store's clock and the claim is told {answer.outcome}"
    if answer.outcome is Outcome.PAUSED:
        return "C10", "a job that is not paused answers paused"
    if answer.outcome is Outcome.OVERLAP:
        return "C10", "no other run of the job is alive and the claim is told overlap"
    if answer.outcome is Outcome.WON:
        if state.paused and not (request.key.manual or request.key.note):
            return "C10", "a first claim of a paused job is won"
        others = [run for run in state.runs if run.key != request.key and not run.key.note and not run.status.final]
        if request.exclusive and not request.key.note and any(not run.may_be_over(window) for run in others):
            return "C10", "another run of the job is alive, and the claim that refuses overlap is won"
        if state.may_be_forgotten(request.key.slot_ms):
            return "C6", "a slot at or below the floor is won"
        return "C8", f"the first attempt of a run is numbered {answer.attempt}"
    return "C2", f"a fresh slot that no rule refuses answers {answer.outcome}"


def _first(run: RunState | None, request: ClaimRequest, answer: Answer, limits: Limits) -> tuple[str, str]:
    if run is None:
        if answer.outcome in {Outcome.EARLY, Outcome.LATE}:
            return "C9", f"a fresh slot is told {answer.outcome} against the store's clock"
        if answer.outcome is Outcome.WON:
            return (
                ("C8", f"the first attempt is numbered {answer.attempt}")
                if answer.attempt != 1
                else ("C9", "a refused slot is won")
            )
        return "C2", f"a fresh slot that meets no other claim answers {answer.outcome}"
    if run.token == request.token and limits.resolves_unknown:
        return "C4", f"the winner's token asks again and is told {answer.outcome}"
    if answer.outcome is Outcome.WON:
        return "C1", f"two tokens hold attempt {answer.attempt}"
    return "C3", f"a slot that somebody won answers {answer.outcome}"


def _check(run: RunState | None, answer: Answer, window: Window) -> tuple[str, str]:
    if run is None:
        return "C17", f"a run that nobody won is shown as {answer.status}"
    if answer.status is None:
        return "C6", "a run that is remembered is not shown"
    if run.status.final or answer.status.final:
        return "C18" if run.status.final else "C17", f"a run that is {run.status} is shown as {answer.status}"
    return "C17", "a run that is alive is shown as free" if not run.may_be_over(window) else "a look shows something else"
