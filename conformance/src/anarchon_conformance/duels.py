"""The duels tier: bring a run into a state, let two clients meet on it, ask everybody afterwards, judge the whole history."""

from __future__ import annotations

import asyncio
import importlib.resources
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from anarchon.contract import CheckCall, ClaimCall, FinishCall, PauseCall, ReleaseCall, RenewCall
from anarchon.contract.model import Call
from anarchon.types import RunKey, RunResult, RunStatus, new_token

from anarchon_conformance.arena import Arena
from anarchon_conformance.checker import Finding, Judgement, StepFunction, check, contract_step
from anarchon_conformance.driver import Client, Driver, drive_pair
from anarchon_conformance.duelset import Act, Before, Duel, Skew, base_duels, interleavings, variants
from anarchon_conformance.evidence import clauses_of, expected_marks, marks_of
from anarchon_conformance.history import History
from anarchon_conformance.report import Check, Failure, Mark, Profile, RunOptions, Tier, TierResult, Verdict
from anarchon_conformance.steps import Fault, StepGate
from anarchon_conformance.story import story
from anarchon_conformance.target import Target
from anarchon_conformance.wiring import CallWire, Grain, Wire, grain_of, wires

__all__ = ["DuelRunner", "Fought", "full_set", "reduced_set", "run_duels"]

SHORT_MS = 150
LONG_MS = 30_000
DELAY_MS = 60_000
SKEW_MS = 600_000
OFF_MS = 300_000
"""How far the early and the late slot lie from now: beyond `max_late_ms`, and within the skew of a host."""

MARGIN_MS = 10
BATCH = 1_000
"""How many duels are prepared, waited for and fought together: little enough that long leases outlive the batch."""

FAILURES_MAX = 12
"""After so many failures a tier stops: more of them tell nothing new."""

ORDERS_MAX = 12
"""The most orders of one duel of the reduced set on a real store."""

FAST_MS = 0.1
"""A store whose claim takes less than this fights every duel, not only the reduced set."""


@dataclass(frozen=True, slots=True)
class Fought:
    """A duel that was fought: its history, the verdict, and how many store steps each side took."""

    duel: Duel
    history: History
    finding: Finding
    steps: tuple[int, int]


@dataclass(slots=True)
class _Bout:
    """One duel on its way: its driver, its slots and the tokens of its clients."""

    duel: Duel
    driver: Driver
    main: RunKey
    other: RunKey
    tokens: dict[str, str] = field(default_factory=lambda: {name: _token(name) for name in "ABC"})

    def client(self, name: str) -> Client:
        return self.driver.clients["ABC".index(name)]

    def key_of(self, name: str) -> RunKey:
        return self.other if name == "B" and self.duel.skew is Skew.SLOT else self.main

    def claim(self, arena: Arena, key: RunKey, token: str, *, name: str, lease_ms: int = LONG_MS) -> ClaimCall:
        limit = 1 if self.duel.before is Before.LAST else 3
        return ClaimCall(arena.request(key, token=token, instance=name, lease_ms=lease_ms, attempt_limit=limit))


def _token(name: str) -> str:
    return name.lower() + new_token()[1:]


class DuelRunner:
    """Fights duels on one arena. `model` is the contract, or the contract with a clause left out."""

    def __init__(self, arena: Arena, *, model: StepFunction = contract_step) -> None:
        self._arena = arena
        self._model = model
        self._sides: dict[Skew, tuple[Wire, Wire]] = {}
        self._stack: list[wires] = []
        self._umpire = CallWire(arena.first, StepGate(), outer=False)

    async def __aenter__(self) -> Self:
        opened = await wires(self._arena, 2).__aenter__()
        self._stack.append(opened)
        plain = (opened.all[0], opened.all[1])
        self._sides = {Skew.NONE: plain, Skew.SLOT: plain}
        if self._arena.target.offers("make_skewed"):
            skewed = await wires(self._arena, 2, skews_ms=(SKEW_MS, -SKEW_MS)).__aenter__()
            self._stack.append(skewed)
            self._sides |= {Skew.AHEAD: (skewed.all[0], plain[1]), Skew.BEHIND: (skewed.all[1], plain[1])}
        return self

    async def __aexit__(self, *_: object) -> None:
        for opened in reversed(self._stack):
            await opened.__aexit__(None, None, None)

    async def fight(self, duels: Sequence[Duel]) -> list[Fought]:
        """Prepare every duel, wait for the ends of their leases once, fight and judge them one after the other."""
        arena = self._arena
        bouts = [self._bout(duel) for duel in duels]
        for bout in bouts:
            await _prepare(arena, bout)
        if any(bout.duel.before in _WAITING for bout in bouts):
            extra_ms = 0 if arena.target.simulated else MARGIN_MS
            await arena.target.clock.sleep_ms(SHORT_MS + max(_extra_ms(bout.duel) for bout in bouts) + extra_ms)
        fought = []
        for bout in bouts:
            fought.append(await self._meet(bout))
        return fought

    def _bout(self, duel: Duel) -> _Bout:
        left, right = self._sides[duel.skew]
        job = self._arena.job("duel")
        main = self._arena.key(job)
        other = RunKey(job, main.slot_ms + (500 if duel.skew is Skew.SLOT else -10_000))
        return _Bout(duel, Driver(self._arena, (left, right, self._umpire)), main, other)

    async def _meet(self, bout: _Bout) -> Fought:
        arena, duel, driver = self._arena, bout.duel, bout.driver
        if duel.before is Before.TAKEN:
            await bout.client("B").do(bout.claim(arena, bout.main, bout.tokens["B"], name="B"))
        calls = (self._turn(bout, "A", duel.left), self._turn(bout, "B", duel.right))
        steps = await drive_pair(driver, calls, duel.moves)
        stuck = await self._ask_everybody(bout)
        await driver.undo_steps()
        history = driver.history(arena.timebase)
        finding = check(history, model=self._model)
        if stuck is not None and finding.judgement is Judgement.OK:
            clause = "C22" if any(op.error == "cancelled" for op in history.ops) else "C23"
            sentence = f"client {stuck} fails at every call from then on: {bout.client(stuck).error}"
            finding = Finding(Judgement.VIOLATION, clause, sentence, bout.main.job)
        return Fought(duel, history, finding, steps)

    def _turn(self, bout: _Bout, name: str, act: Act) -> tuple[Call, ...]:
        if act is Act.PAUSE_LOOK:
            return PauseCall(bout.main, paused=True), CheckCall(bout.main)
        return (self._call(bout, name, act),)

    def _call(self, bout: _Bout, name: str, act: Act) -> Call:
        key, held = bout.key_of(name), bout.tokens[name]
        match act:
            case Act.CLAIM | Act.EARLY | Act.LATE:
                bout.tokens[name] = token = _token(name)
                off_ms = {Act.EARLY: OFF_MS, Act.LATE: -OFF_MS}.get(act, 0)
                slot = RunKey(key.job, key.slot_ms + off_ms + (7 if off_ms and name == "B" else 0))
                return bout.claim(self._arena, slot, token, name=name)
            case Act.AGAIN:
                return bout.claim(self._arena, key, held, name=name)
            case Act.RENEW:
                return RenewCall(key, held, LONG_MS)
            case Act.FINISH:
                return FinishCall(key, held, RunResult(RunStatus.SUCCESS))
            case Act.RELEASE:
                return ReleaseCall(key, held)
            case Act.DELAY:
                return ReleaseCall(key, held, DELAY_MS, counted=True)
            case Act.CHECK:
                return CheckCall(key)
            case Act.PAUSE | Act.PAUSE_LOOK:
                return PauseCall(key, paused=True)

    async def _ask_everybody(self, bout: _Bout) -> str | None:
        """Probe, one call at a time, what the store now holds; returns a client that cannot be used any more."""
        arena, driver = self._arena, bout.driver
        for name in "AB":
            client = bout.client(name)
            for call in client.unanswered:
                may_ask_again = not isinstance(call, ClaimCall) or arena.resolves_unknown
                if may_ask_again and not await client.insist(call, again=True):  # K2: the same token
                    return name
        for name, probe in self._probes(bout):
            if not await bout.client(name).insist(probe, again=arena.resolves_unknown):
                return name
        await driver.look(bout.main.job)
        return None

    def _probes(self, bout: _Bout) -> Iterator[tuple[str, Call]]:
        arena, main, tokens = self._arena, bout.main, bout.tokens
        late = _token("C")
        done = RunResult(RunStatus.FAILED, "probe")
        if arena.lease:
            if {bout.duel.left, bout.duel.right} & {Act.PAUSE, Act.PAUSE_LOOK}:
                yield "C", PauseCall(main, paused=False)
            yield "C", CheckCall(main)
            for name in "AB":
                yield name, RenewCall(bout.key_of(name), tokens[name], LONG_MS)
        yield "C", bout.claim(arena, main, late, name="C")
        for name in "AB":
            if arena.resolves_unknown or tokens[name] not in bout.client(name).unknown:
                yield name, FinishCall(bout.key_of(name), tokens[name], done)
        if arena.resolves_unknown or late not in bout.client("C").unknown:
            yield "C", FinishCall(main, late, done)
        if arena.lease:
            for name in "AB":
                yield name, ReleaseCall(bout.key_of(name), tokens[name])
        yield "B", bout.claim(arena, main, _token("B"), name="B")


_WAITING = frozenset({Before.EXPIRED, Before.LEASE_END, Before.LAST, Before.TAKEN})


def _extra_ms(duel: Duel) -> int:
    """At `at-lease-end` the lease ends at this very millisecond; everywhere else it is over."""
    return 0 if duel.before is Before.LEASE_END else 1


async def _prepare(arena: Arena, bout: _Bout) -> None:
    before, mine = bout.duel.before, bout.tokens["A"]
    a, c = bout.client("A"), bout.client("C")
    if before in _WAITING:
        await a.do(bout.claim(arena, bout.main, mine, name="A", lease_ms=SHORT_MS))
    elif before in {Before.MINE, Before.FINISHED, Before.RELEASED}:
        await a.do(bout.claim(arena, bout.main, mine, name="A"))
        if before is Before.FINISHED:
            await a.do(FinishCall(bout.main, mine, RunResult(RunStatus.SUCCESS)))
        elif before is Before.RELEASED:
            await a.do(ReleaseCall(bout.main, mine))
    elif before is Before.OTHERS:
        await c.do(bout.claim(arena, bout.main, bout.tokens["C"], name="C"))
    elif before is Before.OVERLAP:
        older = RunKey(bout.main.job, bout.main.slot_ms - 20_000)
        await c.do(bout.claim(arena, older, bout.tokens["C"], name="C"))


def full_set(target: Target, *, lease: bool) -> Iterator[Duel]:
    """Yield one duel for each state and pair of operations; `variants` makes all others from them."""
    return base_duels(lease=lease, exact=target.simulated)


def reduced_set(*, lease: bool) -> tuple[Duel, ...]:
    """Return the committed duels that kill every broken backend of the zoo."""
    name = "reduced-lease.txt" if lease else "reduced-claim.txt"
    text = importlib.resources.files("anarchon_conformance").joinpath("data", name).read_text(encoding="utf-8")
    return tuple(Duel.parse(line) for line in text.splitlines() if line and not line.startswith("#"))


async def fight_all(runner: DuelRunner, arena: Arena, duels: Iterable[Duel]) -> list[Fought]:
    """Fight duels, in batches or (simulated: waiting costs nothing, instants are exact) each by itself."""
    size = 1 if arena.target.simulated else BATCH
    found: list[Fought] = []
    batch: list[Duel] = []
    failures = 0
    for duel in duels:
        batch.append(duel)
        if len(batch) >= size:
            fought = await runner.fight(batch)
            found += fought
            failures += sum(1 for item in fought if item.finding.judgement is not Judgement.OK)
            batch = []
            if failures >= FAILURES_MAX:
                break
    return found + (await runner.fight(batch) if batch else [])


async def every_duel(runner: DuelRunner, arena: Arena) -> list[Fought]:
    """Fight the full enumeration: the first meeting of a pair counts its store steps, then come all variants."""
    target = arena.target
    calls = grain_of(target) is Grain.CALLS
    options = {
        "clock": target.offers("step_clock"),
        "skewed": target.offers("make_skewed") and arena.lease,
        "cancel": not calls,  # a call that is one step is cancelled outside the backend: a lost reply says as much
    }
    pairs = list(full_set(target, lease=arena.lease))
    found = [] if calls else await fight_all(runner, arena, pairs)
    counted = {str(item.duel): item.steps for item in found}
    every = (duel for pair in pairs for duel in variants(pair, counted.get(str(pair), (1, 1)), **options))
    if sum(1 for item in found if item.finding.judgement is not Judgement.OK) >= FAILURES_MAX:
        return found
    return found + await fight_all(runner, arena, every)


async def some_duels(runner: DuelRunner, arena: Arena, duels: Sequence[Duel]) -> list[Fought]:
    """Fight the given duels; those in every order are met once to count their steps, then in each of some orders."""
    asked = [duel for duel in duels if duel.every_order]
    met = [] if grain_of(arena.target) is Grain.CALLS else await fight_all(runner, arena, [duel.ordered("") for duel in asked])
    steps = {str(item.duel): item.steps for item in met}
    orders = (
        duel.ordered(schedule)
        for duel in asked
        for schedule in interleavings(*steps.get(str(duel.ordered("")), (1, 1)), ORDERS_MAX)
    )
    return met + await fight_all(runner, arena, [*(duel for duel in duels if not duel.every_order), *orders])


def run_duels(target: Target, options: RunOptions, *, model: StepFunction = contract_step) -> TierResult:
    """Run the duels tier on a target."""
    return asyncio.run(_run(target, options, model))


async def _run(target: Target, options: RunOptions, model: StepFunction) -> TierResult:
    start_ms = target.clock.monotonic_ms()
    async with Arena(target) as arena, DuelRunner(arena, model=model) as runner:
        notes = [f"steered at {grain_of(target)}"]
        if options.replay is not None:
            fought = await some_duels(runner, arena, [Duel.parse(options.replay)])
        elif options.profile is Profile.NIGHTLY or target.simulated or await arena.claim_ms() < FAST_MS:
            fought = await every_duel(runner, arena)
        else:
            duels = [duel for duel in reduced_set(lease=arena.lease) if _can(duel, target)]
            left_out = len(reduced_set(lease=arena.lease)) - len(duels)
            notes.append(f"{len(duels)} duels of the reduced set, {left_out} need a Target method that is missing")
            fought = await some_duels(runner, arena, duels)
        expected = frozenset[Mark]() if options.replay else expected_marks(arena.limits, lease=arena.lease)
        if not arena.lease and not target.offers("step_clock"):
            # Their few duels about time need a clock that steps; the clauses and the plans see early and late.
            expected -= {Mark.EARLY, Mark.LATE}
        return summarise(fought, expected=expected, elapsed_ms=target.clock.monotonic_ms() - start_ms, notes=notes)


def _can(duel: Duel, target: Target) -> bool:
    if duel.skew in {Skew.AHEAD, Skew.BEHIND} and not target.offers("make_skewed"):
        return False
    if duel.moves.jump_ms and not target.offers("step_clock"):
        return False
    return duel.before is not Before.LEASE_END or target.simulated


def summarise(fought: Sequence[Fought], *, expected: frozenset[Mark], elapsed_ms: float, notes: Sequence[str]) -> TierResult:
    """Count what the duels showed, clause by clause; of failures that read alike the shortest is told."""
    counts: Counter[str] = Counter()
    marks: Counter[Mark] = Counter()
    broken: dict[tuple[str, str], list[Fought]] = {}
    for item in fought:
        finding = item.finding
        if finding.judgement is Judgement.OK:
            counts.update(clauses_of(item.history))
            marks.update(marks_of(item.history))
        else:
            broken.setdefault((finding.clause or "C3", finding.sentence), []).append(item)
    checks = [_told(clause, items) for (clause, _), items in broken.items()]
    checks += [Check(clause, Tier.DUELS, Verdict.PASS, count) for clause, count in sorted(counts.items())]
    return TierResult(Tier.DUELS, tuple(checks), marks, expected, elapsed_ms, (*notes, f"{len(fought)} duels fought"))


def _told(clause: str, items: list[Fought]) -> Check:
    plainest = min(
        items, key=lambda item: (item.duel.skew != Skew.NONE, item.duel.moves.fault != Fault.NONE, len(item.history.ops))
    )
    finding = plainest.finding
    verdict = Verdict.VIOLATED if finding.judgement is Judgement.VIOLATION else Verdict.UNDECIDED
    more = f" (and {len(items) - 1} more duels)" if len(items) > 1 else ""
    failure = Failure(clause, plainest.duel.title, story(plainest.history, finding), str(plainest.duel), plainest.history)
    return Check(clause, Tier.DUELS, verdict, len(items), finding.sentence + more, failure)
