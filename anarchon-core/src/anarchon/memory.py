"""The reference backend: one process, no store, every clause in plain Python. Read it first when you write your own.

`MemoryStore` plays the server: each of its methods is one atomic step on its own clock. `MemoryBackend` plays the
driver. Backends with the same URL share a store for as long as one of them exists.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self
from weakref import WeakValueDictionary

from anarchon.backend import CONTRACT_VERSION, LeaseBackend
from anarchon.clock import Clock, SystemClock
from anarchon.hookspecs import hookimpl
from anarchon.types import (
    ATTEMPTS_MAX,
    Claim,
    ClaimRequest,
    JobView,
    Limits,
    Outcome,
    RunKey,
    RunRecord,
    RunResult,
    RunStatus,
    RunView,
)
from anarchon.url import BackendUrl

__all__ = ["CONTRACT_VERSION", "MemoryBackend", "MemoryStore", "anarchon_backend"]


@dataclass(slots=True)
class _Run:
    key: RunKey
    token: str | None
    lease_end_ms: int
    instance: str
    attempt: int = 1
    uncounted: int = 0
    status: RunStatus = RunStatus.RUNNING
    finisher: str | None = None
    records: list[RunRecord] = field(default_factory=list)

    def alive(self, now_ms: int) -> bool:
        # C11: a lease that ends now is alive; C16: a release delay that ends now has passed.
        return now_ms < self.lease_end_ms or (self.status is RunStatus.RUNNING and now_ms == self.lease_end_ms)

    def close_record(self, status: RunStatus, now_ms: int, error: str | None = None) -> None:
        self.records[-1] = replace(self.records[-1], status=status, finished_ms=now_ms, error=error)


@dataclass(slots=True)
class _Job:
    first_ms: int
    info: str = ""
    paused_ms: int | None = None
    resumed_ms: int | None = None
    floor_ms: int | None = None
    runs: dict[RunKey, _Run] = field(default_factory=dict)


class MemoryStore:
    """The atomic steps of a lease store, on one clock, behind one lock."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """Return the store's clock."""
        return int(self._clock.wall_ms())

    def claim(self, request: ClaimRequest) -> Claim:
        """Decide a claim: an existing run first, then the rules for a fresh one."""
        with self._lock:
            now_ms = self.now_ms()  # C9, C11: the store's clock, read inside the step
            job = self._jobs.get(request.key.job)
            run = job.runs.get(request.key) if job else None
            claim = self._again(run, request, now_ms) if run else self._fresh(job, request, now_ms)
            job = self._jobs.get(request.key.job)
            if job and request.info and job.info != request.info:
                claim = replace(claim, other_info=job.info or None)
                job.info = request.info
            return replace(claim, store_now_ms=now_ms)

    def _again(self, run: _Run, request: ClaimRequest, now_ms: int) -> Claim:
        if run.token == request.token and run.status is RunStatus.RUNNING:  # C4
            run.lease_end_ms = now_ms + request.lease_ms
            return Claim(Outcome.WON, run.attempt)
        if run.status.final:  # C18
            return Claim(Outcome.DONE, winner=run.instance)
        if run.alive(now_ms):
            return Claim(Outcome.RUNNING, left_ms=run.lease_end_ms - now_ms, winner=run.instance)
        crashed = run.status is RunStatus.RUNNING
        if run.attempt - run.uncounted >= request.attempt_limit or run.attempt >= ATTEMPTS_MAX:  # C13
            if crashed:
                run.close_record(RunStatus.INTERRUPTED, now_ms)
            run.status, run.token = RunStatus.INTERRUPTED, None
            return Claim(Outcome.DONE, winner=run.instance)
        if crashed:
            run.close_record(RunStatus.LOST, now_ms)
        previous = run.instance
        run.attempt += 1  # C8, C12
        self._prune(self._jobs[run.key.job], request, now_ms)
        self._grant(run, request, now_ms)
        return Claim(Outcome.WON, run.attempt, winner=previous)

    def _fresh(self, job: _Job | None, request: ClaimRequest, now_ms: int) -> Claim:
        key = request.key
        if job and job.floor_ms is not None and key.slot_ms <= job.floor_ms:  # C6
            return Claim(Outcome.LATE)
        if not (key.manual or key.note):
            if key.slot_ms > now_ms:  # C9
                return Claim(Outcome.EARLY, wait_ms=key.slot_ms - now_ms)
            if now_ms - key.slot_ms > request.max_late_ms:
                return Claim(Outcome.LATE)
            if job and job.paused_ms is not None:  # C10
                return Claim(Outcome.PAUSED)
        if job and request.exclusive and not key.note:  # C10
            for other in job.runs.values():
                if not other.key.note and not other.status.final and other.alive(now_ms):
                    left_ms = other.lease_end_ms - now_ms
                    return Claim(Outcome.OVERLAP, left_ms=left_ms, other=other.key, winner=other.instance)
        job = self._jobs.setdefault(key.job, _Job(first_ms=now_ms, info=request.info))
        run = job.runs[key] = _Run(key, None, 0, "")
        self._grant(run, request, now_ms)
        self._prune(job, request, now_ms)
        return Claim(Outcome.WON, 1)

    def _grant(self, run: _Run, request: ClaimRequest, now_ms: int) -> None:
        run.status, run.token, run.instance = RunStatus.RUNNING, request.token, request.instance
        run.lease_end_ms = now_ms + request.lease_ms
        key = run.key
        run.records.append(  # C19
            RunRecord(key.job, key.slot_ms, key.space, run.attempt, request.token, request.instance, RunStatus.RUNNING, now_ms)
        )

    def _prune(self, job: _Job, request: ClaimRequest, now_ms: int) -> None:
        """Forget what is old and beyond the history limits, oldest first, and raise the floor (C6, C20)."""
        keys = sorted(job.runs, key=lambda key: key.slot_ms)
        surplus = len(keys) - request.history_size
        for place, key in enumerate(keys):
            if key.slot_ms >= now_ms - request.keep_ms:
                return
            expired = request.history_ttl_ms is not None and now_ms - key.slot_ms > request.history_ttl_ms
            if (place < surplus or expired) and job.runs[key].status.final:
                del job.runs[key]
                job.floor_ms = max(key.slot_ms, job.floor_ms or key.slot_ms)

    def _held(self, key: RunKey, token: str) -> _Run | None:
        job = self._jobs.get(key.job)
        run = job.runs.get(key) if job else None
        return run if run and run.token == token and run.status is RunStatus.RUNNING else None  # C15

    def renew(self, key: RunKey, token: str, lease_ms: int) -> bool:
        """Move the lease end of a held run (C14)."""
        with self._lock:
            run = self._held(key, token)
            if run:
                run.lease_end_ms = self.now_ms() + lease_ms
            return run is not None

    def release(self, key: RunKey, token: str, *, delay_ms: int, counted: bool, error: str | None) -> bool:
        """Take the token off a held run (C16)."""
        with self._lock:
            run = self._held(key, token)
            if not run:
                return False
            now_ms = self.now_ms()
            run.close_record(RunStatus.FAILED if counted else RunStatus.HANDED_OVER, now_ms, error)
            run.status, run.token, run.lease_end_ms = RunStatus.HANDED_OVER, None, now_ms + delay_ms
            run.uncounted += not counted
            return True

    def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        """End a held run for good (C18)."""
        with self._lock:
            run = self._held(key, token)
            if run:
                run.close_record(result.status, self.now_ms(), result.error)
                run.status, run.token, run.finisher = result.status, None, token
                return True
            job = self._jobs.get(key.job)
            known = job.runs.get(key) if job else None
            return known is not None and known.finisher == token

    def view(self, key: RunKey) -> RunView | None:
        """Look at a run (C17)."""
        with self._lock:
            job = self._jobs.get(key.job)
            run = job.runs.get(key) if job else None
            return self._view(run) if run else None

    def _view(self, run: _Run) -> RunView:
        now_ms = self.now_ms()
        left_ms = run.lease_end_ms - now_ms
        left_ms = max(1, left_ms) if run.alive(now_ms) else min(0, left_ms)
        return RunView(run.key, run.status, run.attempt, run.instance, left_ms)

    def unfinished(self, jobs: Sequence[str]) -> list[RunView]:
        """Return the runs of these jobs that are not final, oldest first (K12)."""
        with self._lock:
            runs = [run for name in jobs if name in self._jobs for run in self._jobs[name].runs.values()]
            views = [self._view(run) for run in runs if not run.status.final and not run.key.note]
            return sorted(views, key=lambda view: view.key.slot_ms)

    def history(self, job: str, limit: int, since_ms: int) -> list[RunRecord]:
        """Return the newest attempts of a job (C19)."""
        with self._lock:
            runs = self._jobs[job].runs.values() if job in self._jobs else ()
            records = [record for run in runs for record in run.records if record.slot_ms >= since_ms]
            records.sort(key=lambda record: (record.slot_ms, record.attempt, record.claimed_ms), reverse=True)
            return records[:limit]

    def jobs(self) -> list[JobView]:
        """Return every job seen."""
        with self._lock:
            return [
                JobView(name, job.first_ms, job.paused_ms, job.resumed_ms, job.floor_ms, job.info)
                for name, job in sorted(self._jobs.items())
            ]

    def set_paused(self, job: str, *, paused: bool) -> None:
        """Pause or resume a job; it need not have run yet."""
        with self._lock:
            now_ms = self.now_ms()
            entry = self._jobs.setdefault(job, _Job(first_ms=now_ms))
            if paused and entry.paused_ms is None:
                entry.paused_ms = now_ms
            elif not paused and entry.paused_ms is not None:
                entry.paused_ms, entry.resumed_ms = None, now_ms

    def forget(self, job: str) -> None:
        """Drop a job with all its runs."""
        with self._lock:
            self._jobs.pop(job, None)


_STORES: WeakValueDictionary[str, MemoryStore] = WeakValueDictionary()


class MemoryBackend(LeaseBackend):
    """A lease backend over a `MemoryStore`; shared by every backend of the same URL in this process."""

    limits = Limits(durable=False, notes=("runs live in this process only",))

    def __init__(self, store: MemoryStore | None = None) -> None:
        self._store = store or MemoryStore()

    @classmethod
    def from_url(cls, url: BackendUrl) -> Self:
        url.done()
        name = url.netloc + url.path
        store = _STORES.get(name)
        if store is None:
            store = _STORES[name] = MemoryStore()
        return cls(store)

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def close(self) -> None:
        """There is nothing to let go of; runs stay in the store."""

    async def claim(self, request: ClaimRequest) -> Claim:
        return self._store.claim(request)

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        return self._store.finish(key, token, result)

    async def renew(self, key: RunKey, token: str, lease_ms: int) -> bool:
        return self._store.renew(key, token, lease_ms)

    async def release(
        self, key: RunKey, token: str, *, delay_ms: int = 0, counted: bool = False, error: str | None = None
    ) -> bool:
        return self._store.release(key, token, delay_ms=delay_ms, counted=counted, error=error)

    async def check(self, keys: Sequence[RunKey]) -> list[RunView | None]:
        return [self._store.view(key) for key in keys]

    async def unfinished(self, jobs: Sequence[str]) -> list[RunView]:
        return self._store.unfinished(jobs)

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        return self._store.history(job, limit, since_ms)

    async def jobs(self) -> list[JobView]:
        return self._store.jobs()

    async def set_paused(self, job: str, paused: bool) -> None:  # noqa: FBT001 - see LeaseBackend
        self._store.set_paused(job, paused=paused)

    async def now_ms(self) -> int:
        return self._store.now_ms()

    async def forget(self, job: str) -> None:
        self._store.forget(job)


@hookimpl
def anarchon_backend(url: BackendUrl) -> MemoryBackend | None:
    """Serve `memory://`."""
    return MemoryBackend.from_url(url) if url.scheme == "memory" else None
