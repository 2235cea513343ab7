"""Job lists and plans for simulated fleets."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from anarchon import Every, Run, Scheduler
from anarchon.testing import Fault, FaultKind, Plan

NIGHTS = (
    datetime(2027, 3, 28, 0, 59, 20, tzinfo=UTC),  # Berlin and London go forward at 01:00 UTC
    datetime(2027, 10, 31, 0, 59, 20, tzinfo=UTC),  # and back
    datetime(2027, 4, 3, 14, 59, 20, tzinfo=UTC),  # Lord Howe: half an hour
)
DAYS = (datetime(2027, 1, 15, 10, 0, tzinfo=UTC), datetime(2028, 2, 29, 23, 59, 10, tzinfo=UTC))
AMOUNTS: dict[FaultKind, tuple[float, ...]] = {
    FaultKind.LOST_REPLIES: (0.3, 0.6),
    FaultKind.LOST_REQUESTS: (0.3, 0.6),
    FaultKind.SLOW: (100.0, 1_000.0, 3_000.0),
    FaultKind.CLOCK_STEP: (-90_000.0, 90_000.0, 3.15e11, -3.15e11, -2_000.0),
    FaultKind.STORE_STEP: (-30_000.0, 30_000.0, 1_500.0),
}
SETTLE = timedelta(seconds=45)
DURATIONS_MS = (500, 3_000, 8_000, 20_000)
KINDS = tuple(kind for kind in FaultKind if kind is not FaultKind.STORE_STEP)


async def _nothing(run: Run) -> None:
    del run


def fleet(*, deployed: bool = False) -> Scheduler:
    """Return the job list of a version: overlap refused, allowed and queued, catch-up, renamed, in several zones."""
    scheduler = Scheduler("memory://simulated")
    scheduler.add_job(_nothing, Every(seconds=10), name="skip", lease=6, jitter=1)
    scheduler.add_job(_nothing, Every(seconds=5), name="allow", lease=6, overlap="allow")
    scheduler.add_job(_nothing, "* * * * *", name="berlin", tz="Europe/Berlin", lease=6)
    scheduler.add_job(_nothing, "*/10 * * * * *", name="lord-howe", tz="Australia/Lord_Howe", lease=9, max_attempts=5)
    scheduler.add_job(_nothing, Every(seconds=15), name="queue", lease=6, overlap="queue", catch_up_window=120)
    if deployed:
        scheduler.add_job(_nothing, Every(seconds=20), name="changed", lease=6)
        scheduler.add_job(_nothing, Every(seconds=20), name="new-name", was="old-name", lease=6)
        scheduler.add_job(_nothing, Every(seconds=30), name="added", lease=6, catch_up="all", catch_up_window=300)
    else:
        scheduler.add_job(_nothing, Every(seconds=15), name="changed", lease=6)
        scheduler.add_job(_nothing, Every(seconds=20), name="old-name", lease=6)
        scheduler.add_job(_nothing, Every(seconds=30), name="removed", lease=6, catch_up="all", catch_up_window=300)
    return scheduler


BEFORE, AFTER = fleet(), fleet(deployed=True)


def random_plan(seed: int, *, faults_most: int = 10, seconds: int = 60) -> Plan:
    """Return a plan that a seed determines."""
    chance = random.Random(seed)
    faults = []
    for _ in range(chance.randint(0, faults_most)):
        kind = chance.choice(KINDS)
        at_ms = chance.randrange(5_000, seconds * 900)
        amount = chance.choice(AMOUNTS.get(kind, (0.0,)))
        faults.append(Fault(at_ms, kind, chance.randrange(5), chance.choice(DURATIONS_MS), amount))
    instances = chance.choice((3, 3, 4, 5))
    if chance.random() < 0.2:  # nobody is left for a while: what passes then is caught up or missed
        at_ms, gap_ms = chance.randrange(5_000, seconds * 400), chance.choice((20_000, 70_000))
        faults = [Fault(at_ms, FaultKind.CRASH, index, gap_ms) for index in range(instances)]
    return Plan(
        instances=instances,
        duration=timedelta(seconds=seconds),
        seed=seed,
        start=chance.choice(DAYS + NIGHTS),
        faults=faults,
        settle=SETTLE,
        handler_s=chance.choice(((0.1, 2.0), (0.1, 9.0), (3.0, 14.0))),
        skews_ms=chance.choice(((), (90_000.0,), (-90_000.0, 0.0, 4_000.0))),
    )


def random_plans(first: int, count: int) -> Iterator[Plan]:
    """Return the plans of consecutive seeds."""
    return (random_plan(seed) for seed in range(first, first + count))
