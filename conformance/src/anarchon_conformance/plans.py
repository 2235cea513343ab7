"""The plans tier: Hypothesis draws a whole plan as data, the driver plays it, the checker judges, a failure shrinks."""

from __future__ import annotations

import asyncio
import importlib.resources
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from anarchon.contract import CheckCall, ClaimCall, FinishCall, PauseCall, ReleaseCall, RenewCall
from anarchon.contract.model import Call
from anarchon.types import RunKey, RunResult, RunStatus, new_token
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Flaky

from anarchon_conformance.arena import Arena
from anarchon_conformance.checker import Finding, Judgement, StepFunction, check, contract_step
from anarchon_conformance.driver import Client, Driver
from anarchon_conformance.evidence import clauses_of, expected_marks, marks_of
from anarchon_conformance.history import History
from anarchon_conformance.planset import CLIENTS, Mode, Plan, PlanStep, Verb, plans
from anarchon_conformance.report import Check, Failure, Mark, Profile, RunOptions, Tier, TierResult, Verdict
from anarchon_conformance.steps import Fault
from anarchon_conformance.story import story
from anarchon_conformance.target import Target
from anarchon_conformance.wiring import BLOCKED_MS, wires

__all__ = ["PlanRunner", "Played", "corpus", "run_plans"]

SHORT_MS = 60
LONG_MS = 30_000
DELAY_MS = 60_000
JUMP_MS = 3_600_000
OFF_MS = 300_000
SLOTS_AGO_MS = (1_000, 2_000, 45_000, -OFF_MS, OFF_MS)
FORGET_KEEP_MS = 1_500
"""With the flag f a claim may forget finished runs whose slot is older than this, down to one."""

PLANS_FAST = 100
PLANS_SLOW = 40
PLANS_NIGHTLY = 1_000
_FAULTS = {Mode.LOST_REQUEST: Fault.REQUEST_LOST, Mode.LOST_REPLY: Fault.REPLY_LOST, Mode.CANCELLED: Fault.CANCELLED}


@dataclass(frozen=True, slots=True)
class Played:
    """A plan that was played: its history and the verdict."""

    plan: Plan
    history: History
    finding: Finding


class _Game:
    """One plan on its way."""

    def __init__(self, arena: Arena, driver: Driver) -> None:
        self.arena, self.driver = arena, driver
        self.clients = driver.clients
        self.job = arena.job("plan")
        now_ms = arena.store_now_ms()
        self.keys = tuple(RunKey(self.job, now_ms - ago_ms) for ago_ms in SLOTS_AGO_MS)
        self.tokens: dict[tuple[int, int], str] = {}
        self.touched: set[int] = set()

    async def play(self, step: PlanStep) -> None:
        target = self.arena.target
        if step.verb is Verb.WAIT:
            await target.clock.sleep_ms(SHORT_MS + (1 if target.simulated else 5))
        elif step.verb in {Verb.FORWARD, Verb.BACK}:
            if target.offers("step_clock"):
                await self.driver.step_clock(JUMP_MS if step.verb is Verb.FORWARD else -JUMP_MS)
        else:
            client = self.clients[step.client]
            await self.finish_held(client)
            if step.verb is not Verb.GO and (self.arena.lease or not step.verb.lease_only):
                await self.send(client, self.call(step), step.mode)

    async def send(self, client: Client, call: Call, mode: Mode) -> None:
        """Make a call in its mode; one that waits for another client's lock is left on its way."""
        if mode is Mode.NOW:
            client.start(call)
            await self.patient(client)
            return
        client.wire.arm()
        client.start(call)
        task = client.task
        assert task is not None
        held = await client.wire.settled(task, first=True)
        if mode is Mode.HOLD_1 and held:
            await client.wire.release(Fault.NONE, task)
            await client.wire.settled(task)
        if mode in _FAULTS:
            if held:
                await client.wire.release(_FAULTS[mode], task)
                await client.wire.settled(task)
            client.wire.disarm()
            await self.patient(client)

    async def patient(self, client: Client) -> None:
        """Wait for a call for as long as it may be at work by itself; longer only if nobody else is held."""
        others = [other for other in self.clients if other is not client and other.busy]
        if others and client.task is not None:
            await asyncio.wait({client.task}, timeout=4 * BLOCKED_MS / 1000)
        else:
            await client.wait()

    async def finish_held(self, client: Client) -> None:
        """Let the call that a client has on its way come to its end, if need be by letting everybody go on."""
        client.wire.disarm()
        if client.busy:
            await self.patient(client)
        if client.busy:
            await self.finish_all()

    async def finish_all(self) -> None:
        for client in self.clients:
            client.wire.disarm()
        for client in self.clients:
            await client.wait()

    def token(self, client: int, slot: int, *, fresh: bool = False) -> str:
        if fresh or (client, slot) not in self.tokens:
            self.tokens[client, slot] = CLIENTS[client].lower() + new_token()[1:]
        return self.tokens[client, slot]

    def call(self, step: PlanStep) -> Call:
        key, slot = self.keys[step.slot], step.slot
        self.touched.add(slot)
        token = self.token(step.client, slot, fresh=step.verb is Verb.CLAIM)
        match step.verb:
            case Verb.RENEW:
                return RenewCall(key, token, LONG_MS)
            case Verb.FINISH:
                return FinishCall(key, token, RunResult(RunStatus.SUCCESS))
            case Verb.RELEASE:
                return ReleaseCall(key, token)
            case Verb.DELAY:
                return ReleaseCall(key, token, DELAY_MS, counted=True)
            case Verb.CHECK:
                return CheckCall(key)
            case Verb.PAUSE | Verb.RESUME:
                return PauseCall(key, paused=step.verb is Verb.PAUSE)
            case _:
                return self.claim(key, token, step)

    def claim(self, key: RunKey, token: str, step: PlanStep) -> ClaimCall:
        forgets = "f" in step.flags
        request = self.arena.request(
            key,
            token=token,
            instance=CLIENTS[step.client],
            lease_ms=SHORT_MS if "s" in step.flags else LONG_MS,
            attempt_limit=1 if "o" in step.flags else 3,
            exclusive="x" not in step.flags,
            keep_ms=FORGET_KEEP_MS if forgets else 67_000,
            history_size=1 if forgets else 100,
        )
        return ClaimCall(request)

    async def ask_everybody(self) -> Client | None:
        """Probe, one call at a time, what the store now holds; returns a client that cannot be used any more."""
        await self.finish_all()
        for client, call in self.probes():
            if not await self.clients[client].insist(call, again=self.arena.resolves_unknown):
                return self.clients[client]
        await self.driver.look(self.job)
        return None

    def probes(self) -> Iterator[tuple[int, Call]]:
        lease = self.arena.lease
        for slot in sorted(self.touched):
            key = self.keys[slot]
            held = [client for client in range(len(CLIENTS)) if (client, slot) in self.tokens]
            again = self.arena.resolves_unknown
            if lease:
                yield 2, CheckCall(key)
            for client in held:
                if lease:
                    yield client, RenewCall(key, self.tokens[client, slot], LONG_MS)
                elif again:
                    step = PlanStep(client, Verb.AGAIN, slot, flags="x")
                    yield client, self.claim(key, self.tokens[client, slot], step)
            probe = PlanStep(1, Verb.CLAIM, slot, flags="x")
            yield 1, self.claim(key, "e" + new_token()[1:], probe)
            for client in held:
                if again or self.tokens[client, slot] not in self.clients[client].unknown:
                    yield client, FinishCall(key, self.tokens[client, slot], RunResult(RunStatus.FAILED, "probe"))


class PlanRunner:
    """Plays plans on one arena; each on a job of its own."""

    def __init__(self, arena: Arena, opened: wires, *, model: StepFunction = contract_step) -> None:
        self._arena, self._wires, self._model = arena, opened, model

    async def play(self, plan: Plan) -> Played:
        """Play a plan, ask everybody afterwards, judge."""
        driver = Driver(self._arena, self._wires.all, CLIENTS)
        game = _Game(self._arena, driver)
        try:
            for step in plan.steps:
                await game.play(step)
            stuck = await game.ask_everybody()
        finally:
            await game.finish_all()
            await driver.undo_steps()
        history = driver.history(self._arena.timebase)
        finding = check(history, model=self._model)
        if stuck is not None and finding.judgement is Judgement.OK:
            clause = "C22" if any(op.error == "cancelled" for op in history.ops) else "C23"
            sentence = f"client {stuck.name} fails at every call from then on: {stuck.error}"
            finding = Finding(Judgement.VIOLATION, clause, sentence, game.job)
            await self._replace(stuck)
        return Played(plan, history, finding)

    async def _replace(self, stuck: Client) -> None:
        """Open a new client in the place of one that cannot be used, so that it does not spoil the next plan."""
        self._wires.all[self._wires.all.index(stuck.wire)] = await self._wires.another()


class _Broken(AssertionError):
    """What makes Hypothesis shrink: the same clause counts as the same failure."""


def corpus() -> tuple[Plan, ...]:
    """Return the committed plans: one for each mark, and shrunk past failures."""
    text = importlib.resources.files("anarchon_conformance").joinpath("data", "plans.txt").read_text(encoding="utf-8")
    return tuple(Plan.parse(line) for line in text.splitlines() if line and not line.startswith("#"))


def run_plans(target: Target, options: RunOptions, *, model: StepFunction = contract_step, most: int | None = None) -> TierResult:
    """Run the plans tier on a target; `most` overrides how many plans are drawn."""
    start_ms = target.clock.monotonic_ms()
    with asyncio.Runner() as runner:
        arena = runner.run(_entered(Arena(target)))
        opened = runner.run(_entered(wires(arena, len(CLIENTS))))
        player = PlanRunner(arena, opened, model=model)
        try:
            tale = _Tale(lambda plan: runner.run(player.play(plan)))
            if options.replay is not None:
                tale.try_plan(Plan.parse(options.replay))
            else:
                tale.run(arena, options, most=most)
        finally:
            runner.run(opened.__aexit__(None, None, None))
            runner.run(arena.__aexit__(None, None, None))
    expected = frozenset[Mark]() if options.replay else expected_marks(arena.limits, lease=arena.lease)
    return tale.result(expected, target.clock.monotonic_ms() - start_ms)


def _entered(context: Any) -> Coroutine[Any, Any, Any]:
    coroutine: Coroutine[Any, Any, Any] = context.__aenter__()
    return coroutine


class _Tale:
    """Plays many plans and keeps what they showed."""

    def __init__(self, play: Callable[[Plan], Played]) -> None:
        self._play = play
        self.counts: Counter[str] = Counter()
        self.marks: Counter[Mark] = Counter()
        self.played = 0
        self.first_at: int | None = None
        self.broken: Played | None = None
        self.flaky = False

    def try_plan(self, plan: Plan) -> Played:
        """Play one plan and count it."""
        played = self._play(plan)
        self.played += 1
        if played.finding.judgement is Judgement.OK:
            self.counts.update(clauses_of(played.history))
            self.marks.update(marks_of(played.history))
        else:
            self.first_at = self.first_at or self.played
            self.broken = played
        return played

    def run(self, arena: Arena, options: RunOptions, *, most: int | None) -> None:
        """Play the corpus, then as many drawn plans as the profile says; stop at the first failure, shrunk."""
        fast = arena.target.simulated
        for plan in corpus():
            if self.try_plan(plan).finding.judgement is not Judgement.OK:
                return
        number = PLANS_NIGHTLY if options.profile is Profile.NIGHTLY else PLANS_FAST if fast else PLANS_SLOW
        strategy = plans(lease=arena.lease, clock=arena.target.offers("step_clock"))

        @seed(options.seed)
        @settings(
            max_examples=number if most is None else most,
            database=None,
            deadline=None,
            derandomize=False,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
            verbosity=Verbosity.quiet,
            print_blob=False,
        )
        @given(strategy)
        def draw(plan: Plan) -> None:
            finding = self.try_plan(plan).finding
            if finding.judgement is not Judgement.OK:
                raise _Broken(finding.clause)

        try:
            draw()
        except _Broken:
            pass
        except Flaky:
            self.flaky = True

    def result(self, expected: frozenset[Mark], elapsed_ms: float) -> TierResult:
        """Return what the plans showed."""
        checks = [Check(clause, Tier.PLANS, Verdict.PASS, count) for clause, count in sorted(self.counts.items())]
        if self.broken is not None:
            checks.insert(0, self._failed(self.broken))
            expected = frozenset()
        notes = [f"{self.played} plans played"]
        if self.first_at is not None:
            notes.append(f"the first failure was plan {self.first_at}")
        return TierResult(Tier.PLANS, tuple(checks), self.marks, expected, elapsed_ms, tuple(notes))

    def _failed(self, played: Played) -> Check:
        finding = played.finding
        clause = finding.clause or "C3"
        verdict = Verdict.VIOLATED if finding.judgement is Judgement.VIOLATION else Verdict.UNDECIDED
        where = f"plan of {len(played.plan.steps)} steps"
        if self.flaky:
            where += ", not seen again when it was replayed: the timing decides, the history does not lie"
        failure = Failure(clause, where, story(played.history, finding), str(played.plan), played.history)
        return Check(clause, Tier.PLANS, verdict, detail=finding.sentence, failure=failure)
