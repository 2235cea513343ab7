"""Why a slot ran or did not, in one or two sentences, from what the store recorded (K13)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from anarchon.errors import ScheduleError
from anarchon.schedule import Schedule, parse
from anarchon.store import Store
from anarchon.types import SLOT, JobView, RunKey, RunRecord, RunStatus, RunView

__all__ = ["Facts", "Verdict", "Why", "explain", "why"]

RECORDS_MAX = 10_000
SETTLE_MS = 5_000
STORY_MAX = 3
"""The most earlier attempts that an answer tells of."""
SLOT_NAMED = re.compile(r"\bslot (\d{12,14})\b")


class Verdict(StrEnum):
    """The kinds of answers."""

    RAN = "ran"
    FAILED = "failed"
    RUNNING = "running"
    WAITING = "waiting"
    INTERRUPTED = "interrupted"
    SKIPPED = "skipped"
    MISSED = "missed"
    NOT_DUE = "not_due"
    NO_SUCH_SLOT = "no_such_slot"
    FORGOTTEN = "forgotten"
    UNKNOWN_JOB = "unknown_job"
    PAUSED = "paused"
    UNACCOUNTED = "unaccounted"


@dataclass(frozen=True, slots=True)
class Why:
    """An answer: its kind, and the sentences for people."""

    verdict: Verdict
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known about a slot. `records` are its attempts and its note, `known` whether the job has any history."""

    job: str
    slot_ms: int
    now_ms: int
    records: Sequence[RunRecord]
    view: RunView | None = None
    job_view: JobView | None = None
    schedule: Schedule | None = None
    known: bool = True
    sees_death: bool = True


async def why(store: Store, job: str, slot_ms: int, *, schedule: Schedule | None = None) -> Why:
    """Ask the store about a slot and explain what it says; without a schedule the one kept in the store is used.

    Raises:
        BackendError: the store did not answer.
    """
    records = await store.history(job, limit=RECORDS_MAX, since_ms=slot_ms)
    view, job_view = None, None
    if store.lease is not None:
        view = (await store.check([RunKey(job, slot_ms)]))[0]
        job_view = next((each for each in await store.jobs() if each.job == job), None)
        if schedule is None and job_view is not None:
            schedule = _kept_schedule(job_view.info)
    known = bool(records) or job_view is not None or bool(await store.history(job, limit=1))
    facts = Facts(
        job=job,
        slot_ms=slot_ms,
        now_ms=int(store.time.now_ms()),
        records=[record for record in records if record.slot_ms == slot_ms],
        view=view,
        job_view=job_view,
        schedule=schedule,
        known=known,
        sees_death=store.lease is not None,
    )
    return explain(facts)


def _kept_schedule(info: str) -> Schedule | None:
    try:
        facts = json.loads(info)
        return parse(facts["schedule"], facts.get("tz") or "UTC", facts.get("name"))
    except (ValueError, KeyError, TypeError, AttributeError, ScheduleError):
        return None  # a schedule of the user's own, or info of another version: it cannot be judged here


def explain(facts: Facts) -> Why:
    """Explain the facts of a slot: its runs first, then its note, then why there is neither."""
    runs = sorted((r for r in facts.records if r.space == SLOT), key=lambda record: record.attempt)
    if runs:
        return _of_run(facts, runs)
    note = next((record for record in facts.records if record.key.note), None)
    if note is not None:
        return _of_note(note)
    return _of_nothing(facts)


def _of_run(facts: Facts, runs: list[RunRecord]) -> Why:
    last = runs[-1]
    story = _story(runs[:-1])
    late_s = (runs[0].claimed_ms - facts.slot_ms) / 1000
    where = f"attempt {last.attempt} on {last.instance}"
    match last.status:
        case RunStatus.SUCCESS:
            return Why(Verdict.RAN, f"It ran: {where}, claimed {late_s:.1f} s after its time, done in {_took(last)}.{story}")
        case RunStatus.FAILED | RunStatus.TIMEOUT if facts.view is None or facts.view.status.final:
            return Why(Verdict.FAILED, f"It ran and ended as {last.status}: {where}, {last.error or 'no reason given'}.{story}")
        case RunStatus.INTERRUPTED:
            return Why(Verdict.INTERRUPTED, f"It was begun and never finished: {where} was the last one allowed.{story}")
        case _ if facts.view is not None and facts.view.status is RunStatus.INTERRUPTED:
            text = f"It was begun and never finished: {where} {_ending(last)}, and no attempt was left.{story}"
            return Why(Verdict.INTERRUPTED, text)
        case RunStatus.RUNNING if not facts.sees_death:
            return Why(
                Verdict.RUNNING,
                f"It was won by {last.instance}, which has not reported an end; this store cannot tell whether it lives.",
            )
        case RunStatus.RUNNING:
            left_ms = facts.view.left_ms if facts.view else 0
            state = (
                f"its lease holds for {left_ms / 1000:.1f} s more"
                if left_ms > 0
                else "its lease has ended and any instance may take it over"
            )
            return Why(Verdict.RUNNING, f"It is running: {where} since {_time(last.claimed_ms)}, {state}.{story}")
        case _:
            left_ms = facts.view.left_ms if facts.view else 0
            when = f"in {left_ms / 1000:.1f} s" if left_ms > 0 else "now"
            text = f"It waits for its next attempt, which any instance may claim {when}: {where} {_ending(last)}.{story}"
            return Why(Verdict.WAITING, text)


def _story(runs: list[RunRecord]) -> str:
    """Tell of the attempts before the last one in one sentence; of many only the newest."""
    if not runs:
        return ""
    told = "; ".join(f"attempt {run.attempt} on {run.instance} {_ending(run)}" for run in runs[-STORY_MAX:])
    more = f" {len(runs) - STORY_MAX} more before;" if len(runs) > STORY_MAX else ""
    return f" Before that:{more} {told}."


def _ending(run: RunRecord) -> str:
    match run.status:
        case RunStatus.LOST:
            return "stopped renewing its lease (crash, freeze or cut connection)"
        case RunStatus.HANDED_OVER:
            return "handed it over when it was stopped"
        case RunStatus.FAILED:
            return f"failed ({run.error})" if run.error else "failed"
        case _:
            return f"ended as {run.status}"


def _of_note(note: RunRecord) -> Why:
    verdict = Verdict.MISSED if note.status is RunStatus.MISSED else Verdict.SKIPPED
    if note.status is RunStatus.RUNNING:
        return Why(Verdict.SKIPPED, f"It did not run; {note.instance} was about to write down why.")
    word = "It was missed" if verdict is Verdict.MISSED else "It was skipped"
    # Records and logs name slots by their milliseconds, people read times.
    reason = SLOT_NAMED.sub(lambda found: f"slot {_time(int(found[1]))}", note.error or "no reason given")
    return Why(verdict, f"{word}: {reason}. Noted by {note.instance} at {_time(note.claimed_ms)}.")


def _of_nothing(facts: Facts) -> Why:
    view, slot_ms = facts.job_view, facts.slot_ms
    schedule = facts.schedule
    if schedule is not None and schedule.next_after(slot_ms - 1) != slot_ms:
        from anarchon.schedule import why_no_slot

        return Why(Verdict.NO_SUCH_SLOT, f"The schedule has no such slot: {why_no_slot(schedule, slot_ms)}")
    if slot_ms > facts.now_ms:
        return Why(Verdict.NOT_DUE, f"It is not due before {_time(slot_ms)}, in {(slot_ms - facts.now_ms) / 1000:.0f} s.")
    if not facts.known:
        return Why(Verdict.UNKNOWN_JOB, f"The store has never seen a job {facts.job!r}.")
    if view is not None and view.floor_ms is not None and slot_ms <= view.floor_ms:
        text = f"The store has forgotten it: the history of this job goes back to {_time(view.floor_ms)}; raise history_size."
        return Why(Verdict.FORGOTTEN, text)
    if view is not None and slot_ms < view.first_ms:
        return Why(Verdict.UNKNOWN_JOB, f"The store saw this job for the first time at {_time(view.first_ms)}, after that slot.")
    if view is not None and view.paused_ms is not None and slot_ms >= view.paused_ms:
        return Why(Verdict.PAUSED, f"The job has been paused since {_time(view.paused_ms)}.")
    if facts.now_ms - slot_ms < SETTLE_MS:
        return Why(Verdict.NOT_DUE, "It is due just now: no instance has claimed it yet (jitter spreads the claims).")
    text = "It has neither a run nor a note: no instance that holds this job was running, or none could reach the store."
    return Why(Verdict.UNACCOUNTED, text)


def _took(run: RunRecord) -> str:
    return f"{((run.finished_ms or run.claimed_ms) - run.claimed_ms) / 1000:.1f} s"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
