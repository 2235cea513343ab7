"""The model of a store: what one job's state may answer to a call, as a pure nondeterministic function.

`step(state, call, window)` returns every answer that the contract allows together with the state that follows.
`window` is the span of the store's clock in which the call took effect: a point gives one answer, a span gives several
where the clock decides. A checker explores them; a backend is right if some order of its calls is explained (C3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from anarchon.types import ATTEMPTS_MAX, ClaimRequest, Limits, Outcome, RunKey, RunResult, RunStatus

__all__ = [
    "Answer",
    "Call",
    "CheckCall",
    "ClaimCall",
    "FinishCall",
    "JobState",
    "PauseCall",
    "ReleaseCall",
    "RenewCall",
    "RunState",
    "Transition",
    "Window",
    "step",
]


@dataclass(frozen=True, slots=True)
class Window:
    """A closed span of the store's clock in milliseconds; fractions are allowed."""

    low_ms: float
    high_ms: float

    @classmethod
    def at(cls, now_ms: float) -> Window:
        """Return the span that is one instant."""
        return cls(now_ms, now_ms)


@dataclass(frozen=True, slots=True)
class RunState:
    """One run. `since` is when the lease (or, once released, the delay) was set and `span_ms` how long it is."""

    key: RunKey
    attempt: int
    token: str | None
    status: RunStatus
    since: Window
    span_ms: int
    uncounted: int = 0
    finisher: str | None = None

    @property
    def released(self) -> bool:
        """Whether the run waits for a claimant."""
        return self.status is RunStatus.HANDED_OVER

    def may_be_alive(self, window: Window) -> bool:
        """Whether the lease or delay may still hold; an end that is exactly now is alive for a lease (C11)."""
        left = window.low_ms - self.since.high_ms
        return left < self.span_ms if self.released else left <= self.span_ms

    def may_be_over(self, window: Window) -> bool:
        """Whether the lease or delay may have passed."""
        left = window.high_ms - self.since.low_ms
        return left >= self.span_ms if self.released else left > self.span_ms

    def attempts_left(self, limit: int) -> bool:
        """Whether another attempt is allowed: hand-overs are not counted below `ATTEMPTS_MAX` (C13)."""
        return self.attempt - self.uncounted < limit and self.attempt < ATTEMPTS_MAX


@dataclass(frozen=True, slots=True)
class JobState:
    """Everything a store knows about one job. `may_floor_ms`: what winning claims were allowed to forget (C6)."""

    runs: tuple[RunState, ...] = ()
    paused: bool = False
    may_floor_ms: int | None = None

    def get(self, key: RunKey) -> RunState | None:
        """Return a run, or None."""
        return next((run for run in self.runs if run.key == key), None)

    def put(self, run: RunState) -> JobState:
        """Return the state with this run written."""
        others = (old for old in self.runs if old.key != run.key)
        return replace(self, runs=tuple(sorted((*others, run), key=lambda item: item.key)))

    def may_be_forgotten(self, slot_ms: int) -> bool:
        """Whether a run of this slot, if final or never claimed, may lie at or below the floor (C6)."""
        return self.may_floor_ms is not None and slot_ms <= self.may_floor_ms


@dataclass(frozen=True, slots=True)
class ClaimCall:
    """A claim."""

    request: ClaimRequest

    @property
    def key(self) -> RunKey:
        """The run asked for."""
        return self.request.key


@dataclass(frozen=True, slots=True)
class RenewCall:
    """A renewal."""

    key: RunKey
    token: str
    lease_ms: int


@dataclass(frozen=True, slots=True)
class FinishCall:
    """A finish."""

    key: RunKey
    token: str
    result: RunResult


@dataclass(frozen=True, slots=True)
class ReleaseCall:
    """A hand-over or a retry."""

    key: RunKey
    token: str
    delay_ms: int = 0
    counted: bool = False


@dataclass(frozen=True, slots=True)
class CheckCall:
    """A look at one run (C17)."""

    key: RunKey


@dataclass(frozen=True, slots=True)
class PauseCall:
    """A pause or resume; `key` names the job."""

    key: RunKey
    paused: bool


Call = ClaimCall | RenewCall | FinishCall | ReleaseCall | CheckCall | PauseCall


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call returned: `outcome` and `attempt` of a claim, `ok` of a renew, finish or release, `status` and
    `free` of a check. Everything else in a `Claim` is a hint that the model does not judge."""

    outcome: Outcome | None = None
    attempt: int = 0
    ok: bool | None = None
    status: RunStatus | None = None
    free: bool | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """One allowed answer and what the store then holds."""

    answer: Answer
    state: JobState


def step(
    state: JobState,
    call: Call,
    window: Window,
    *,
    lease: bool = True,
    limits: Limits | None = None,
    slack_ms: float = 0,
) -> tuple[Transition, ...]:
    """Return every allowed answer to `call` taking effect within `window`, with the state that follows.

    `slack_ms` is how far the observer's idea of the store's absolute time may be off: it widens the comparison of slots
    with now (C9), never that of lease ends (C11). `lease=False` is the model of a claim-only backend with `limits`.
    """
    match call:
        case ClaimCall(request) if lease:
            return tuple(_claim(state, request, window, slack_ms))
        case ClaimCall(request):
            return tuple(_first(state, request, window, limits or Limits(), slack_ms=slack_ms))
        case RenewCall():
            return (_renew(state, call, window),)
        case FinishCall(key, token, result):
            return tuple(_finish(state, key, token, result, lease=lease))
        case ReleaseCall():
            return (_release(state, call, window),)
        case CheckCall(key):
            return tuple(_check(state, key, window))
        case PauseCall(_, paused):
            return (Transition(Answer(), replace(state, paused=paused)),)


def _claim(state: JobState, request: ClaimRequest, window: Window, slack_ms: float) -> Iterator[Transition]:
    run = state.get(request.key)
    if run is None:
        yield from _fresh(state, request, window, slack_ms)
        return
    if run.status is RunStatus.RUNNING and run.token == request.token:  # C4
        yield _won(state, replace(run, since=window, span_ms=request.lease_ms))
        return
    if run.status.final:  # C18
        yield Transition(Answer(Outcome.DONE), state)
        if state.may_be_forgotten(run.key.slot_ms):
            yield Transition(Answer(Outcome.LATE), state)
        return
    if run.may_be_alive(window):
        yield Transition(Answer(Outcome.RUNNING), state)
    if not run.may_be_over(window):
        return
    if run.attempts_left(request.attempt_limit):  # C12
        taken = replace(run, attempt=run.attempt + 1, token=request.token, status=RunStatus.RUNNING)
        yield _won(_prune(state, request, window), replace(taken, since=window, span_ms=request.lease_ms))
    else:  # C13
        ended = replace(run, status=RunStatus.INTERRUPTED, token=None)
        yield Transition(Answer(Outcome.DONE), state.put(ended))


def _fresh(state: JobState, request: ClaimRequest, window: Window, slack_ms: float) -> Iterator[Transition]:
    key = request.key
    maybe_forgotten = state.may_be_forgotten(key.slot_ms)
    if maybe_forgotten:
        yield Transition(Answer(Outcome.LATE), state)
    if not (key.manual or key.note):
        low, high = window.low_ms - slack_ms - key.slot_ms, window.high_ms + slack_ms - key.slot_ms
        if low < 0:
            yield Transition(Answer(Outcome.EARLY), state)
        if high > request.max_late_ms and not maybe_forgotten:
            yield Transition(Answer(Outcome.LATE), state)
        if high < 0 or low > request.max_late_ms:
            return
        if state.paused:  # C10
            yield Transition(Answer(Outcome.PAUSED), state)
            return
    if request.exclusive and not key.note:
        others = [run for run in state.runs if run.key != key and not run.key.note and not run.status.final]
        if any(run.may_be_alive(window) for run in others):
            yield Transition(Answer(Outcome.OVERLAP), state)
        if any(not run.may_be_over(window) for run in others):
            return
    run = RunState(key, 1, request.token, RunStatus.RUNNING, window, request.lease_ms)
    yield _won(_prune(state, request, window), run)


def _won(state: JobState, run: RunState) -> Transition:
    return Transition(Answer(Outcome.WON, run.attempt), state.put(run))


def _prune(state: JobState, request: ClaimRequest, window: Window) -> JobState:
    """Note how far this winning claim may forget (C6): final, older than `keep_ms`, and beyond a history limit."""
    oldest_kept_ms = window.high_ms - request.keep_ms
    newest_first = sorted((run.key.slot_ms for run in state.runs), reverse=True)
    allowed = [slot for slot in newest_first[max(0, request.history_size - 1) :] if slot < oldest_kept_ms]
    if request.history_ttl_ms is not None:
        allowed += [slot for slot in newest_first if slot < oldest_kept_ms and window.high_ms - slot > request.history_ttl_ms]
    floor = max(allowed + ([] if state.may_floor_ms is None else [state.may_floor_ms]), default=None)
    return replace(state, may_floor_ms=floor)


def _first(state: JobState, request: ClaimRequest, window: Window, limits: Limits, *, slack_ms: float) -> Iterator[Transition]:
    """The claim of a claim-only backend: who is first, and (with `store_clock`) early and late (C9)."""
    key = request.key
    run = state.get(key)
    if run is not None and run.token == request.token and limits.resolves_unknown:
        yield _won(state, run)
        return
    timed = limits.store_clock and not (key.manual or key.note)
    low, high = window.low_ms - slack_ms - key.slot_ms, window.high_ms + slack_ms - key.slot_ms
    overtaken = limits.ordered and any(other.key.slot_ms > key.slot_ms for other in state.runs)
    # Whether a refused claim hears of the winner, of the time or of a newer slot is the store's order to choose.
    if timed and low < 0:
        yield Transition(Answer(Outcome.EARLY), state)
    if overtaken or (timed and high > request.max_late_ms):
        yield Transition(Answer(Outcome.LATE), state)
    if run is not None:
        yield Transition(Answer(Outcome.LOST), state)
        if run.status.final:
            yield Transition(Answer(Outcome.DONE), state)
        return
    if overtaken or (timed and (high < 0 or low > request.max_late_ms)):
        return
    yield _won(state, RunState(key, 1, request.token, RunStatus.RUNNING, window, request.lease_ms))


def _held(state: JobState, key: RunKey, token: str) -> RunState | None:
    run = state.get(key)
    return run if run is not None and run.status is RunStatus.RUNNING and run.token == token else None


def _renew(state: JobState, call: RenewCall, window: Window) -> Transition:
    run = _held(state, call.key, call.token)
    if run is None:  # C15
        return Transition(Answer(ok=False), state)
    return Transition(Answer(ok=True), state.put(replace(run, since=window, span_ms=call.lease_ms)))  # C14


def _finish(state: JobState, key: RunKey, token: str, result: RunResult, *, lease: bool) -> Iterator[Transition]:
    run = _held(state, key, token)
    if run is not None:
        done = replace(run, status=result.status, token=None, finisher=token)
        # A claim-only store keeps the winner's token: it is what refuses the others, for ever.
        yield Transition(Answer(ok=True), state.put(done if lease else replace(done, token=token)))
        return
    known = state.get(key)
    finished = known is not None and known.finisher == token
    yield Transition(Answer(ok=finished), state)  # C15, C18
    if finished and state.may_be_forgotten(key.slot_ms):
        yield Transition(Answer(ok=False), state)


def _release(state: JobState, call: ReleaseCall, window: Window) -> Transition:
    run = _held(state, call.key, call.token)
    if run is None:  # C15
        return Transition(Answer(ok=False), state)
    free = replace(
        run,
        status=RunStatus.HANDED_OVER,
        token=None,
        since=window,
        span_ms=call.delay_ms,
        uncounted=run.uncounted + (not call.counted),
    )
    return Transition(Answer(ok=True), state.put(free))  # C16


def _check(state: JobState, key: RunKey, window: Window) -> Iterator[Transition]:
    run = state.get(key)
    if run is None or (run.status.final and state.may_be_forgotten(key.slot_ms)):
        yield Transition(Answer(), state)
    if run is None:
        return
    if run.status.final:
        yield Transition(Answer(status=run.status, free=False), state)
    elif run.may_be_over(window):
        yield Transition(Answer(status=RunStatus.RUNNING, free=True), state)
    # C17: still "running" is a legal answer at any time after the claim
    yield Transition(Answer(status=RunStatus.RUNNING, free=False), state)
