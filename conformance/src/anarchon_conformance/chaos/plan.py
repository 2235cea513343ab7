"""What one worker process is told to do: plain data, handed over as one argument."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from anarchon.clock import SystemClock

__all__ = ["OffClock", "Role", "WorkerPlan"]


class OffClock(SystemClock):
    """A host whose wall clock is wrong."""

    def __init__(self, skew_ms: int) -> None:
        self._skew_ms = skew_ms

    def wall_ms(self) -> float:
        return super().wall_ms() + self._skew_ms


class Role(StrEnum):
    """What a worker is."""

    PROBE = "probe"
    """Claims one run and says what it was told: whether another process sees the same store."""
    CLAIMS = "claims"
    """Claims the slots of a grid on the backend itself, watches, renews and finishes them."""
    SCHEDULER = "scheduler"
    """A real scheduler with a real job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """One worker. `skew_ms` is by how much its own clock is off; `life_ms` ends it whatever happens.

    `look_back_ms` is how far back it starts: to one whose clock is ahead the slots of now are past already.
    """

    role: Role
    url: str
    job: str
    instance: str
    journal: str
    slot_ms: int = 0
    period_ms: int = 500
    lease_ms: int = 600
    work_ms: int = 300
    max_late_ms: int = 8_000
    skew_ms: int = 0
    look_back_ms: int = 0
    life_ms: int = 120_000
    seed: int = 0

    def to_argument(self) -> str:
        """Return the plan as one command-line argument."""
        return json.dumps(asdict(self))

    @classmethod
    def of_argument(cls, text: str) -> WorkerPlan:
        """Read what `to_argument` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "role": Role(fields["role"])})
