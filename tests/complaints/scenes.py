"""What the scenarios share: job lists for simulated fleets, and short ways to look at what became of the slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from anarchon import Run, Schedule, Scheduler
from anarchon.engine import Engine
from anarchon.testing import Fault, Plan, Report, simulate
from anarchon.types import SLOT

__all__ = ["Scenario", "at", "between", "cases", "fleet", "instant_ms", "played", "pretend", "runs_of", "started_once"]

Scenario = Callable[[], None]


async def pretend(run: Run) -> None:
    """Be replaced by a wait: `simulate` has its own handlers."""
    del run


def fleet(schedule: Schedule | str, *, name: str = "job", tz: str = "UTC", **options: Any) -> Scheduler:
    """Return a list of one job for a simulated fleet."""
    scheduler = Scheduler("memory://simulated")
    scheduler.add_job(pretend, schedule, name=name, tz=tz, **options)
    return scheduler


def at(text: str) -> datetime:
    """Return an instant of UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def instant_ms(text: str) -> int:
    """Return an instant of UTC as Unix milliseconds."""
    return int(at(text).timestamp() * 1000)


def played(
    jobs: Scheduler,
    *faults: Fault,
    start: str = "2027-01-15T10:00:00",
    seconds: float = 120,
    settle_s: float = 60,
    after: Scheduler | None = None,
    make_engine: Callable[..., Any] | None = None,
    **plan: Any,
) -> Report:
    """Simulate a fleet and refuse every violation of a clause."""
    plan.setdefault("handler_s", (0.1, 0.1))
    what = Plan(start=at(start), duration=timedelta(seconds=seconds), settle=timedelta(seconds=settle_s), faults=faults, **plan)
    report = simulate(jobs, after_deploy=after, plan=what, make_engine=make_engine or Engine)
    report.raise_if_violated()
    return report


def runs_of(report: Report, job: str = "job") -> Counter[int]:
    """Count the handler calls of each slot."""
    return Counter(attempt.key.slot_ms for attempt in report.attempts if attempt.key.job == job and attempt.key.space == SLOT)


def started_once(report: Report, slots: Iterable[int], job: str = "job") -> None:
    """Demand that each of these slots ran exactly once."""
    runs = runs_of(report, job)
    wanted = list(slots)
    assert wanted
    assert {slot: runs[slot] for slot in wanted} == dict.fromkeys(wanted, 1)


def between(schedule: Schedule, begin: str, end: str) -> list[int]:
    """Return the slots from an instant of UTC up to another, not included."""
    found: list[int] = []
    slot_ms = schedule.next_after(instant_ms(begin) - 1)
    while slot_ms is not None and slot_ms < instant_ms(end):
        found.append(slot_ms)
        slot_ms = schedule.next_after(slot_ms)
    return found


def cases(schedule: Schedule, begin: str, end: str) -> list[str]:
    """Return the slots of a span as text."""
    return [datetime.fromtimestamp(slot / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") for slot in between(schedule, begin, end)]
