"""Many jobs cost what one costs, times their number: counted in evaluations and look-ups, not in seconds."""

from __future__ import annotations

import pytest
from anarchon import Scheduler
from anarchon.job import Job
from anarchon.memory import MemoryBackend
from anarchon.types import RunKey
from rig import START_MS, Grid, Lab, job_of, nothing, virtual


@virtual
async def test_a_start_evaluates_each_schedule_once_however_many_jobs_share_it(lab: Lab) -> None:
    asked: list[int] = []

    class Counted(Grid):
        def next_after(self, t_ms: int, /) -> int | None:
            asked.append(t_ms)
            return super().next_after(t_ms)

    lab.won(RunKey("job-0", START_MS), lease_ms=1)
    await lab.at(30_000)
    await lab.start(*(job_of(Counted(10_000), name=f"job-{number}") for number in range(300)))
    assert len(asked) < 30


def test_adding_a_job_does_not_look_at_all_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def names(job: Job) -> tuple[str, ...]:
        looked.append(job.name)
        return (*job.was, job.name)

    monkeypatch.setattr(Job, "names", property(names))
    scheduler = Scheduler(backend=MemoryBackend())
    for number in range(200):
        scheduler.add_job(nothing, Grid(1_000), name=f"job-{number}")
    assert len(looked) <= 600


def test_a_removed_jobs_names_are_free_again() -> None:
    scheduler = Scheduler(backend=MemoryBackend())
    scheduler.add_job(nothing, Grid(1_000), name="a", was="b")
    scheduler.remove_job("a")
    scheduler.add_job(nothing, Grid(1_000), name="b")
    scheduler.add_job(nothing, Grid(1_000), name="a")
    assert set(scheduler.jobs) == {"a", "b"}
