"""Runs that somebody asks for, outside the schedule."""

from __future__ import annotations

import secrets
from dataclasses import replace

from anarchon.attempt import Grant
from anarchon.engine import Engine
from anarchon.errors import BackendError, JobRunning
from anarchon.job import Job
from anarchon.types import MANUAL, Outcome, RunKey, RunRecord, RunStatus

__all__ = ["run_now"]

RECORDS_MAX = 20


async def run_now(engine: Engine, job: Job, *, wait: bool, force: bool) -> RunRecord:
    """Run a job on this instance now, in a key space of its own: never early, late or paused.

    Returns the record of the attempt: finished with `wait`, else running.

    Raises:
        JobRunning: the job refuses overlap, another run of it is alive, and `force` is not set.
        BackendError: the store did not answer.
    """
    key = RunKey(job.name, int(engine.store.time.now_ms()), MANUAL + secrets.token_hex(6))
    claim, grant = await engine.runner.manual(job, key, force=force)
    if claim.outcome is Outcome.OVERLAP:
        which = f" (slot {claim.other.slot_ms}, {claim.winner})" if claim.other else ""
        msg = f"{job.name} is running already{which}; wait for it, or force it"
        raise JobRunning(msg)
    if grant is None:
        msg = f"{job.name} could not be started: the store answered {claim.outcome}"
        raise BackendError(msg)
    claimed_ms = claim.store_now_ms or key.slot_ms
    record = RunRecord(
        key.job, key.slot_ms, key.space, claim.attempt, grant.run.token, grant.run.instance, RunStatus.RUNNING, claimed_ms
    )
    engine.spawn(engine.attempts.carry_out(grant))
    if not wait:
        return record
    await grant.ended.wait()
    return await _outcome(engine, grant, record)


async def _outcome(engine: Engine, grant: Grant, record: RunRecord) -> RunRecord:
    if grant.recorded:
        try:
            for stored in await engine.store.history(record.job, limit=RECORDS_MAX, since_ms=record.slot_ms):
                if stored.token == record.token:
                    return stored
        except BackendError:
            pass  # the run has ended all the same; what this instance knows of it is returned
    status = grant.result.status if grant.result else RunStatus.LOST
    finished_ms = int(engine.store.time.now_ms())
    return replace(record, status=status, finished_ms=finished_ms, error=grant.result.error if grant.result else None)
