"""The contract's model with one clause left out: an answer whose only fault is that clause is believed."""

from __future__ import annotations

from dataclasses import replace

from anarchon.contract import (
    Answer,
    ClaimCall,
    FinishCall,
    JobState,
    ReleaseCall,
    RenewCall,
    RunState,
    Transition,
    Window,
)
from anarchon.contract.model import Call
from anarchon.types import Outcome, RunStatus
from anarchon_conformance.blame import blame
from anarchon_conformance.checker import Question, StepFunction, contract_step

__all__ = ["without"]


def without(clause: str) -> StepFunction:
    """Return the model without a clause."""

    def model(state: JobState, asked: Question) -> tuple[Transition, ...]:
        allowed = contract_step(state, asked)
        answer = asked.answer
        if answer is None or any(transition.answer == answer for transition in allowed):
            return allowed
        history = asked.history
        blamed, _ = blame(state, asked.call, answer, asked.window, lease=history.lease, limits=history.limits)
        if blamed != clause:
            return allowed
        return (*allowed, Transition(answer, _believed(state, asked.call, answer, asked.window)))

    return model


def _believed(state: JobState, call: Call, answer: Answer, window: Window) -> JobState:
    run = state.get(call.key)
    if isinstance(call, ClaimCall) and answer.outcome is Outcome.WON:
        request = call.request
        uncounted = 0 if run is None else run.uncounted
        won = RunState(request.key, answer.attempt, request.token, RunStatus.RUNNING, window, request.lease_ms, uncounted)
        return state.put(won)
    if run is None or answer.ok is not True:
        return state
    if isinstance(call, RenewCall):
        return state.put(replace(run, since=window, span_ms=call.lease_ms))
    if isinstance(call, FinishCall):
        return state.put(replace(run, status=call.result.status, token=None, finisher=call.token))
    if isinstance(call, ReleaseCall):
        free = replace(run, status=RunStatus.HANDED_OVER, token=None, since=window, span_ms=call.delay_ms)
        return state.put(free)
    return state
