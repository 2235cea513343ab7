"""The jobs of the demonstration, and what a worker writes about each handler call."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from anarchon.backend import LeaseBackend
from anarchon.clock import SystemClock
from anarchon.job import JobOptions
from anarchon.run import Run
from anarchon.schedule import Every, Schedule
from anarchon.scheduler import Scheduler

__all__ = ["JOBS", "LONG_JOB", "Entry", "Journal", "Tail", "add_jobs", "job_name"]

LONG_JOB = "report"
LEASE_S = 2.5


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A job of the demonstration: its schedule and how long its handler takes."""

    schedule: Schedule
    seconds: float


JOBS = {
    "tick": DemoJob(Every(seconds=1), 0.15),
    "mail": DemoJob(Every(seconds=2), 0.6),
    LONG_JOB: DemoJob(Every(seconds=5), 3.0),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a worker's own file: a handler began (`start`) or ended (`done`, `cancelled`), or the worker is `ready`."""

    event: str
    instance: str
    job: str = ""
    slot_ms: int = 0
    attempt: int = 0
    at_ms: int = 0


class Journal:
    """A file that a worker appends to, one write a line, so that a kill loses nothing that happened."""

    def __init__(self, path: Path, instance: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        self._instance = instance
        self._clock = SystemClock()

    def write(self, event: str, run: Run | None = None, job: str = "") -> None:
        """Append a line."""
        at_ms = int(self._clock.wall_ms())
        entry = Entry(event, self._instance, at_ms=at_ms)
        if run is not None:
            entry = Entry(event, self._instance, job, run.slot_ms, run.attempt, at_ms)
        os.write(self._file, (json.dumps(asdict(entry)) + "\n").encode())


class Tail:
    """Reads a journal as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def read_new(self) -> list[Entry]:
        """Return what was written since the last call; a line that is still being written waits for the next one."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return [Entry(**json.loads(line)) for line in whole.splitlines()]


def job_name(prefix: str, short: str) -> str:
    """Return the name of a demonstration's job: its own, so that two demonstrations can share a store."""
    return f"demo-{prefix}-{short}"


def add_jobs(scheduler: Scheduler, prefix: str, journal: Journal) -> None:
    """Add the jobs to a worker's scheduler; overlap is allowed, so that every slot runs."""
    options: JobOptions = {"jitter": 0.3, "overlap": "allow"}
    if isinstance(scheduler.backend, LeaseBackend):
        options |= {"lease": LEASE_S, "max_attempts": 20}
    for short, job in JOBS.items():
        scheduler.add_job(_handler(short, job.seconds, journal), job.schedule, name=job_name(prefix, short), **options)


def _handler(short: str, seconds: float, journal: Journal) -> Callable[..., object]:
    clock = SystemClock()

    async def handler(run: Run) -> None:
        journal.write("start", run, short)
        try:
            await clock.sleep_ms(seconds * 1000)
        except asyncio.CancelledError:
            journal.write("cancelled", run, short)
            raise
        journal.write("done", run, short)

    return handler
