"""K8: no store call while no slot is open. Virtual time, calls counted at the backend's border."""

from __future__ import annotations

import pytest
from rig import START_MS, Grid, Lab, Work, job_of, virtual

HOUR_MS = 3_600_000


@pytest.mark.parametrize("duration_ms", [0, 200])
@virtual
async def test_k8_after_a_thousand_hourly_jobs_have_run_nothing_is_asked_until_the_next_hour(
    lab: Lab, duration_ms: float
) -> None:
    works = [Work(duration_ms=duration_ms) for _ in range(3)]
    for work in works:
        jobs = [job_of(Grid(HOUR_MS), work, name=f"job-{number:03}", jitter=number % 5) for number in range(1_000)]
        await lab.start(*jobs, max_running=1_000)
    await lab.at(HOUR_MS + 30_000)
    assert sum(len(work.ended) for work in works) == 1_000
    assert {entry for work in works for entry in work.started} == {(START_MS + HOUR_MS, 1)}
    before = [len(instance.backend.calls) for instance in lab.instances]
    await lab.at(HOUR_MS + 30_000 + 3_000_000)
    asked = [instance.backend.calls[count:] for instance, count in zip(lab.instances, before, strict=True)]
    assert asked == [[], [], []]
    assert [len(instance.engine.watch) for instance in lab.instances] == [0, 0, 0]


@virtual
async def test_k8_an_instance_that_only_starts_asks_a_fixed_number_of_times(lab: Lab) -> None:
    few = await lab.start(job_of(Grid(HOUR_MS)))
    many = await lab.start(*(job_of(Grid(HOUR_MS), name=f"job-{number}") for number in range(500)))
    await lab.at(60_000)
    assert few.backend.calls == many.backend.calls
    assert len(few.backend.calls) <= 6


@virtual
async def test_k8_a_refused_slot_is_closed_for_good(lab: Lab) -> None:
    instance = await lab.start(job_of(Grid(HOUR_MS)))
    lab.store.set_paused("job", paused=True)
    await lab.at(HOUR_MS + 10_000)
    before = len(instance.backend.calls)
    await lab.at(2 * HOUR_MS - 10_000)
    assert instance.backend.calls[before:] == []


@virtual
async def test_k8_claims_of_one_moment_travel_in_calls_of_a_hundred(lab: Lab) -> None:
    instance = await lab.start(*(job_of(Grid(HOUR_MS), name=f"job-{number:03}") for number in range(1_000)), max_running=1_000)
    await lab.at(HOUR_MS + 5_000)
    assert instance.backend.calls.count("claim") <= 2
    assert instance.backend.calls.count("claim_many") <= 22
    assert instance.backend.calls.count("finish") == 1_000
