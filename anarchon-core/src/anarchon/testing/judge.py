"""What a simulation must not show; each check names its clause."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from anarchon.job import CatchUp, Job
from anarchon.schedule import zones_of
from anarchon.schedule.zones import year_table
from anarchon.testing.faults import FaultKind
from anarchon.testing.tape import Attempt, Mark, Outage, Report
from anarchon.types import RunKey, RunRecord, RunStatus

if TYPE_CHECKING:
    from anarchon.testing.simulate import Plan

__all__ = ["Lives", "judge"]

READY_MS = 6_000
"""An instance counts as able to claim this long after its start or the end of its trouble."""
CLAIM_MS = 12_000
"""How long a healthy instance may take from a slot's jitter to its run: two calls that time out, and one that works."""
TAKEOVER_SLACK_MS = 1_000
SLOTS_MAX = 200_000
RESET_MS = 1_000
CALL_MS = 5_500
_LOSSY = frozenset({str(FaultKind.LOST_REPLIES), str(FaultKind.CLOCK_STEP)})
"""Trouble that asking again with the same token overcomes."""


@dataclass(frozen=True, slots=True)
class Lives:
    """Who could be counted on when; times are true milliseconds."""

    end_ms: float
    spans: dict[str, tuple[float, float, int]]
    outages: dict[str, list[Outage]]

    def healthy(self, begin_ms: float, end_ms: float, lists: Iterable[int]) -> list[str]:
        """Return the instances that were up and undisturbed for a whole span, with one of the job lists."""
        wanted = set(lists)
        return [
            name
            for name, (born_ms, died_ms, list_index) in self.spans.items()
            if list_index in wanted
            and (born_ms == 0 or born_ms + READY_MS <= begin_ms)
            and end_ms <= died_ms
            and not self.troubled(name, begin_ms - READY_MS, end_ms)
        ]

    def troubled(self, name: str, begin_ms: float, end_ms: float) -> bool:
        """Whether an instance had any trouble in a span."""
        return any(out.begin_ms <= end_ms and begin_ms <= out.end_ms for out in self.outages.get(name, ()))


@dataclass(frozen=True, slots=True)
class _Case:
    by_key: dict[RunKey, list[Attempt]]
    jobs: dict[str, Job]
    lists: tuple[list[Job], list[Job]]
    lives: Lives
    plan: Plan

    @property
    def start_ms(self) -> int:
        return int(self.plan.start.timestamp() * 1000)

    @property
    def end_ms(self) -> int:
        return int((self.plan.start + self.plan.duration).timestamp() * 1000)


def judge(report: Report, lists: tuple[list[Job], list[Job]], plan: Plan, lives: Lives) -> None:
    """Fill in the violations, the marks and the counts of a report."""
    jobs = {job.name: job for jobs in lists for job in jobs}
    stepped = any(fault.kind is FaultKind.STORE_STEP for fault in plan.faults)
    by_key: dict[RunKey, list[Attempt]] = defaultdict(list)
    for attempt in report.attempts:
        by_key[attempt.key].append(attempt)
    found = report.violations
    found += _single_winner(by_key)
    found += _told_once(report)
    found += _real_slots(report.attempts, lists)
    if not stepped:
        found += _never_early(report.attempts)
        found += _local_deadline(by_key, lives)
        case = _Case(by_key, jobs, lists, lives, plan)
        found += _takeover_times(case)
        found += _hand_over_times(report, case)
        found += _kept_while_well(report, case)
        found += _oldest_first(report, jobs, plan)
        found += _nothing_lost(report, lists, plan, lives)
    # A store that went back has come less far: its last slots may be running when the fleet is stopped.
    back_ms = sum(min(0.0, fault.amount) for fault in plan.faults if fault.kind is FaultKind.STORE_STEP)
    found += _all_ended(report, int((plan.start + plan.duration).timestamp() * 1000 + back_ms))
    _count_overlaps(report, by_key, jobs, lives)
    if any(_changes(job, plan) for job in jobs.values()):
        report.marks[Mark.DAYLIGHT_SAVING] += 1


def _say(attempt: Attempt) -> str:
    return f"{attempt.key.job} slot {attempt.key.slot_ms}{attempt.key.space} attempt {attempt.attempt} on {attempt.instance}"


def _single_winner(by_key: dict[RunKey, list[Attempt]]) -> Iterator[str]:
    for attempts in by_key.values():
        for number, count in Counter(attempt.attempt for attempt in attempts).items():
            if count > 1:
                yield f"C1: {_say(attempts[0])}: attempt {number} was started {count} times"
        finished = [attempt for attempt in attempts if attempt.recorded and attempt.end == "done"]
        if len(finished) > 1:
            yield f"C18: {_say(finished[0])} was finished {len(finished)} times"
        for attempt in finished:
            later = [other for other in attempts if other.attempt > attempt.attempt]
            if later:
                yield f"C18: {_say(attempt)} was finished, yet attempt {later[0].attempt} started"


def _told_once(report: Report) -> Iterator[str]:
    told = Counter(
        (told.event, told.key)
        for told in report.told
        if told.event in {"slot_skipped", "run_missed"} and "(not recorded)" not in told.reason
    )
    for (event, key), count in told.items():
        if count > 1:
            yield f"K13: {event} of {key.job} slot {key.slot_ms} was told {count} times"


def _never_early(attempts: Sequence[Attempt]) -> Iterator[str]:
    for attempt in attempts:
        if attempt.store_ms < attempt.key.slot_ms:
            yield f"C9: {_say(attempt)} started {attempt.key.slot_ms - attempt.store_ms:.0f} ms early"


def _local_deadline(by_key: dict[RunKey, list[Attempt]], lives: Lives) -> Iterator[str]:
    """K1: when the next attempt starts, the one before has ended, or been told, or its instance was frozen or dead."""
    for attempts in by_key.values():
        ordered = sorted(attempts, key=lambda attempt: attempt.attempt)
        for before, after in pairwise(ordered):
            over_ms = min(
                before.end_ms if before.end_ms is not None else float("inf"),
                before.lost_ms if before.lost_ms is not None else float("inf"),
            )
            frozen = any(
                out.kind == FaultKind.PAUSE and out.begin_ms <= after.start_ms <= out.end_ms + READY_MS
                for out in lives.outages.get(before.instance, ())
            )
            if over_ms > after.start_ms + 1 and not frozen:
                yield f"K1: {_say(after)} started while {_say(before)} still believed in its lease"


def _takeover_times(case: _Case) -> Iterator[str]:
    for key, attempts in case.by_key.items():
        job = case.jobs.get(key.job)
        if job is None:
            continue
        for attempt in attempts:
            if attempt.end != "killed" or attempt.end_ms is None:
                continue
            due_ms = attempt.end_ms + job.lease_ms + job.heartbeat_ms + TAKEOVER_SLACK_MS
            holders = [i for i, entries in enumerate(case.lists) if any(entry.name == job.name for entry in entries)]
            watchers = case.lives.healthy(attempt.start_ms - 1_000, due_ms, holders)
            alone = not any(
                other.key != key and other.key.job == key.job and other.end != "done" and other.start_ms < due_ms
                for others in case.by_key.values()
                for other in others
            )
            later = [other.start_ms for other in attempts if other.attempt == attempt.attempt + 1]
            if watchers and alone and attempt.attempt < job.max_attempts and not (later and later[0] <= due_ms):
                took = f"after {later[0] - attempt.end_ms:.0f} ms" if later else "never"
                yield f"C12: {_say(attempt)} was killed and taken over {took}, although {watchers[0]} was well"


def _hand_over_times(report: Report, case: _Case) -> Iterator[str]:
    """C16: a run that was handed over is running again within a heartbeat, wherever somebody is well."""
    for told in report.told:
        job = case.jobs.get(told.key.job)
        if told.event != "run_released" or job is None or not told.reason.startswith("hand-over"):
            continue
        if told.key.slot_ms >= case.end_ms:
            continue  # the whole fleet is being stopped
        due_ms = told.at_ms + job.heartbeat_ms + TAKEOVER_SLACK_MS
        holders = [i for i, entries in enumerate(case.lists) if any(entry.name == job.name for entry in entries)]
        watchers = case.lives.healthy(told.at_ms - job.max_late_ms - job.lease_ms, due_ms, holders)
        attempts = case.by_key.get(told.key, [])
        begun = [attempt for attempt in attempts if attempt.start_ms >= told.at_ms - TAKEOVER_SLACK_MS]
        others = [other for key, other in case.by_key.items() if key.job == job.name and key != told.key]
        alone = all(other[-1].end == "done" for other in others)
        if watchers and alone and attempts and not any(attempt.start_ms <= due_ms for attempt in begun):
            within = f"within {due_ms - told.at_ms:.0f} ms"
            yield f"C16: {told.key.job} slot {told.key.slot_ms} was handed over and not begun again {within}"


def _kept_while_well(report: Report, case: _Case) -> Iterator[str]:
    """K1, K2: an instance without trouble starts what it wins, and does not lose its lease."""
    for attempts in case.by_key.values():
        for attempt in attempts:
            if attempt.lost_ms is not None and not case.lives.troubled(
                attempt.instance, attempt.start_ms - READY_MS, attempt.lost_ms
            ):
                yield f"K1: {_say(attempt)} lost its lease on an instance without trouble"
    begun = {(a.key, a.attempt) for a in report.attempts}
    renamed = {old: job.name for job in (*case.lists[0], *case.lists[1]) for old in job.was}
    begun_renamed = {(a.key.job, a.key.slot_ms, a.instance) for a in report.attempts}
    for records in report.history.values():
        for record in records:
            job = case.jobs.get(record.job)
            if job is None or record.key.note or record.status is not RunStatus.LOST or (record.key, record.attempt) in begun:
                continue
            if (renamed.get(record.job), record.slot_ms, record.instance) in begun_renamed:
                continue
            at_ms = record.claimed_ms - case.start_ms
            span = case.lives.spans.get(record.instance)
            begin_ms, end_ms = at_ms + RESET_MS, at_ms + job.lease_ms
            well = span is not None and end_ms < span[1] and not case.lives.troubled(record.instance, begin_ms, end_ms)
            troubles = {
                out.kind for out in case.lives.outages.get(record.instance, ()) if out.begin_ms <= end_ms and at_ms <= out.end_ms
            }
            if well and troubles <= _LOSSY and job.lease_ms > CALL_MS:
                yield f"K2: {record.job} slot {record.slot_ms} was won by {record.instance} and never begun there"


def _oldest_first(report: Report, jobs: dict[str, Job], plan: Plan) -> Iterator[str]:
    """K11: catch-up begins the older of two missed slots first."""
    begun: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in report.attempts:
        job = jobs.get(attempt.key.job)
        late_ms = attempt.store_ms - attempt.key.slot_ms
        if job is not None and job.catch_up is CatchUp.ALL and attempt.attempt == 1 and late_ms > job.max_late_ms:
            begun[attempt.instance + " " + job.name].append(attempt)
    for attempts in begun.values():
        for before, after in pairwise(attempts):
            if before.key.slot_ms > after.key.slot_ms:
                yield f"K11: {_say(before)} was caught up before slot {after.key.slot_ms}"


def _real_slots(attempts: Sequence[Attempt], lists: tuple[list[Job], list[Job]]) -> Iterator[str]:
    """K3: every slot that runs is a slot of the schedule, of one of the versions where two are in the fleet."""
    schedules = defaultdict(list)
    for job in (*lists[0], *lists[1]):
        schedules[job.name].append(job.schedule)
    for attempt in attempts:
        key = attempt.key
        if key.space == "" and all(each.next_after(key.slot_ms - 1) != key.slot_ms for each in schedules[key.job]):
            yield f"K3: {_say(attempt)} is no slot of its schedule"


def _expected(job: Job, plan: Plan) -> list[int]:
    start_ms = int(plan.start.timestamp() * 1000)
    end_ms = start_ms + plan.duration.total_seconds() * 1000
    slots: list[int] = []
    at_ms = job.schedule.next_after(start_ms)
    while at_ms is not None and at_ms < end_ms and len(slots) < SLOTS_MAX:
        slots.append(at_ms)
        at_ms = job.schedule.next_after(at_ms)
    return slots


def _nothing_lost(report: Report, lists: tuple[list[Job], list[Job]], plan: Plan, lives: Lives) -> Iterator[str]:
    """No slot is lost while one instance lives: it has a run, or was refused for overlap or pause (K13)."""
    start_ms = int(plan.start.timestamp() * 1000)
    seen: set[tuple[str, int]] = set()
    # C6: a long simulation outlives `history_size`; what was begun or told stands for a record that was pruned.
    known = {attempt.key for attempt in report.attempts} | {t.key for t in report.told if t.event == "slot_skipped"}
    for index, entries in enumerate(lists):
        for job in entries:
            records: dict[int, list[RunRecord]] = defaultdict(list)
            for name in job.names:  # a renamed job may have run under its earlier name
                for record in report.history.get(name, ()):
                    records[record.slot_ms].append(record)
            for slot_ms in _expected(job, plan):
                if (job.name, slot_ms) not in seen:
                    seen.add((job.name, slot_ms))
                    report.slots += 1
                    report.slot_instances += plan.instances
                at_ms = slot_ms - start_ms
                reliable = lives.healthy(at_ms - 1_000, at_ms + job.jitter_most_ms + CLAIM_MS, [index])
                pruned = slot_ms not in records and any(RunKey(name, slot_ms) in known for name in job.names)
                if reliable and not pruned:
                    yield from _accounted(job, slot_ms, records.get(slot_ms, []), reliable[0])


def _accounted(job: Job, slot_ms: int, records: list[RunRecord], reliable: str) -> Iterator[str]:
    runs = [record for record in records if record.space == ""]
    notes = [record for record in records if record.key.note]
    if not runs and not notes:
        yield f"K13: {job.name} slot {slot_ms} has neither run nor note, although {reliable} was well"
    elif not runs and not (job.exclusive and notes[0].status is RunStatus.SKIPPED):
        yield f"K2: {job.name} slot {slot_ms} was lost ({notes[0].error}), although {reliable} was well"
    if runs and job.catch_up is CatchUp.NONE and any(note.status is RunStatus.MISSED for note in notes):
        yield f"K13: {job.name} slot {slot_ms} has a run and a note that it was missed"


def _all_ended(report: Report, before_ms: int) -> Iterator[str]:
    for records in report.history.values():
        newest: dict[RunKey, RunRecord] = {}
        for record in records:
            if record.key not in newest or record.attempt > newest[record.key].attempt:
                newest[record.key] = record
        for record in newest.values():
            # A run that was given up after a hand-over is final, although its last attempt is not.
            open_run = record.key in report.unfinished and not record.status.final
            if open_run and not record.key.note and record.slot_ms < before_ms:
                yield f"K12: {record.job} slot {record.slot_ms} attempt {record.attempt} is {record.status} at the end"


def _count_overlaps(report: Report, by_key: dict[RunKey, list[Attempt]], jobs: dict[str, Job], lives: Lives) -> None:
    """Count runs of jobs that refuse overlap, and how many of them met another live run after a crash."""
    by_job: dict[str, list[Attempt]] = defaultdict(list)
    for key, attempts in by_key.items():
        job = jobs.get(key.job)
        if job is not None and job.exclusive:
            by_job[key.job] += attempts
    for attempts in by_job.values():
        attempts.sort(key=lambda attempt: attempt.start_ms)
        report.crash_runs += sum(1 for attempt in attempts if attempt.end == "killed")
        for before, after in pairwise(attempts):
            over_ms = min(t for t in (before.end_ms, before.lost_ms, float("inf")) if t is not None)
            frozen = lives.troubled(before.instance, before.start_ms, after.start_ms)
            if before.key != after.key and over_ms > after.start_ms + 1 and not frozen:
                report.live_overlaps += 1


def _changes(job: Job, plan: Plan) -> bool:
    begin_s = plan.start.timestamp()
    end_s = begin_s + plan.duration.total_seconds()
    years = {plan.start.year, (plan.start + plan.duration).year}
    return any(
        begin_s <= change.at_s <= end_s
        for zone in zones_of(job.schedule)
        for year in years
        for change in year_table(zone, year).changes
    )
