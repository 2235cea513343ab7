"""The chaos tier: a fleet of real processes on the real store, a nemesis, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from anarchon.clock import Clock
from anarchon.errors import OptionError
from anarchon.types import SLOT, ClaimRequest, Limits, Outcome, RunKey, RunRecord, new_token

from anarchon_conformance.arena import Arena
from anarchon_conformance.chaos.fleet import Fleet
from anarchon_conformance.chaos.journal import Event, What
from anarchon_conformance.chaos.nemesis import SKEW_MS, Fault, Nemesis, Trouble, faults_for
from anarchon_conformance.chaos.plan import Role, WorkerPlan
from anarchon_conformance.chaos.verdicts import Evidence, Finding, cases_of, findings, marks_of
from anarchon_conformance.report import Check, Failure, Mark, Profile, RunOptions, Tier, TierResult, Verdict
from anarchon_conformance.target import Target

__all__ = ["run_chaos", "surely_remembered_ms"]

_T = TypeVar("_T")

ALL_CLAUSES = ("C1", "C2", "C6", "C18", "C19", "C23")
LEASE_CLAUSES = ("C8", "C11", "C12", "C15")
WORKERS = 3
SETTLE_MS = 1_500.0
PROBE_MS = 20_000.0
RECORDS_MAX = 5_000
ASK_TRIES = 20
ASK_PAUSE_MS = 100.0
LATE_MOST_MS = 10**9
MEMORY_MARGIN_MS = 20_000
LIFE_MS = 1_800_000
"""How long an instance that nobody ends lives: longer than a storm of fifty kills of a store that takes long to start."""
FAILURES_MAX = 2
"""The most stories that are told of one clause and fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One fleet: what its workers are, and how much trouble it gets."""

    role: Role
    faults: int
    store_kills: int
    period_ms: int
    work_ms: int


PHASES: dict[Profile, tuple[Phase, ...]] = {
    Profile.DEFAULT: (
        Phase(role=Role.CLAIMS, faults=5, store_kills=5, period_ms=250, work_ms=350),
        Phase(role=Role.SCHEDULER, faults=4, store_kills=1, period_ms=1_000, work_ms=700),
    ),
    Profile.NIGHTLY: (
        Phase(role=Role.CLAIMS, faults=50, store_kills=50, period_ms=250, work_ms=350),
        Phase(role=Role.SCHEDULER, faults=30, store_kills=10, period_ms=1_000, work_ms=700),
    ),
}


async def run_chaos(target: Target, options: RunOptions) -> TierResult:
    """Run both fleets under faults drawn from the seed, or from the one that `options.replay` names.

    The same seed draws the same faults, not the same interleaving.

    Raises:
        OptionError: the replay is no seed.
    """
    seed = options.seed if options.replay is None else _seed(options.replay)
    start_ms = target.clock.monotonic_ms()
    checks: list[Check] = []
    marks: Counter[Mark] = Counter()
    notes: list[str] = []
    async with Arena(target) as arena:
        lease = arena.lease
        obstacle = await _obstacle(arena)
        if obstacle is not None:
            clauses = ALL_CLAUSES + (LEASE_CLAUSES if lease else ())
            return TierResult(
                Tier.CHAOS, tuple(Check(clause, Tier.CHAOS, Verdict.NOT_RUN, detail=obstacle) for clause in clauses)
            )
        for phase in PHASES[options.profile]:
            evidence, odd = await _storm(arena, phase, seed)
            checks += _checks(evidence, phase, seed)
            checks += [_odd(sentence, phase) for sentence in odd]
            marks += marks_of(evidence)
            notes.append(_note(phase, evidence))
    expected = frozenset({Mark.CONCURRENT, Mark.TAKEOVER} if lease else {Mark.CONCURRENT})
    return TierResult(
        Tier.CHAOS,
        tuple(checks),
        marks=marks,
        expected=expected,
        elapsed_ms=target.clock.monotonic_ms() - start_ms,
        notes=tuple(notes),
    )


def _seed(replay: str) -> int:
    number = replay.removeprefix("chaos:")
    if not number.isascii() or not number.isdigit():
        msg = f"--replay {replay!r} is refused: write chaos:SEED, as the failure printed it"
        raise OptionError(msg)
    return int(number)


async def _obstacle(arena: Arena) -> str | None:
    """Say why no other process can share this store, or None: another process must be refused what this one won."""
    target = arena.target
    if not target.url:
        return "Target.url is empty: other processes cannot reach this store"
    job = arena.job("probe")
    key = arena.key(job)
    await arena.first.claim(arena.request(key))
    plan = WorkerPlan(role=Role.PROBE, url=target.url, job=job, instance="probe", journal="", slot_ms=key.slot_ms)
    async with Fleet(target, plan) as fleet:
        probe = await fleet.start()
        await fleet.ended(probe, PROBE_MS)
        told = {event.what: event.note for event in fleet.events}
    if What.REFUSED in told:
        return None
    if What.WON in told:
        return "another process with the same URL does not see this store"
    return f"a worker process cannot use this URL: {told.get(What.GAVE_UP, 'it ended without a word')}"


async def _storm(arena: Arena, phase: Phase, seed: int) -> tuple[Evidence, list[str]]:
    """Let a fleet work through its faults, then look at what the store says; also which workers ended oddly."""
    target = arena.target
    plan = WorkerPlan(
        role=phase.role,
        url=target.url,
        job=arena.job("chaos"),
        instance="",
        journal="",
        period_ms=phase.period_ms,
        work_ms=phase.work_ms,
        seed=seed,
        life_ms=LIFE_MS,
    )
    faults = faults_for(target, arena.limits, count=phase.faults, store_kills=phase.store_kills, seed=seed)
    async with Fleet(target, plan) as fleet:
        started = [await fleet.start() for _ in range(WORKERS)]
        for instance in started:
            await fleet.ready(instance)
        first_ms = target.clock.wall_ms() + phase.period_ms
        nemesis = Nemesis(target, fleet, lease_ms=plan.lease_ms, seed=seed)
        for fault in faults:
            await nemesis.bring(fault)
            await target.clock.sleep_ms(phase.period_ms)
        await target.clock.sleep_ms(SETTLE_MS)
        # An instance whose clock is behind has not come to the last slots yet: the fleet may consist of such ones only.
        behind_ms = SKEW_MS if any(trouble.fault is Fault.SKEWED_INSTANCE for trouble in nemesis.troubles) else 0
        last_ms = target.clock.wall_ms() - SETTLE_MS - behind_ms
        fallen = fleet.fallen
        stuck = [f"{name} did not end when it was told to" for name in await fleet.stop()]
        events = fleet.events
    period_ms = phase.period_ms
    slots = range(int(first_ms) // period_ms * period_ms + period_ms, int(last_ms), period_ms)
    return await _evidence(arena, plan, events, slots=slots, troubles=nemesis.troubles), fallen + stuck


async def _evidence(
    arena: Arena, plan: WorkerPlan, events: Sequence[Event], *, slots: Sequence[int], troubles: Sequence[Trouble]
) -> Evidence:
    """Ask a fresh client for every acknowledged win and for the history.

    A store that does not answer any more is found out, as any other fault: what else the journals show is judged all the same.
    """
    clock = arena.target.clock
    won = sorted({event.slot_ms for event in events if event.what in {What.WON, What.STARTED}})
    late_ms = surely_remembered_ms(arena.limits)
    asked: dict[int, Outcome] = {}
    records: list[RunRecord] = []
    unanswered: list[Finding] = []
    try:
        backend = await _answer(clock, arena.client)
    except _NoAnswer as reason:
        unanswered.append(Finding("C23", f"after the storm no client can be opened: {reason}"))
        unanswered.append(Finding("C19", "after the storm the history cannot be read, because no client can be opened"))
    else:
        try:
            records = await _answer(clock, lambda: backend.history(plan.job, limit=RECORDS_MAX))
        except _NoAnswer as reason:
            unanswered.append(Finding("C19", f"after the storm the history cannot be read: {reason}"))
        for slot_ms in won:
            if clock.wall_ms() - slot_ms >= late_ms:
                continue
            request = _question(RunKey(plan.job, slot_ms), late_ms)
            try:
                asked[slot_ms] = (await _answer(clock, partial(backend.claim, request))).outcome
            except _NoAnswer as reason:
                sentence = f"after the storm nobody can tell whether an acknowledged win is remembered: {reason}"
                unanswered.append(Finding("C6", sentence, slot_ms))
                if len(unanswered) > FAILURES_MAX:
                    break
    return Evidence(
        events=events,
        troubles=troubles,
        slots=slots,
        asked=asked,
        records=[record for record in records if record.space == SLOT] if len(records) < RECORDS_MAX else [],
        unanswered=unanswered,
        lease_ms=plan.lease_ms,
        lease=arena.lease,
        resolves_unknown=arena.resolves_unknown,
    )


class _NoAnswer(Exception):
    """A question was asked `ASK_TRIES` times; the text is how the last try failed."""


async def _answer(clock: Clock, call: Callable[[], Awaitable[_T]]) -> _T:
    """Ask until there is an answer; a store that was killed just now may need some tries."""
    failed = ""
    for _ in range(ASK_TRIES):
        try:
            return await call()
        except Exception as error:  # border: backend call - a store under test may raise anything
            failed = f"{type(error).__name__}: {error}"
        await clock.sleep_ms(ASK_PAUSE_MS)
    raise _NoAnswer(failed)


def surely_remembered_ms(limits: Limits) -> int:
    """Return how old a slot may be and still be remembered for certain: a long storm outlasts a short memory."""
    return LATE_MOST_MS if limits.remembers_ms is None else max(0, limits.remembers_ms - MEMORY_MARGIN_MS)


def _question(key: RunKey, late_ms: int) -> ClaimRequest:
    """Return a claim of a run that was won, with no attempt left: a store that remembers it refuses (C6)."""
    return ClaimRequest(
        key=key,
        token=new_token(),
        instance="judge",
        attempt_limit=0,
        max_late_ms=late_ms,
        exclusive=False,
        keep_ms=late_ms,
        history_size=10**6,
    )


def _checks(evidence: Evidence, phase: Phase, seed: int) -> list[Check]:
    found = findings(evidence)
    broken = {finding.clause for finding in found}
    where = f"{phase.role.value} under {len(evidence.troubles)} faults"
    checks = [
        Check(clause, Tier.CHAOS, Verdict.PASS, count=count)
        for clause, count in cases_of(evidence).items()
        if clause not in broken
    ]
    told: Counter[str] = Counter()
    for finding in found:
        told[finding.clause] += 1
        if told[finding.clause] > FAILURES_MAX:
            continue
        failure = Failure(finding.clause, where, (finding.sentence, *finding.story), f"chaos:{seed}")
        checks.append(Check(finding.clause, Tier.CHAOS, Verdict.VIOLATED, detail=finding.sentence, failure=failure))
    return checks


def _odd(sentence: str, phase: Phase) -> Check:
    failure = Failure("C23", phase.role.value, (sentence,))
    return Check("C23", Tier.CHAOS, Verdict.VIOLATED, detail=sentence, failure=failure)


def _note(phase: Phase, evidence: Evidence) -> str:
    kinds = Counter(trouble.fault.value for trouble in evidence.troubles)
    wins = evidence.of(What.WON, What.STARTED)
    told = ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))
    return (
        f"{phase.role.value}: {len(evidence.slots)} slots, {len(wins)} acknowledged wins, "
        f"{sum(1 for event in wins if event.attempt > 1)} takeovers; {told}"
    )
