"""What a call does to a job, as pure functions: the lease's rules, of which the bucket makes one compare-and-set (C3).

Each gets what the key holds and the server's time, and gives the answer and the job as it is to be written, or None.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from anarchon.types import ATTEMPTS_MAX, Claim, ClaimRequest, Outcome, RunKey, RunResult, RunStatus

from anarchon_nats.jobstate import Chunk, JobState, Run
from anarchon_nats.names import plain, run_of

__all__ = ["Release", "claim", "finish", "pause", "release", "renew"]

FREED_MS = 1_000
"""How far back the end of a delay of nothing lies, so that it has passed by everybody's reading of the server's clock."""


def claim(job: JobState | None, request: ClaimRequest, *, now_ms: int, archived: Run | None) -> tuple[Claim, JobState | None]:
    """Decide a claim: an existing run first, then the rules for a fresh one; a job to write, or None."""
    run = archived or (job.get(request.key) if job else None)
    if run is not None and job is not None:
        answer, changed = _again(job, run, request, now_ms)
    else:
        answer, job = _fresh(job, request, now_ms)
        changed = answer.won
    if job is not None and request.info and job.info != plain(request.info):
        answer, changed = replace(answer, other_info=job.info or None), True
        job.info = plain(request.info)
    return replace(answer, store_now_ms=now_ms), job if changed else None


def _again(job: JobState, run: Run, request: ClaimRequest, now_ms: int) -> tuple[Claim, bool]:
    if run.token == request.token and run.status is RunStatus.RUNNING:  # C4
        run.last(now_ms, request.lease_ms)
        return Claim(Outcome.WON, run.attempt), True
    if run.status.final:  # C18
        return Claim(Outcome.DONE, winner=run.instance), False
    if run.alive(now_ms):
        return Claim(Outcome.RUNNING, left_ms=max(1, run.end_ms - now_ms), winner=run.instance), False
    crashed = run.status is RunStatus.RUNNING
    if run.attempt - run.uncounted >= request.attempt_limit or run.attempt >= ATTEMPTS_MAX:  # C13
        if crashed:
            run.close(RunStatus.INTERRUPTED, now_ms)
        run.status, run.token = RunStatus.INTERRUPTED, None
        job.end(run)
        return Claim(Outcome.DONE, winner=run.instance), True
    if crashed:
        run.close(RunStatus.LOST, now_ms)
    previous = run.instance
    run.attempt += 1  # C8, C12
    _prune(job, request, now_ms)
    _grant(run, request, now_ms)
    return Claim(Outcome.WON, run.attempt, winner=previous), True


def _fresh(job: JobState | None, request: ClaimRequest, now_ms: int) -> tuple[Claim, JobState | None]:
    key = request.key
    if job and job.floor_ms is not None and key.slot_ms <= job.floor_ms:  # C6
        return Claim(Outcome.LATE), job
    if not (key.manual or key.note):
        if key.slot_ms > now_ms:  # C9
            return Claim(Outcome.EARLY, wait_ms=key.slot_ms - now_ms), job
        if now_ms - key.slot_ms > request.max_late_ms:
            return Claim(Outcome.LATE), job
        if job and job.paused_ms is not None:  # C10
            return Claim(Outcome.PAUSED), job
    if job and request.exclusive and not key.note:  # C10
        for other in job.live.values():
            if not other.key.note and other.alive(now_ms):
                left_ms = max(1, other.end_ms - now_ms)
                return Claim(Outcome.OVERLAP, left_ms=left_ms, other=other.key, winner=other.instance), job
    job = job or JobState(key.job, now_ms, info=plain(request.info))
    run = job.live[run_of(key)] = Run(key, RunStatus.RUNNING, 1, 0, None, None, 0, "")
    _grant(run, request, now_ms)
    _prune(job, request, now_ms)
    return Claim(Outcome.WON, 1), job


def _grant(run: Run, request: ClaimRequest, now_ms: int) -> None:
    run.status, run.token, run.instance = RunStatus.RUNNING, request.token, plain(request.instance)
    run.last(now_ms, request.lease_ms)
    # Two instances know the server's time within some milliseconds: no attempt was claimed before the one before it (C19).
    claimed_ms = max(now_ms, run.records[-1][4]) if run.records else now_ms
    claimed = str(RunStatus.RUNNING), claimed_ms, None, None
    run.records.append([run.attempt, request.token, run.instance, *claimed])  # C19


def _prune(job: JobState, request: ClaimRequest, now_ms: int) -> None:
    """Forget what is old and beyond the history limits, oldest first, and raise the floor (C6, C20).

    A chunk goes as a whole, once each of its runs may.
    """
    runs = len(job.live) + len(job.final) + sum(chunk.count for chunk in job.chunks)
    if runs <= request.history_size and request.history_ttl_ms is None:
        return
    ended = job.ended()
    slots = [slot_ms for slot_ms, _ in ended] + [run.key.slot_ms for run in job.live.values()]
    for chunk in sorted(job.chunks, key=lambda each: each.high_ms):
        if not _old(chunk.high_ms, _newer(chunk.high_ms, slots, job.chunks), request, now_ms):
            return
        job.chunks.remove(chunk)
        job.floor_ms = max(chunk.high_ms, job.floor_ms or chunk.high_ms)
    for slot_ms, name in ended:
        if not _old(slot_ms, _newer(slot_ms, slots, job.chunks), request, now_ms):
            return
        del job.final[name]
        job.floor_ms = max(slot_ms, job.floor_ms or slot_ms)


def _newer(slot_ms: int, slots: Iterable[int], chunks: Iterable[Chunk]) -> int:
    return sum(slot > slot_ms for slot in slots) + sum(chunk.count for chunk in chunks if chunk.low_ms > slot_ms)


def _old(slot_ms: int, newer: int, request: ClaimRequest, now_ms: int) -> bool:
    if slot_ms >= now_ms - request.keep_ms:
        return False
    ttl_ms = request.history_ttl_ms
    return newer >= request.history_size or (ttl_ms is not None and now_ms - slot_ms > ttl_ms)


def _held(job: JobState | None, key: RunKey, token: str) -> Run | None:
    run = job.live.get(run_of(key)) if job else None
    return run if run and run.token == token and run.status is RunStatus.RUNNING else None  # C15


def renew(job: JobState | None, key: RunKey, token: str, *, lease_ms: int, now_ms: int) -> tuple[bool, JobState | None]:
    """Move the lease end of a held run (C14)."""
    run = _held(job, key, token)
    if run is None:
        return False, None
    run.last(now_ms, lease_ms)
    return True, job


@dataclass(frozen=True, slots=True)
class Release:
    """How a run is given back (C16)."""

    delay_ms: int
    counted: bool
    error: str | None


def release(job: JobState | None, key: RunKey, token: str, *, how: Release, now_ms: int) -> tuple[bool, JobState | None]:
    """Take the token off a held run (C16)."""
    run = _held(job, key, token)
    if run is None:
        return False, None
    status = RunStatus.FAILED if how.counted else RunStatus.HANDED_OVER
    run.close(status, now_ms, plain(how.error) or None)
    run.status, run.token = RunStatus.HANDED_OVER, None
    run.last(now_ms, how.delay_ms or -FREED_MS)
    run.uncounted += not how.counted
    return True, job


def finish(
    job: JobState | None, key: RunKey, token: str, *, result: RunResult, now_ms: int, archived: Run | None
) -> tuple[bool, JobState | None]:
    """End a held run for good (C18)."""
    run = _held(job, key, token)
    if run is not None and job is not None:
        run.close(result.status, now_ms, plain(result.error) or None)
        run.status, run.token, run.finisher = result.status, None, token
        job.end(run)
        return True, job
    known = archived or (job.get(key) if job else None)
    return known is not None and known.finisher == token, None


def pause(job: JobState | None, name: str, *, paused: bool, now_ms: int) -> tuple[None, JobState | None]:
    """Pause or resume a job; it need not have run yet (C10)."""
    known = job is not None
    job = job or JobState(name, now_ms)
    if paused == (job.paused_ms is not None):
        return None, None if known else job
    job.paused_ms, job.resumed_ms = (now_ms, job.resumed_ms) if paused else (None, now_ms)
    return None, job
