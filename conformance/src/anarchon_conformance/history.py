"""What happened: every call with the times of its sending and its answer, steps of the store's clock, reads of the history.

A call that raised or was cancelled stays open: it may take effect later, or never. Times are `monotonic` nanoseconds of the
kit's clock and strictly rising, so that they also order what happened within one tick.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from anarchon.clock import Clock
from anarchon.contract import (
    Answer,
    CheckCall,
    ClaimCall,
    FinishCall,
    PauseCall,
    ReleaseCall,
    RenewCall,
)
from anarchon.contract.model import Call
from anarchon.types import ClaimRequest, Limits, Outcome, RunKey, RunRecord, RunResult, RunStatus

__all__ = ["ClockStep", "History", "Look", "Op", "Recorder", "Timebase"]


@dataclass(frozen=True, slots=True)
class Op:
    """One call of one client. `return_ns` and `answer` are None while it is open."""

    client: str
    call: Call
    call_ns: int
    return_ns: int | None = None
    answer: Answer | None = None
    error: str | None = None

    @property
    def job(self) -> str:
        """The job that the call is about: its partition (overlap couples the slots of a job)."""
        return self.call.key.job

    @property
    def open(self) -> bool:
        """Whether the effect is unknown."""
        return self.answer is None


@dataclass(frozen=True, slots=True)
class ClockStep:
    """The store's clock was stepped by `delta_ms` at some instant between the two times."""

    delta_ms: int
    call_ns: int
    return_ns: int


@dataclass(frozen=True, slots=True)
class Look:
    """What `history` answered about a job."""

    job: str
    records: tuple[RunRecord, ...]
    call_ns: int
    return_ns: int


@dataclass(frozen=True, slots=True)
class Timebase:
    """How the kit's clock maps to the store's: `offset_ms` is good to `slack_ms`; `exact` = both tick in step (simulated)."""

    offset_ms: float
    slack_ms: float = 0.0
    exact: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """A finished recording, with what a checker must know to judge it."""

    ops: tuple[Op, ...]
    timebase: Timebase
    lease: bool = True
    limits: Limits = field(default_factory=Limits)
    steps: tuple[ClockStep, ...] = ()
    looks: tuple[Look, ...] = ()

    def of_job(self, job: str) -> History:
        """Return the part that is about one job."""
        ops = tuple(op for op in self.ops if op.job == job)
        looks = tuple(look for look in self.looks if look.job == job)
        return History(ops, self.timebase, self.lease, self.limits, self.steps, looks)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs in order of their first call."""
        return tuple(dict.fromkeys(op.job for op in self.ops))

    def save(self, path: Path) -> None:
        """Write one JSON object a line: a head, then calls, steps and looks."""
        head = {"kind": "head", "timebase": asdict(self.timebase), "lease": self.lease, "limits": asdict(self.limits)}
        lines = [head, *map(_op_out, self.ops), *map(_step_out, self.steps), *map(_look_out, self.looks)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> History:
        """Read what `save` wrote.

        Raises:
            ValueError: the file is no history; the message names the line.
        """
        parts: dict[str, list[Any]] = {"head": [], "op": [], "step": [], "look": []}
        number = 0
        try:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):  # noqa: B007 - told below
                fields = json.loads(line)
                kind = fields.pop("kind")
                parts[kind].append(_READ[kind](fields))
            (head,) = parts["head"]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            msg = f"{path}, line {number}: this is no history of the kit"
            raise ValueError(msg) from error
        timebase, lease, limits = head
        return cls(tuple(parts["op"]), timebase, lease, limits, tuple(parts["step"]), tuple(parts["look"]))


class Recorder:
    """Collects a history while clients run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ns = 0
        self._ops: dict[int, Op] = {}
        self.steps: list[ClockStep] = []
        self.looks: list[Look] = []

    def tick(self) -> int:
        """Return now in nanoseconds, later than every tick before."""
        self._last_ns = max(self._last_ns + 1, int(self._clock.monotonic_ms() * 1_000_000))
        return self._last_ns

    def begin(self, client: str, call: Call) -> int:
        """Note that a call is about to be sent; returns its number."""
        number = len(self._ops)
        self._ops[number] = Op(client, call, self.tick())
        return number

    def end(self, number: int, answer: Answer | None, error: str | None = None) -> Op:
        """Note the answer of a call, or why there is none."""
        op = self._ops[number]
        done_ns = self.tick() if answer is not None else None
        self._ops[number] = Op(op.client, op.call, op.call_ns, done_ns, answer, error)
        return self._ops[number]

    @property
    def ops(self) -> tuple[Op, ...]:
        """The calls so far, in the order in which they were sent."""
        return tuple(self._ops.values())


_NAMES: dict[type, str] = {
    ClaimCall: "claim",
    RenewCall: "renew",
    FinishCall: "finish",
    ReleaseCall: "release",
    CheckCall: "check",
    PauseCall: "pause",
}


def _op_out(op: Op) -> dict[str, Any]:
    fields = asdict(op)
    return {"kind": "op", "op": _NAMES[type(op.call)], **fields}


def _op_in(fields: dict[str, Any]) -> Op:
    call, answer = fields["call"], fields["answer"]
    if answer is not None:
        status, outcome = answer["status"], answer["outcome"]
        answer = Answer(
            None if outcome is None else Outcome(outcome),
            answer["attempt"],
            answer["ok"],
            None if status is None else RunStatus(status),
            answer["free"],
        )
    return Op(fields["client"], _call_in(fields["op"], call), fields["call_ns"], fields["return_ns"], answer, fields.get("error"))


def _call_in(name: str, fields: dict[str, Any]) -> Call:
    if name == "claim":
        request = dict(fields["request"])
        return ClaimCall(ClaimRequest(**{**request, "key": RunKey(**request["key"])}))
    values = {**fields, "key": RunKey(**fields["key"])}
    if name == "finish":
        result = values["result"]
        return FinishCall(values["key"], values["token"], RunResult(RunStatus(result["status"]), result["error"]))
    kinds: dict[str, type[RenewCall | ReleaseCall | CheckCall | PauseCall]] = {
        "renew": RenewCall,
        "release": ReleaseCall,
        "check": CheckCall,
        "pause": PauseCall,
    }
    return kinds[name](**values)


def _step_out(step: ClockStep) -> dict[str, Any]:
    return {"kind": "step", **asdict(step)}


def _look_out(look: Look) -> dict[str, Any]:
    return {"kind": "look", **asdict(look)}


def _look_in(fields: dict[str, Any]) -> Look:
    def records() -> Iterator[RunRecord]:
        for record in fields["records"]:
            yield RunRecord(**{**record, "status": RunStatus(record["status"])})

    return Look(fields["job"], tuple(records()), fields["call_ns"], fields["return_ns"])


def _head_in(fields: dict[str, Any]) -> tuple[Timebase, bool, Limits]:
    limits = {**fields["limits"], "notes": tuple(fields["limits"]["notes"])}
    return Timebase(**fields["timebase"]), bool(fields["lease"]), Limits(**limits)


_READ: dict[str, Callable[[dict[str, Any]], object]] = {
    "head": _head_in,
    "op": _op_in,
    "step": lambda fields: ClockStep(**fields),
    "look": _look_in,
}
