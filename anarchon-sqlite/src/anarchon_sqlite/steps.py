"""What each call does inside its transaction: plain functions on a connection, no waiting, no loop.

The order of every decision is that of the claim contract; the reference in plain Python is `anarchon.memory`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Final

from anarchon.clock import Clock
from anarchon.errors import BackendError
from anarchon.types import (
    ATTEMPTS_MAX,
    Claim,
    ClaimRequest,
    JobView,
    Outcome,
    RunKey,
    RunRecord,
    RunResult,
    RunStatus,
    RunView,
)

from anarchon_sqlite.sql import Sql

__all__ = ["Steps"]

PRUNE_MOST: Final = 100
"""The most runs that one claim forgets; a winning claim adds one, so pruning keeps up and the lock is held briefly."""
WANTED_MOST: Final = 100
"""The most keys in one statement: three parameters each, far below the oldest limit of 999."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A row of the runs table."""

    id: int
    status: RunStatus
    attempt: int
    uncounted: int
    token: str | None
    finisher: str | None
    instance: str
    lease_end_ms: int

    def alive(self, now_ms: int) -> bool:
        return _alive(self.status, self.lease_end_ms, now_ms)


@dataclass(frozen=True, slots=True)
class _Job:
    """A row of the jobs table."""

    first_ms: int
    info: str
    paused_ms: int | None
    resumed_ms: int | None
    floor_ms: int | None
    run_count: int


def _alive(status: RunStatus, lease_end_ms: int, now_ms: int) -> bool:
    # C11: a lease that ends now is alive; C16: a release delay that ends now has passed.
    return now_ms < lease_end_ms or (status is RunStatus.RUNNING and now_ms == lease_end_ms)


def _view(key: RunKey, row: Sequence[object], now_ms: int) -> RunView:
    status_text, attempt, instance, lease_end_ms = row
    assert isinstance(attempt, int)
    assert isinstance(lease_end_ms, int)
    status = RunStatus(str(status_text))
    left_ms = lease_end_ms - now_ms
    left_ms = max(1, left_ms) if _alive(status, lease_end_ms, now_ms) else min(0, left_ms)
    return RunView(key, status, attempt, str(instance), left_ms)


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps, for one set of tables and one clock."""

    sql: Sql
    clock: Clock

    def now_ms(self) -> int:
        """Return the store's clock: that of the one machine that may use the file (C9, C11)."""
        return int(self.clock.wall_ms())

    def _run(self, db: sqlite3.Connection, key: RunKey) -> _Run | None:
        row = db.execute(self.sql.find_run, (key.job, key.slot_ms, key.space)).fetchone()
        return _Run(row[0], RunStatus(row[1]), *row[2:]) if row else None

    def _job(self, db: sqlite3.Connection, job: str) -> _Job | None:
        row = db.execute(self.sql.find_job, (job,)).fetchone()
        return _Job(*row) if row else None

    # -- claim ---------------------------------------------------------------------------------------------------------

    def peek(self, db: sqlite3.Connection, request: ClaimRequest) -> Claim | None:
        """Answer a claim that need not write: the run is final, or taken by another token and alive.

        What is read was true at one instant of this call, and final stays final, so no transaction is needed; all
        losers of a slot stay away from the write lock. None: ask under the lock.
        """
        run = self._run(db, request.key)
        if run is None or (run.token == request.token and run.status is RunStatus.RUNNING):
            return None
        job = self._job(db, request.key.job)
        if job is None or (request.info and job.info != request.info):
            return None
        now_ms = self.now_ms()
        return self._taken(run, now_ms)

    def peek_each(self, db: sqlite3.Connection, requests: Sequence[ClaimRequest]) -> list[Claim | None]:
        """Answer those of several claims that need not write."""
        answers: list[Claim | None] = []
        for request in requests:
            answer = None
            with suppress(OverflowError, UnicodeError):  # told apart under the lock, item by item
                answer = self.peek(db, request)
            answers.append(answer)
        return answers

    def _taken(self, run: _Run, now_ms: int) -> Claim | None:
        if run.status.final:  # C18
            return Claim(Outcome.DONE, store_now_ms=now_ms, winner=run.instance)
        if run.alive(now_ms):
            left_ms = run.lease_end_ms - now_ms
            return Claim(Outcome.RUNNING, store_now_ms=now_ms, left_ms=left_ms, winner=run.instance)
        return None

    def claim(self, db: sqlite3.Connection, request: ClaimRequest) -> Claim:
        """Decide a claim under the write lock: an existing run first, then the rules for a fresh one (C1-C13)."""
        now_ms = self.now_ms()  # C9, C11: read after the lock was got, however long that took
        job = self._job(db, request.key.job)
        run = self._run(db, request.key) if job else None
        claim = self._again(db, run, request, now_ms) if run else self._fresh(db, job, request, now_ms)
        if job and request.info and job.info != request.info:
            db.execute(self.sql.put_info, (request.info, request.key.job))
            claim = replace(claim, other_info=job.info or None)
        return replace(claim, store_now_ms=now_ms)

    def _again(self, db: sqlite3.Connection, run: _Run, request: ClaimRequest, now_ms: int) -> Claim:
        if run.token == request.token and run.status is RunStatus.RUNNING:  # C4
            db.execute(self.sql.extend, (now_ms + request.lease_ms, run.id))
            return Claim(Outcome.WON, run.attempt)
        taken = self._taken(run, now_ms)
        if taken is not None:
            return taken
        key, crashed = request.key, run.status is RunStatus.RUNNING
        if run.attempt - run.uncounted >= request.attempt_limit or run.attempt >= ATTEMPTS_MAX:  # C13
            if crashed:
                self._close(db, key, run.attempt, result=RunResult(RunStatus.INTERRUPTED), now_ms=now_ms)
            db.execute(self.sql.give_up, (run.id,))
            return Claim(Outcome.DONE, winner=run.instance)
        if crashed:
            self._close(db, key, run.attempt, result=RunResult(RunStatus.LOST), now_ms=now_ms)
        attempt = run.attempt + 1  # C8, C12
        self._prune(db, request, now_ms)
        db.execute(self.sql.take_over, (attempt, request.token, request.instance, now_ms + request.lease_ms, run.id))
        self._record(db, request, attempt, now_ms)
        return Claim(Outcome.WON, attempt, winner=run.instance)

    def _fresh(self, db: sqlite3.Connection, job: _Job | None, request: ClaimRequest, now_ms: int) -> Claim:
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
            other = db.execute(self.sql.find_overlap, {"job": key.job, "now": now_ms}).fetchone()
            if other:
                slot_ms, space, instance, lease_end_ms = other
                other_key = RunKey(key.job, slot_ms, space)
                return Claim(Outcome.OVERLAP, left_ms=lease_end_ms - now_ms, other=other_key, winner=instance)
        lease_end_ms = now_ms + request.lease_ms
        db.execute(self.sql.add_run, (key.job, key.slot_ms, key.space, request.token, request.instance, lease_end_ms))
        db.execute(self.sql.count_run, (key.job, now_ms, request.info))
        self._record(db, request, 1, now_ms)
        self._prune(db, request, now_ms)
        return Claim(Outcome.WON, 1)

    def _record(self, db: sqlite3.Connection, request: ClaimRequest, attempt: int, now_ms: int) -> None:
        key = request.key
        db.execute(  # C19
            self.sql.add_record, (key.job, key.slot_ms, key.space, attempt, request.token, request.instance, now_ms)
        )

    def _close(self, db: sqlite3.Connection, key: RunKey, attempt: int, *, result: RunResult, now_ms: int) -> None:
        db.execute(self.sql.close_record, (result.status, now_ms, result.error, key.job, key.slot_ms, key.space, attempt))

    def _prune(self, db: sqlite3.Connection, request: ClaimRequest, now_ms: int) -> None:
        """Forget what is old and beyond the history limits, oldest first, and raise the floor (C6, C20)."""
        name = request.key.job
        job = self._job(db, name)
        surplus = job.run_count - request.history_size if job else 0
        ttl_ms = request.history_ttl_ms
        if surplus <= 0 and ttl_ms is None:
            return
        gone: list[tuple[int, int, str]] = []
        with closing(db.execute(self.sql.find_old, (name, now_ms - request.keep_ms))) as rows:
            for place, (run_id, slot_ms, space, live) in enumerate(rows):
                expired = ttl_ms is not None and now_ms - slot_ms > ttl_ms
                if not (place < surplus or expired) or len(gone) == PRUNE_MOST:
                    break
                if not live:
                    gone.append((run_id, slot_ms, space))
        if not gone:
            return
        for run_id, slot_ms, space in gone:
            db.execute(self.sql.drop_run, (run_id,))
            db.execute(self.sql.drop_records, (name, slot_ms, space))
        floor_ms = gone[-1][1]
        db.execute(self.sql.raise_floor, (floor_ms, floor_ms, len(gone), name))

    def claim_each(self, db: sqlite3.Connection, requests: Sequence[ClaimRequest]) -> list[Claim | BackendError]:
        """Decide several claims in one transaction; one that cannot be written takes nothing else with it."""
        return [self._claim_one(db, request) for request in requests]

    def _claim_one(self, db: sqlite3.Connection, request: ClaimRequest) -> Claim | BackendError:
        db.execute("SAVEPOINT one")
        try:
            return self.claim(db, request)
        except (OverflowError, UnicodeError, sqlite3.IntegrityError, sqlite3.ProgrammingError) as error:
            db.execute("ROLLBACK TO one")
            return BackendError(f"the claim cannot be stored: {type(error).__name__}: {error}")
        finally:
            db.execute("RELEASE one")

    # -- lease and end -------------------------------------------------------------------------------------------------

    def _held(self, db: sqlite3.Connection, key: RunKey, token: str) -> _Run | None:
        run = self._run(db, key)
        return run if run and run.token == token and run.status is RunStatus.RUNNING else None  # C15

    def renew(self, db: sqlite3.Connection, items: Sequence[tuple[RunKey, str, int]]) -> list[bool]:
        """Move the lease ends of held runs (C14)."""
        now_ms = self.now_ms()
        return [
            db.execute(self.sql.renew, (now_ms + lease_ms, key.job, key.slot_ms, key.space, token)).rowcount == 1
            for key, token, lease_ms in items
        ]

    def release(
        self, db: sqlite3.Connection, key: RunKey, token: str, *, delay_ms: int, counted: bool, error: str | None
    ) -> bool:
        """Take the token off a held run (C16)."""
        run = self._held(db, key, token)
        if not run:
            return False
        now_ms = self.now_ms()
        status = RunStatus.FAILED if counted else RunStatus.HANDED_OVER
        self._close(db, key, run.attempt, result=RunResult(status, error), now_ms=now_ms)
        db.execute(self.sql.release, (now_ms + delay_ms, int(not counted), run.id))
        return True

    def holds(self, db: sqlite3.Connection, key: RunKey, token: str) -> bool:
        """Whether a token holds a running run."""
        return self._held(db, key, token) is not None

    def end(self, db: sqlite3.Connection, key: RunKey, token: str, result: RunResult) -> bool:
        """End a held run for good: the token, running, one row, or nothing (C15, C18)."""
        run = self._held(db, key, token)
        if not run:
            return False
        changed = db.execute(self.sql.finish, (result.status, int(not result.status.final), token, run.id, token)).rowcount
        self._close(db, key, run.attempt, result=result, now_ms=self.now_ms())
        return changed == 1

    def finish(self, db: sqlite3.Connection, key: RunKey, token: str, result: RunResult) -> bool:
        """End a held run, or say whether this token ended it before (C18)."""
        if self.end(db, key, token, result):
            return True
        run = self._run(db, key)
        return run is not None and run.finisher == token

    # -- reading -------------------------------------------------------------------------------------------------------

    def check(self, db: sqlite3.Connection, keys: Sequence[RunKey]) -> list[RunView | None]:
        """Look at runs: one statement for up to `WANTED_MOST` of them, no transaction (C17)."""
        views: list[RunView | None] = [None] * len(keys)
        for start in range(0, len(keys), WANTED_MOST):
            part = keys[start : start + WANTED_MOST]
            wanted = ", ".join(["(?, ?, ?, ?)"] * len(part))
            values = [value for place, key in enumerate(part, start) for value in (place, key.job, key.slot_ms, key.space)]
            now_ms = self.now_ms()  # before the read: a renewal between the two must not make a held run look free
            rows = db.execute(self.sql.check.format(wanted=wanted), values).fetchall()
            for place, *row in rows:
                views[place] = _view(keys[place], row, now_ms)
        return views

    def unfinished(self, db: sqlite3.Connection, jobs: Sequence[str]) -> list[RunView]:
        """Return the runs of these jobs that are not final, oldest slot first (K12)."""
        views: list[RunView] = []
        for start in range(0, len(jobs), WANTED_MOST):
            part = jobs[start : start + WANTED_MOST]
            wanted = ", ".join(["(?)"] * len(part))
            now_ms = self.now_ms()
            rows = db.execute(self.sql.unfinished.format(wanted=wanted), part).fetchall()
            views += [_view(RunKey(job, slot_ms, space), row, now_ms) for job, slot_ms, space, *row in rows]
        return sorted(views, key=lambda view: view.key.slot_ms)

    def history(self, db: sqlite3.Connection, job: str, limit: int, since_ms: int) -> list[RunRecord]:
        """Return the newest attempts of a job (C19)."""
        rows = db.execute(self.sql.history_of, (job, since_ms, max(0, limit))).fetchall()
        return [
            RunRecord(job, slot_ms, space, attempt, token, instance, RunStatus(status), claimed_ms, finished_ms, error)
            for job, slot_ms, space, attempt, token, instance, status, claimed_ms, finished_ms, error in rows
        ]

    def jobs(self, db: sqlite3.Connection) -> list[JobView]:
        """Return every job seen."""
        return [JobView(*row) for row in db.execute(self.sql.all_jobs).fetchall()]

    def look(self, db: sqlite3.Connection) -> int:
        """Read one row of the file, and return the store's clock."""
        db.execute(self.sql.get_version).fetchone()
        return self.now_ms()

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def set_paused(self, db: sqlite3.Connection, job: str, *, paused: bool) -> None:
        """Pause or resume a job; it need not have run yet (C10)."""
        now_ms = self.now_ms()
        db.execute(self.sql.add_job, (job, now_ms))
        db.execute(self.sql.pause if paused else self.sql.resume, (now_ms, job))

    def forget(self, db: sqlite3.Connection, job: str) -> None:
        """Drop a job with all its runs."""
        for statement in (self.sql.forget_runs, self.sql.forget_history, self.sql.forget_job):
            db.execute(statement, (job,))
