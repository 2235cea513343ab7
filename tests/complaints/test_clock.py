"""Reports of clocks that step, drift, repeat seconds or tick coarsely; the id of each case names the public report."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from anarchon import Every
from anarchon.clock import Clock
from anarchon.engine import Engine
from anarchon.testing import Fault, FaultKind
from rig import START_MS, Grid, Lab, VirtualClock, Work, job_of, passes, virtual
from scenes import Scenario, fleet, instant_ms, played, runs_of, started_once

MINUTE_MS = 60_000


class BorrowedClock(Clock):
    """Another clock behind a fault of its own."""

    def __init__(self, inner: Clock) -> None:
        self.inner = inner

    def wall_ms(self) -> float:
        return self.inner.wall_ms()

    def monotonic_ms(self) -> float:
        return self.inner.monotonic_ms()

    async def sleep_ms(self, duration_ms: float) -> None:
        await self.inner.sleep_ms(duration_ms)

    async def wait(self, event: asyncio.Event, timeout_ms: float) -> bool:
        return await self.inner.wait(event, timeout_ms)

    def uniform_ms(self, most_ms: float) -> float:
        return self.inner.uniform_ms(most_ms)


class CoarseClock(BorrowedClock):
    """A clock of 64 ticks a second: time is read at the last tick, and sleepers wake at one."""

    TICK_MS = 15.625

    def wall_ms(self) -> float:
        return math.floor(self.inner.wall_ms() / self.TICK_MS) * self.TICK_MS

    def monotonic_ms(self) -> float:
        return math.floor(self.inner.monotonic_ms() / self.TICK_MS) * self.TICK_MS

    def _ticks_ms(self, duration_ms: float) -> float:
        end_ms = math.floor((self.inner.monotonic_ms() + duration_ms) / self.TICK_MS) * self.TICK_MS
        return max(0.5, end_ms - self.inner.monotonic_ms())  # cut to a tick: it may wake early

    async def sleep_ms(self, duration_ms: float) -> None:
        await self.inner.sleep_ms(self._ticks_ms(duration_ms))

    async def wait(self, event: asyncio.Event, timeout_ms: float) -> bool:
        return await self.inner.wait(event, self._ticks_ms(timeout_ms))


class ImpreciseTimer(BorrowedClock):
    """A timer that wakes up to 20 ms early, or 0.4 ms late when little is left."""

    async def wait(self, event: asyncio.Event, timeout_ms: float) -> bool:
        off_ms = -20.0 if timeout_ms > 40 else -0.3 if timeout_ms > 1 else 0.4
        return await self.inner.wait(event, timeout_ms + off_ms)


def on_clock(kind: type[BorrowedClock]) -> Any:
    """Return an engine maker that puts a fault before each instance's clock."""
    return lambda backend, clock, settings, **more: Engine(backend, kind(clock), settings, **more)


@virtual
async def two_minutes_back(lab: Lab) -> None:
    """The machine's clock goes back two minutes: the next slot of the store's clock runs, none repeats."""
    work = Work()
    instance = await lab.start(job_of(Grid(MINUTE_MS), work))
    await lab.at(2 * MINUTE_MS + 10_000)
    instance.clock.step(-2 * MINUTE_MS)
    await lab.at(5 * MINUTE_MS + 1_000)
    assert work.started == [(START_MS + n * MINUTE_MS, 1) for n in range(1, 6)]


def a_step_each_hour() -> None:
    """Steps of two seconds, back and forth, on every machine each hour of a day."""
    steps = [
        Fault(3_600_000 * hour + 500 * n, FaultKind.CLOCK_STEP, n, 0, 2_000.0 if hour % 2 else -2_000.0)
        for hour in range(1, 24)
        for n in range(2)
    ]
    report = played(fleet("*/10 * * * *"), *steps, instances=2, seconds=86_400)
    assert len(runs_of(report)) >= 143
    assert set(runs_of(report).values()) == {1}


def around_the_minute() -> None:
    """Timers that wake early or late by a little, on machines that are ahead and behind by a little."""
    report = played(
        fleet("* * * * *", jitter=0), instances=3, seconds=1_200, skews_ms=(20.0, 0.4, -0.3), make_engine=on_clock(ImpreciseTimer)
    )
    assert len(runs_of(report)) >= 19
    assert set(runs_of(report).values()) == {1}


def leap_second() -> None:
    """The last second of 2016 comes twice on one fleet and is smeared over others: midnight and 04:00 run once."""
    repeated = [Fault(120_000, FaultKind.STORE_STEP, 0, 0, -1_000.0)]
    repeated += [Fault(120_000, FaultKind.CLOCK_STEP, n, 0, -1_000.0) for n in range(3)]
    smeared = [Fault(60_000 + 3_000 * k, FaultKind.CLOCK_STEP, n, 0, -25.0) for k in range(40) for n in range(3)]
    smeared += [Fault(60_000 + 3_000 * k, FaultKind.STORE_STEP, 0, 0, -25.0) for k in range(40)]
    for faults in (repeated, smeared):
        report = played(fleet("* * * * *", jitter=0), *faults, start="2016-12-31T23:58:00", seconds=260, handler_s=(0.05, 0.05))
        started_once(report, [instant_ms(f"2017-01-01T00:0{minute}:00") for minute in range(3)])
        assert set(runs_of(report).values()) == {1}


def an_hour_ahead() -> None:
    """One instance is an hour ahead: it takes nothing early, and the others run each slot at its time."""
    report = played(fleet("*/5 * * * *"), instances=3, seconds=1_800, skews_ms=(3_600_000.0,))
    started_once(report, [instant_ms("2027-01-15T10:00:00") + n * 300_000 for n in range(1, 6)])
    assert max(attempt.store_ms - attempt.key.slot_ms for attempt in report.attempts) < 5_000
    assert min(attempt.store_ms - attempt.key.slot_ms for attempt in report.attempts) >= 0


@virtual
async def back_with_a_new_process(lab: Lab) -> None:
    """Every clock goes back by two minutes and a new process starts in between: no evaluated minute is entered again."""
    work = Work()
    instance = await lab.start(job_of(Grid(MINUTE_MS), work))
    await lab.at(3 * MINUTE_MS + 10_000)
    lab.clock.step(-2 * MINUTE_MS)
    instance.clock.step(-2 * MINUTE_MS)
    await lab.start(job_of(Grid(MINUTE_MS), work), clock=VirtualClock(lab.clock.offset_ms))
    await passes(4 * MINUTE_MS)
    assert work.started == [(START_MS + n * MINUTE_MS, 1) for n in range(1, 6)]


def coarse_ticks() -> None:
    """Clocks of 15.6 ms granularity: nothing is left out, nothing doubled, and nobody spins."""
    report = played(
        fleet(Every(seconds=1), jitter=0), instances=3, seconds=120, handler_s=(0.01, 0.01), make_engine=on_clock(CoarseClock)
    )
    assert len(runs_of(report)) >= 119
    assert set(runs_of(report).values()) == {1}
    assert report.store_calls < 40 * report.slots


CASES = [
    pytest.param(two_minutes_back, id="agronholm/apscheduler#351"),
    pytest.param(two_minutes_back, id="agronholm/apscheduler#752"),
    pytest.param(a_step_each_hour, id="agronholm/apscheduler#339"),
    pytest.param(around_the_minute, id="taskiq-python/taskiq#296"),
    pytest.param(leap_second, id="kelektiv/node-cron#180"),
    pytest.param(an_hour_ahead, id="kagkarlsson/db-scheduler#364"),
    pytest.param(back_with_a_new_process, id="oban-py CHANGELOG 0.6.2"),
    pytest.param(coarse_ticks, id="nopSolutions/nopCommerce#8105"),
]


@pytest.mark.parametrize("scenario", CASES)
def test_clocks_neither_double_nor_lose(scenario: Scenario) -> None:
    scenario()
