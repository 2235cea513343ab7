"""Every reason that `why` knows, as facts: what the tests judge and what the page shows is the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from anarchon.schedule import Cron
from anarchon.types import NOTE, SLOT, JobView, RunKey, RunRecord, RunStatus, RunView
from anarchon.why import Facts, Verdict

__all__ = ["DAY_MS", "JOB", "REASONS", "SLOT_MS", "Reason", "at_ms", "attempt", "facts", "note"]

JOB = "nightly-report"
DAY_MS = 86_400_000


def at_ms(text: str) -> int:
    """Return an instant of UTC as Unix milliseconds."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


SLOT_MS = at_ms("2027-01-15T02:00:00")
NIGHTLY = Cron("0 3 * * *", "Europe/Berlin")


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason: its name on the page, the facts, the verdict, and whether a claim-only backend can tell it.

    `claim_only` is a remark for the page; empty = it can tell this exactly as a lease backend does.
    """

    name: str
    facts: Facts
    verdict: Verdict
    claim_only: str = ""


def attempt(number: int, status: RunStatus, instance: str, **more: object) -> RunRecord:
    """Return an attempt of the slot; `claimed` and `took` are seconds, `claimed` counted from the slot."""
    claimed_ms = SLOT_MS + int(float(str(more.get("claimed", 1.2))) * 1000)
    took = more.get("took")
    finished_ms = None if took is None else claimed_ms + int(float(str(took)) * 1000)
    error = None if more.get("error") is None else str(more["error"])
    return RunRecord(JOB, SLOT_MS, SLOT, number, f"token{number}", instance, status, claimed_ms, finished_ms, error)


def note(status: RunStatus, reason: str | None, *, after_s: float = 1.5) -> RunRecord:
    """Return the note of the slot."""
    claimed_ms = SLOT_MS + int(after_s * 1000)
    return RunRecord(JOB, SLOT_MS, NOTE, 1, "token", "web-2", status, claimed_ms, claimed_ms + 5, reason)


def facts(*records: RunRecord, after_s: float = 60, **more: object) -> Facts:
    """Return what is known about the slot some seconds after it."""
    base = Facts(job=JOB, slot_ms=SLOT_MS, now_ms=SLOT_MS + int(after_s * 1000), records=records, schedule=NIGHTLY)
    return replace(base, **more)  # type: ignore[arg-type]  # the fields are checked by the dataclass


def view(status: RunStatus, number: int, left_s: float) -> RunView:
    """Return the run of the slot as a backup sees it."""
    return RunView(RunKey(JOB, SLOT_MS), status, number, "web-1", int(left_s * 1000))


def job(**more: int | None) -> JobView:
    """Return what the store keeps about the job."""
    return replace(JobView(JOB, first_ms=SLOT_MS - 30 * DAY_MS), **more)  # type: ignore[arg-type]  # as above


def _ran() -> Iterator[Reason]:
    done, running, lost = RunStatus.SUCCESS, RunStatus.RUNNING, RunStatus.LOST
    no_death = 'says "won": it cannot see whether the winner lives'
    yield Reason("won and done", facts(attempt(1, done, "web-1", took=41)), Verdict.RAN)
    taken = (attempt(1, lost, "web-1"), attempt(2, done, "web-2", claimed=33.4, took=40))
    yield Reason("done after a takeover", facts(*taken), Verdict.RAN, "never: nobody takes over")
    over = (attempt(1, RunStatus.HANDED_OVER, "web-1", took=20), attempt(2, done, "web-3", claimed=21.5, took=40))
    yield Reason("done after a hand-over", facts(*over), Verdict.RAN, "never: nothing is handed over")
    here = facts(attempt(1, running, "web-1"), after_s=12, view=view(running, 1, 24.5))
    yield Reason("running elsewhere", here, Verdict.RUNNING, no_death)
    ended = facts(attempt(1, running, "web-1"), view=view(running, 1, -3))
    yield Reason("its runner is gone", ended, Verdict.RUNNING, no_death)
    first = facts(attempt(1, running, "web-1"), sees_death=False)
    yield Reason("lost to (claim-only)", first, Verdict.RUNNING, "this is what it says until the winner reports its end")
    failed = facts(attempt(1, RunStatus.FAILED, "web-1", took=2, error="ValueError: no data"))
    yield Reason("failed", failed, Verdict.FAILED)
    slow = facts(attempt(1, RunStatus.TIMEOUT, "web-1", took=300, error="timeout: not done after 300 s"), after_s=400)
    yield Reason("timeout", slow, Verdict.FAILED)
    again = facts(
        attempt(1, RunStatus.FAILED, "web-1", took=2, error="OSError: disk full"), view=view(RunStatus.HANDED_OVER, 1, 6)
    )
    yield Reason("waits for a retry", again, Verdict.WAITING, "never: no retries by other instances")
    stopped = facts(attempt(1, RunStatus.HANDED_OVER, "web-1", took=20), view=view(RunStatus.HANDED_OVER, 1, 0))
    yield Reason("waits after a hand-over", stopped, Verdict.WAITING, "never: nothing is handed over")
    dead = facts(
        *(attempt(n, lost, f"web-{n}", claimed=31.2 * n) for n in (1, 2)),
        attempt(3, RunStatus.INTERRUPTED, "web-3", claimed=94),
        after_s=200,
        view=view(RunStatus.INTERRUPTED, 3, -70),
    )
    yield Reason("interrupted", dead, Verdict.INTERRUPTED, 'never: it says "won" for ever')
    left = facts(attempt(1, RunStatus.HANDED_OVER, "web-1", took=20), view=view(RunStatus.INTERRUPTED, 1, -9))
    yield Reason("interrupted, handed over and taken by nobody", left, Verdict.INTERRUPTED, "never")


def _did_not_run() -> Iterator[Reason]:
    skipped, missed = RunStatus.SKIPPED, RunStatus.MISSED
    overlap = f"overlap: the run of slot {SLOT_MS - DAY_MS} of web-1 was still running"
    yield Reason("overlap", facts(note(skipped, overlap)), Verdict.SKIPPED, "never: it refuses no overlap")
    paused = facts(note(skipped, "the job is paused"))
    yield Reason("paused", paused, Verdict.SKIPPED, "never: it cannot pause")
    still = facts(job_view=job(paused_ms=SLOT_MS - DAY_MS))
    yield Reason("paused while nobody looked", still, Verdict.PAUSED, "never: it cannot pause")
    late = facts(note(missed, "claimed 74.2 s after its time, over max_late=60 s", after_s=74.3), after_s=90)
    yield Reason("late", late, Verdict.MISSED)
    unknown = facts(note(missed, "the store gave no answer: claim: the store did not answer within 5000 ms"), after_s=90)
    yield Reason("unknown", unknown, Verdict.MISSED, 'says "skipped": it cannot rule out that somebody ran it')
    yield Reason("missed", facts(note(missed, "no instance claimed it in time"), after_s=90), Verdict.MISSED)
    writing = facts(note(RunStatus.RUNNING, None))
    yield Reason("being noted", writing, Verdict.SKIPPED)


def _nothing_there() -> Iterator[Reason]:
    gap, fold = at_ms("2027-03-28T01:30:00"), at_ms("2027-10-31T01:30:00")
    half_past = Cron("30 2 * * *", "Europe/Berlin")
    yield Reason("no such slot", facts(slot_ms=SLOT_MS + 60_000, now_ms=SLOT_MS + DAY_MS), Verdict.NO_SUCH_SLOT)
    spring = facts(slot_ms=gap, now_ms=gap + DAY_MS, schedule=half_past)
    yield Reason("no such slot: the clock went forward", spring, Verdict.NO_SUCH_SLOT)
    autumn = facts(slot_ms=fold, now_ms=fold + DAY_MS, schedule=half_past)
    yield Reason("no such slot: the clock went back", autumn, Verdict.NO_SUCH_SLOT)
    yield Reason("not yet", facts(now_ms=SLOT_MS - 3_600_000), Verdict.NOT_DUE)
    yield Reason("just now", facts(after_s=0.8), Verdict.NOT_DUE)
    old = facts(now_ms=SLOT_MS + 40 * DAY_MS, job_view=job(floor_ms=SLOT_MS + 9 * DAY_MS))
    yield Reason("forgotten", old, Verdict.FORGOTTEN, 'says "neither a run nor a note": it keeps no floor')
    yield Reason("never seen", facts(known=False), Verdict.UNKNOWN_JOB)
    new = facts(job_view=job(first_ms=SLOT_MS + 9 * 3_600_000), after_s=DAY_MS / 1000)
    yield Reason("seen later", new, Verdict.UNKNOWN_JOB, 'says "neither a run nor a note"')
    yield Reason("nobody was there", facts(job_view=job()), Verdict.UNACCOUNTED)


REASONS: tuple[Reason, ...] = (*_ran(), *_did_not_run(), *_nothing_there())
