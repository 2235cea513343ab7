"""Judge a history: is there an order of its calls that the contract explains, within the times at which they can have happened?

One depth-first search a job that remembers the places already visited (done calls, state of the job). A call takes effect
at one instant between its sending and its answer; an open call at some later instant, or never. Instants are read as spans of
the store's clock, so that slow machines may hide a violation but never make one up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from anarchon.contract import Answer, JobState, Transition, Window, step
from anarchon.contract.model import Call
from anarchon.types import Limits, RunKey

from anarchon_conformance.blame import blame
from anarchon_conformance.history import History, Op
from anarchon_conformance.invariants import Broken, broken_invariants

__all__ = [
    "NODES_MAX",
    "Finding",
    "Judgement",
    "Question",
    "StepFunction",
    "Windows",
    "check",
    "check_job",
    "contract_step",
    "keys_of",
]

NODES_MAX = 200_000
"""The most places that one search visits before it says undecided."""


@dataclass(frozen=True, slots=True)
class Question:
    """A call as the search asks the model about it. `answer` is what the store said; only a weakened model looks at it."""

    call: Call
    window: Window
    answer: Answer | None
    history: History


StepFunction = Callable[[JobState, Question], tuple[Transition, ...]]


class Judgement(StrEnum):
    """The verdict about a history."""

    OK = "ok"
    VIOLATION = "violation"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict; with a violation the clause, one sentence, the job, and the call at which every order breaks."""

    judgement: Judgement
    clause: str = ""
    sentence: str = ""
    job: str = ""
    at: Op | None = None
    nodes: int = 0


def contract_step(state: JobState, asked: Question) -> tuple[Transition, ...]:
    """Ask the contract's model."""
    history = asked.history
    return step(
        state,
        asked.call,
        asked.window,
        lease=history.lease,
        limits=history.limits,
        slack_ms=history.timebase.slack_ms,
    )


def check(
    history: History, *, model: StepFunction = contract_step, nodes_max: int = NODES_MAX, ignore: frozenset[str] = frozenset()
) -> Finding:
    """Judge every job of a history; the first violation wins, then the first undecided job.

    `ignore` leaves out the invariants of these clauses, for counter-checks with a weakened model.
    """
    undecided: Finding | None = None
    nodes = 0
    for job in history.jobs:
        finding = check_job(history.of_job(job), model=model, nodes_max=nodes_max, ignore=ignore)
        nodes += finding.nodes
        if finding.judgement is Judgement.VIOLATION:
            return finding
        if finding.judgement is Judgement.UNDECIDED:
            undecided = undecided or finding
    return undecided or Finding(Judgement.OK, nodes=nodes)


def check_job(
    history: History, *, model: StepFunction = contract_step, nodes_max: int = NODES_MAX, ignore: frozenset[str] = frozenset()
) -> Finding:
    """Judge the history of one job: whole-history invariants first, because their stories are the plainest."""
    for broken in broken_invariants(history):
        if broken.clause not in ignore:
            return _of_invariant(broken)
    finding = _Search(history, model, nodes_max).run()
    return finding if finding.judgement is not Judgement.VIOLATION else _narrowed(history, model, nodes_max)


def _narrowed(history: History, model: StepFunction, nodes_max: int) -> Finding:
    """Find the first answer that no order explains: what had not been answered by then counts as open."""
    returns = sorted(op.return_ns for op in history.ops if op.return_ns is not None and not op.open)
    low, high = 0, len(returns) - 1
    while low < high:
        middle = (low + high) // 2
        part = _until(history, returns[middle])
        if _Search(part, model, nodes_max).run().judgement is Judgement.VIOLATION:
            high = middle
        else:
            low = middle + 1
    return _Search(_until(history, returns[high]), model, nodes_max).run()


def _until(history: History, instant_ns: int) -> History:
    ops = tuple(
        op if op.return_ns is not None and op.return_ns <= instant_ns else replace(op, return_ns=None, answer=None)
        for op in history.ops
        if op.call_ns <= instant_ns
    )
    return replace(history, ops=ops)


def _of_invariant(broken: Broken) -> Finding:
    return Finding(Judgement.VIOLATION, broken.clause, broken.sentence, broken.job, broken.at)


class Windows:
    """Turns times of the kit's clock into spans of the store's clock, steps of it included."""

    def __init__(self, history: History) -> None:
        self._base = history.timebase
        self._steps = sorted(history.steps, key=lambda item: item.call_ns)

    def of(self, low_ns: float, high_ns: float) -> Window:
        """Return everything that the store's clock can have shown between two instants."""
        if not self._steps:
            return self._span(low_ns, high_ns, 0, 0)
        before = [item.delta_ms for item in self._steps if item.return_ns < low_ns]
        moved = sum(before)
        low, high = self._span(low_ns, low_ns, moved, moved).low_ms, -math.inf
        low_seen, at_ns = low, low_ns
        for item in self._steps[len(before) :]:
            if item.call_ns > high_ns:
                break
            until = self._span(at_ns, min(high_ns, item.return_ns), moved, moved)
            moved += item.delta_ms
            after = self._span(max(at_ns, item.call_ns), min(high_ns, item.return_ns), moved, moved)
            low_seen, high = min(low_seen, until.low_ms, after.low_ms), max(high, until.high_ms, after.high_ms)
            at_ns = max(at_ns, item.call_ns)
        rest = self._span(at_ns, high_ns, moved, moved)
        return Window(min(low_seen, rest.low_ms), max(high, rest.high_ms))

    def _span(self, low_ns: float, high_ns: float, low_moved_ms: float, high_moved_ms: float) -> Window:
        offset_ms = self._base.offset_ms
        if self._base.exact:
            low, high = _whole(low_ns), _whole(high_ns)
        else:
            # A store reads whole milliseconds, on a grid that is not the kit's: one millisecond either way.
            low, high = low_ns / 1e6 - 1, high_ns / 1e6 + 1
        return Window(low + offset_ms + low_moved_ms, high + offset_ms + high_moved_ms)


def _whole(value_ns: float) -> float:
    return value_ns if math.isinf(value_ns) else value_ns // 1_000_000


class _Search:
    def __init__(self, history: History, model: StepFunction, nodes_max: int) -> None:
        self._history = history
        self._ops = sorted(history.ops, key=lambda op: op.call_ns)
        self._model = model
        self._nodes_max = nodes_max
        self._windows = Windows(history)
        self._returns = [math.inf if op.return_ns is None or op.open else op.return_ns for op in self._ops]
        self._closed = sum(1 << place for place, op in enumerate(self._ops) if not op.open)
        self._spans: dict[tuple[float, float], Window] = {}
        self._deepest: tuple[int, int, JobState, Window] | None = None
        self.nodes = 0

    def run(self) -> Finding:
        """Search; the stack holds iterators over what may come next, so that long histories need no deep recursion."""
        seen: set[tuple[int, JobState]] = {(0, JobState())}
        stack = [self._next(0, JobState())]
        if not self._closed:
            return Finding(Judgement.OK)
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
                continue
            if following[0] & self._closed == self._closed:
                return Finding(Judgement.OK, nodes=self.nodes)
            if following in seen:
                continue
            seen.add(following)
            self.nodes += 1
            if self.nodes > self._nodes_max:
                job = self._ops[0].job
                sentence = f"undecided after {self.nodes} places"
                return Finding(Judgement.UNDECIDED, sentence=sentence, job=job, nodes=self.nodes)
            stack.append(self._next(*following))
        return self._violation()

    def _next(self, done: int, state: JobState) -> Iterator[tuple[int, JobState]]:
        """Yield what may follow: each call that no undone answered call precedes, with each allowed answer it may have got."""
        undone = [place for place in range(len(self._ops)) if not done >> place & 1]
        first_return = min(self._returns[place] for place in undone)
        at_least = max((op.call_ns for place, op in enumerate(self._ops) if done >> place & 1), default=0)
        stuck = True
        for place in undone:
            op = self._ops[place]
            if op.call_ns > first_return:
                break
            window = self._window(max(op.call_ns, at_least), min(self._returns[place], first_return))
            for transition in self._model(state, Question(op.call, window, op.answer, self._history)):
                if op.answer is None or transition.answer == op.answer:
                    stuck = stuck and op.open
                    yield done | 1 << place, transition.state
        if stuck:
            self._note(done, state, undone, at_least)

    def _window(self, low_ns: float, high_ns: float) -> Window:
        key = (low_ns, high_ns)
        if key not in self._spans:
            self._spans[key] = self._windows.of(low_ns, high_ns)
        return self._spans[key]

    def _note(self, done: int, state: JobState, undone: list[int], at_least: int) -> None:
        """Remember the place where most answered calls were explained; best if only the last answer is left over."""
        closed = [place for place in undone if not self._ops[place].open]
        if not closed:
            return
        depth = (done & self._closed).bit_count()
        place = max(closed, key=lambda item: self._returns[item])
        if self._deepest is not None and depth <= self._deepest[0]:
            return
        window = self._window(max(self._ops[place].call_ns, at_least), self._returns[place])
        self._deepest = (depth, place, state, window)

    def _violation(self) -> Finding:
        assert self._deepest is not None, "a search that failed has been stuck somewhere"
        _, place, state, window = self._deepest
        op = self._ops[place]
        assert op.answer is not None
        limits: Limits = self._history.limits
        clause, sentence = blame(state, op.call, op.answer, window, lease=self._history.lease, limits=limits)
        return Finding(Judgement.VIOLATION, clause, sentence, op.job, op, nodes=self.nodes)


def keys_of(history: History) -> tuple[RunKey, ...]:
    """Return the runs that a history is about, in order."""
    return tuple(sorted({op.call.key for op in history.ops}))
