"""What happened in a simulation, as every instance itself saw it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from anarchon.plugins import Observers
from anarchon.types import RunKey, RunRecord

__all__ = ["Attempt", "Mark", "Outage", "Report", "Tape", "Told"]


class Mark:
    """Names of the situations that a simulation counts: one that never occurred was not tested."""

    TAKEOVER = "takeover"
    LOST_REPLY = "lost reply"
    HAND_OVER = "hand-over"
    PARTITION_HEALED = "partition healed"
    DAYLIGHT_SAVING = "daylight-saving night"
    DEPLOY = "deploy"
    CLOCK_STEP = "clock step"


@dataclass(slots=True)
class Attempt:
    """One handler call. `end` is done, cancelled or killed; `lost_ms` when the handler was told that it lost the run."""

    key: RunKey
    attempt: int
    instance: str
    start_ms: float
    store_ms: float
    end_ms: float | None = None
    end: str = "running"
    recorded: bool = False
    lost_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """A hook call that matters to the judge."""

    event: str
    key: RunKey
    instance: str
    at_ms: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Outage:
    """A span in which an instance could not be counted on: down, paused, cut off, lossy or slow."""

    instance: str
    begin_ms: float
    end_ms: float
    kind: str


@dataclass(slots=True)
class Report:
    """The result of a simulation. `violations` is empty if every checked clause held."""

    seed: int
    attempts: list[Attempt] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    history: dict[str, list[RunRecord]] = field(default_factory=dict)
    unfinished: set[RunKey] = field(default_factory=set)
    marks: Counter[str] = field(default_factory=Counter)
    slots: int = 0
    slot_instances: int = 0
    store_calls: int = 0
    live_overlaps: int = 0
    crash_runs: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was violated."""
        return not self.violations

    def raise_if_violated(self) -> None:
        """Raise AssertionError naming every violation and the seed that shows them again."""
        if self.violations:
            story = "\n  ".join(self.violations[:20])
            msg = f"seed {self.seed}: {len(self.violations)} violations\n  {story}"
            raise AssertionError(msg)


class Tape(Observers):
    """The observers of one simulated instance: writes down what they are told."""

    def __init__(self, report: Report, instance: str, now_ms: Callable[[], float]) -> None:
        self._report = report
        self._instance = instance
        self._now_ms = now_ms

    def tell(self, event: str, **facts: object) -> None:
        key = facts.get("key")
        if not isinstance(key, RunKey):
            return
        now_ms = self._now_ms()
        mine = [
            a
            for a in self._report.attempts
            if a.key == key and a.instance == self._instance and a.attempt == facts.get("attempt")
        ]
        match event:
            case "run_finished" if mine:
                mine[-1].recorded = bool(facts["recorded"])
            case "lease_lost" if mine:
                mine[-1].lost_ms = now_ms
            case "run_taken_over":
                self._report.marks[Mark.TAKEOVER] += 1
            case "run_released":
                self._report.marks[Mark.HAND_OVER] += 1
            case _:
                pass
        if event in {"slot_skipped", "run_missed", "run_released", "lease_lost"}:
            self._report.told.append(Told(event, key, self._instance, now_ms, str(facts.get("reason") or facts.get("why") or "")))
