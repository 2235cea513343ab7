"""The program of a worker process: a scheduler whose handlers write each start and end to a file of the worker's own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from anarchon import Run, RunStatus, Scheduler, hookimpl
from anarchon.errors import SchedulerStateError
from anarchon.types import RunKey

__all__ = ["Entry", "JobPlan", "Journal", "Kind", "Plan", "build", "main", "now_ms"]


class Kind(StrEnum):
    """How a handler spends its time."""

    ASYNC = "async"
    SYNC = "sync"
    BLOCKING = "blocking"
    """An async handler that blocks its loop."""
    FORKS = "forks"
    """A sync handler that forks a child, which then waits for a signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """One job. Its slots are each `period_ms` from `begin_ms` on, or `begin_ms` alone.

    `durations_s` is how long the attempts take, the last one also for later attempts.
    """

    name: str = "job"
    begin_ms: int
    period_ms: int | None = None
    kind: Kind = Kind.ASYNC
    durations_s: tuple[float, ...] = (0.0,)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a worker does. `instance` None lets the scheduler name itself; `host` replaces the machine's name."""

    url: str
    journal: Path
    jobs: tuple[JobPlan, ...]
    instance: str | None = None
    host: str | None = None
    grace_s: float = 5.0
    max_running: int = 100


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a journal. `at_ms` is on the machine's monotonic clock, which all processes share."""

    what: str
    at_ms: float
    pid: int
    job: str = ""
    slot_ms: int = 0
    attempt: int = 0
    detail: str = ""


def now_ms() -> float:
    """Return the time of journals."""
    return time.monotonic_ns() / 1e6


class Journal:
    """A file of lines; each is one write, so that a killed worker leaves whole lines."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, what: str, run: Run | None = None, *, key: RunKey | None = None, attempt: int = 0, detail: str = "") -> None:
        key = run.key if run else key
        entry = Entry(
            what,
            now_ms(),
            os.getpid(),
            key.job if key else "",
            key.slot_ms if key else 0,
            run.attempt if run else attempt,
            detail,
        )
        os.write(self._file, (json.dumps(asdict(entry)) + "\n").encode())


class PlannedSlots:
    """The schedule of a `JobPlan`."""

    def __init__(self, plan: JobPlan) -> None:
        self._begin_ms, self._period_ms = plan.begin_ms, plan.period_ms

    def next_after(self, t_ms: int, /) -> int | None:
        if t_ms < self._begin_ms:
            return self._begin_ms
        if self._period_ms is None:
            return None
        return self._begin_ms + ((t_ms - self._begin_ms) // self._period_ms + 1) * self._period_ms

    @property
    def digest(self) -> str:
        return f"planned-{self._begin_ms}-{self._period_ms}"


class Reporter:
    """Writes what the scheduler tells its observers."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @hookimpl
    def anarchon_run_finished(self, key: RunKey, attempt: int, status: RunStatus, recorded: bool) -> None:
        self._journal.write("finished", key=key, attempt=attempt, detail=f"{status} {'recorded' if recorded else 'refused'}")

    @hookimpl
    def anarchon_run_released(self, key: RunKey, attempt: int, why: str) -> None:
        self._journal.write("released", key=key, attempt=attempt, detail=why)

    @hookimpl
    def anarchon_lease_lost(self, key: RunKey, attempt: int, why: str) -> None:
        self._journal.write("lost", key=key, attempt=attempt, detail=why)


def handler(plan: JobPlan, journal: Journal) -> Callable[[Run], Any]:
    """Make the handler of a job."""

    def duration_s(run: Run) -> float:
        return plan.durations_s[min(run.attempt, len(plan.durations_s)) - 1]

    def blocks(run: Run) -> None:
        journal.write("start", run)
        time.sleep(duration_s(run))
        journal.write("end", run)

    def forks(run: Run) -> None:
        child = os.fork()
        if child == 0:
            threading.Event().wait(60)
            os._exit(0)
        journal.write("start", run, detail=str(child))
        time.sleep(duration_s(run))
        _, status = os.waitpid(child, 0)
        journal.write("end", run, detail=str(status))

    async def waits(run: Run) -> None:
        journal.write("start", run)
        try:
            await asyncio.sleep(duration_s(run))
        except asyncio.CancelledError:
            journal.write("cancelled", run)
            raise
        journal.write("end", run)

    async def blocks_its_loop(run: Run) -> None:
        blocks(run)

    kinds: dict[Kind, Callable[[Run], None] | Callable[[Run], Coroutine[Any, Any, None]]] = {
        Kind.ASYNC: waits,
        Kind.SYNC: blocks,
        Kind.BLOCKING: blocks_its_loop,
        Kind.FORKS: forks,
    }
    return kinds[plan.kind]


def build(plan: Plan, journal: Journal) -> Scheduler:
    """Make the scheduler of a plan."""
    scheduler = Scheduler(
        plan.url,
        instance=plan.instance,
        grace=plan.grace_s,
        max_running=plan.max_running,
        plugins=[Reporter(journal)],
    )
    for job in plan.jobs:
        scheduler.add_job(handler(job, journal), PlannedSlots(job), name=job.name, **{"jitter": 0, **job.options})
    return scheduler


def tell_ready(scheduler: Scheduler, journal: Journal) -> None:
    """Write when the scheduler works: from then on it claims each slot at its time."""
    pause = threading.Event()
    while not pause.wait(0.01):
        with suppress(SchedulerStateError):
            if scheduler.health().ready:
                journal.write("ready")
                return


def main(plan: Plan) -> None:
    """Run until SIGTERM; the log goes to a file beside the journal."""
    logging.basicConfig(filename=plan.journal.with_suffix(".log"), level=logging.INFO, force=True)
    if plan.host is not None:
        host = plan.host
        socket.gethostname = lambda: host
    journal = Journal(plan.journal)
    scheduler = build(plan, journal)
    journal.write("up")
    threading.Thread(target=tell_ready, args=(scheduler, journal), daemon=True).start()
    scheduler.run()
    journal.write("down")
