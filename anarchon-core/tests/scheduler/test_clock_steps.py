"""Steps of this machine's clock: no early run, no duplicate, no starvation; the store's time is learnt again."""

from __future__ import annotations

import pytest
from rig import START_MS, FaultyBackend, Grid, Lab, Work, job_of, passes, until, virtual

YEARS_MS = 10 * 366 * 86_400_000


@pytest.mark.parametrize("by_ms", [-YEARS_MS, YEARS_MS, -90_000, 90_000, -2_000, 2_000])
@virtual
async def test_c9_a_stepped_clock_runs_each_slot_once_at_its_time(lab: Lab, by_ms: int) -> None:
    work = Work()
    instance = await lab.start(job_of(Grid(10_000), work))
    await passes(25_000)
    instance.clock.step(by_ms)
    await passes(40_000)
    assert [slot - START_MS for slot, _ in work.started] == [10_000, 20_000, 30_000, 40_000, 50_000, 60_000]
    late = [event.facts["late_ms"] for event in lab.tape.of("run_started")]
    assert all(0 <= each <= 50 for each in late)


@pytest.mark.parametrize("skew_ms", [-YEARS_MS, YEARS_MS, -90_000, 90_000])
@virtual
async def test_c9_an_instance_with_a_wrong_clock_runs_each_slot_once_at_its_time(lab: Lab, skew_ms: int) -> None:
    from rig import VirtualClock

    work = Work()
    await lab.start(job_of(Grid(10_000), work), clock=VirtualClock(START_MS + skew_ms))
    await passes(35_000)
    assert [slot - START_MS for slot, _ in work.started] == [10_000, 20_000, 30_000]


@virtual
async def test_a_step_while_the_store_is_away_is_measured_once_it_is_back(lab: Lab) -> None:
    work = Work()
    backend = FaultyBackend(lab.store)
    instance = await lab.start(job_of(Grid(60_000), work), backend=backend)
    backend.down = True
    instance.clock.step(YEARS_MS)
    await passes(12_000)
    backend.down = False
    await passes(12_000)
    assert instance.engine.store.time.measured
    assert not instance.engine.store.time.stepped()
    await until(lambda: bool(work.started), "the slot runs")
    assert work.started == [(START_MS + 60_000, 1)]


@virtual
async def test_k8_a_quiet_clock_is_not_asked_for(lab: Lab) -> None:
    instance = await lab.start(job_of(Grid(3_600_000)))
    await passes(1_000)
    before = len(instance.backend.calls)
    await passes(600_000)
    assert instance.backend.calls[before:] == []
