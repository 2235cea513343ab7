"""Workers by pid: started from a warm fork server, ended whatever happens, and waited for with deadlines."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from anarchon.types import ClaimRequest, RunKey, RunRecord, RunResult, RunStatus, RunView, new_token
from anarchon_sqlite import SQLiteBackend
from stores.server import halt

from workers.program import Entry, JobPlan, Plan, main, now_ms

__all__ = ["DEADLINE_S", "Pack", "Pulse", "Worker", "eventually"]

DEADLINE_S = 30.0
POLL_S = 0.01
SEED = "long ago"
SEED_BEFORE_MS = 86_400_000

_context = multiprocessing.get_context("forkserver")
# The server has imported everything: a worker is up in some 20 ms, and what a test measures is not an import.
_context.set_forkserver_preload(["workers.program", "anarchon_sqlite"])


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait for a condition of other processes."""
    end, pause = time.monotonic() + timeout_s, threading.Event()
    while not condition():
        assert time.monotonic() < end, f"waited {timeout_s} s for: {what}"
        pause.wait(POLL_S)


class Worker:
    """One process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._process: BaseProcess = _context.Process(target=main, args=(plan,))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def signal(self, number: int) -> float:
        """Send a signal; return when."""
        at_ms = now_ms()
        if self.alive:
            os.kill(self.pid, number)
        return at_ms

    def terminate(self) -> float:
        """Ask for an orderly end; return when."""
        return self.signal(signal.SIGTERM)

    def kill(self) -> float:
        """End it at once; return when."""
        at_ms = self.signal(signal.SIGKILL)
        self.join()
        return at_ms

    def pause(self) -> None:
        """Let it stand still, and wait until it does."""
        if self.alive:
            halt(self.pid)

    def resume(self) -> float:
        """Let it go on; return when."""
        return self.signal(signal.SIGCONT)

    def join(self, timeout_s: float = DEADLINE_S) -> float:
        """Wait for the end; return when it was seen."""
        self._process.join(timeout_s)
        assert not self.alive, f"worker {self.pid} did not end within {timeout_s} s"
        return now_ms()

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def entries(self) -> list[Entry]:
        """Return what it has written so far."""
        try:
            lines = self.plan.journal.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [Entry(**json.loads(line)) for line in lines]

    def log(self) -> str:
        """Return its log."""
        return self.plan.journal.with_suffix(".log").read_text()


class Pack:
    """The workers on one SQLite file."""

    def __init__(self, folder: Path, name: str = "pack") -> None:
        self._folder = folder / name
        self._folder.mkdir()
        self.database = self._folder / "cron.db"
        self.workers: list[Worker] = []
        self._known: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self.workers:
            worker.kill()

    @property
    def url(self) -> str:
        return f"sqlite:///{self.database}"

    def start(self, *jobs: JobPlan, **options: Any) -> Worker:
        """Start a worker with these jobs."""
        if fresh := [job for job in jobs if job.name not in self._known]:
            self._know(fresh)
            self._known.update(job.name for job in fresh)
        journal = self._folder / f"worker-{len(self.workers)}.jsonl"
        worker = Worker(Plan(url=self.url, journal=journal, jobs=jobs, **options))
        self.workers.append(worker)
        return worker

    def up(self, *jobs: JobPlan, **options: Any) -> Worker:
        """Start a worker and wait until its program runs."""
        worker = self.start(*jobs, **options)
        eventually(lambda: any(entry.what == "up" for entry in worker.entries()), "the worker is up")
        return worker

    def ready(self, workers: Iterable[Worker] | None = None) -> int:
        """Wait until workers work; return the time in Unix milliseconds: later slots find them waiting."""
        waited = list(self.workers if workers is None else workers)
        for worker in waited:
            eventually(lambda w=worker: any(entry.what == "ready" for entry in w.entries()), "the worker works")  # type: ignore[misc]  # bound early
        return round(time.time() * 1000)

    def entries(self, what: str, job: str | None = None, workers: Iterable[Worker] | None = None) -> list[Entry]:
        """Return the entries of one kind of all workers, oldest first."""
        found = [entry for worker in workers or self.workers for entry in worker.entries()]
        found = [entry for entry in found if entry.what == what and (job is None or entry.job == job)]
        return sorted(found, key=lambda entry: entry.at_ms)

    def wait(self, what: str, count: int = 1, job: str | None = None, timeout_s: float = DEADLINE_S) -> list[Entry]:
        """Wait until there are so many entries of a kind."""
        eventually(lambda: len(self.entries(what, job)) >= count, f"{count} x {what} {job or ''}", timeout_s)
        return self.entries(what, job)

    def hold_until(self, at_ms: float) -> None:
        """Wait for a time of the journals' clock: a span that belongs to the case, not a wait for something to happen."""
        threading.Event().wait(max(0.0, at_ms - now_ms()) / 1000)

    def hold_for(self, duration_ms: float) -> None:
        """See `hold_until`."""
        self.hold_until(now_ms() + duration_ms)

    def history(self, job: str = "job") -> list[RunRecord]:
        """Return the attempts of a job from the store, oldest first."""
        records: list[RunRecord] = self._ask(lambda backend: backend.history(job, limit=100_000))
        return [record for record in reversed(records) if record.instance != SEED]

    def unfinished(self, *jobs: str) -> list[RunView]:
        """Return the runs of these jobs that are not final."""
        views: list[RunView] = self._ask(lambda backend: backend.unfinished(list(jobs) or ["job"]))
        return views

    def settled(self, *jobs: str) -> None:
        """Wait until no run of these jobs is unfinished."""
        eventually(lambda: self.unfinished(*jobs) == [], "every run is final")

    def _know(self, jobs: Iterable[JobPlan]) -> None:
        """Let the store know these jobs since long: a worker that comes up late on a busy machine then looks back."""

        async def seed(backend: Any) -> None:
            for job in jobs:
                key = RunKey(job.name, job.begin_ms - SEED_BEFORE_MS)
                request = ClaimRequest(key=key, token=new_token(), instance=SEED, max_late_ms=10**12)
                if (await backend.claim(request)).won:
                    await backend.finish(key, request.token, RunResult(RunStatus.SUCCESS))

        self._ask(seed)

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        async def ask() -> Any:
            backend = SQLiteBackend(self.database)
            await backend.open()
            try:
                return await question(backend)
            finally:
                await backend.close()

        return asyncio.run(ask())


class Pulse:
    """Measures how long this machine lets a process wait for its turn: what no scheduler can be blamed for."""

    def __init__(self) -> None:
        self.worst_ms = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def _beat(self) -> None:
        begun = now_ms()
        while not self._stop.wait(0.01):
            self.worst_ms = max(self.worst_ms, now_ms() - begun - 10)
            begun = now_ms()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def limit_ms(self, promised_ms: float) -> float:
        """Return a promised time with what the machine took from it: an engine, its store and a handler take turns."""
        return promised_ms + 4 * self.worst_ms
