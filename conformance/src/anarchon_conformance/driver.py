"""Drives clients through their calls: the schedule steers, the recorder notes, nobody judges here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anarchon.backend import Backend, LeaseBackend
from anarchon.contract import Answer, CheckCall, ClaimCall, FinishCall, PauseCall, ReleaseCall, RenewCall
from anarchon.contract.model import Call
from anarchon.errors import BackendError
from anarchon.types import Claim, Outcome, RunStatus, RunView, new_token

from anarchon_conformance.arena import Arena
from anarchon_conformance.history import ClockStep, History, Look, Recorder, Timebase
from anarchon_conformance.steps import Fault, current_gate
from anarchon_conformance.wiring import ANSWER_MS, CallWire, Wire

__all__ = ["ROUND_STEPS_MAX", "Client", "Driver", "Moves", "drive_pair"]

ROUND_STEPS_MAX = 200
"""The most store steps of one duel; a backend that takes more turns in circles."""

LOOK_LIMIT = 1_000

TRIES = 3
"""How often a call may fail with no fault left to blame, before its client is called unusable."""


class Client:
    """One steered client: at most one driven call at a time."""

    def __init__(self, name: str, wire: Wire, recorder: Recorder) -> None:
        self.name, self.wire = name, wire
        self._recorder = recorder
        self.task: asyncio.Task[None] | None = None
        self.answer: Answer | None = None
        self.error: str | None = None
        self.unanswered: list[Call] = []
        """The calls of the last `start` whose effect is unknown."""
        self.unknown: set[str] = set()
        """Tokens whose last claim got no answer: a backend that cannot resolve that cannot say what they hold either."""
        self.steps = 0

    @property
    def busy(self) -> bool:
        """Whether a call is on its way."""
        return self.task is not None and not self.task.done()

    def start(self, *calls: Call) -> None:
        """Send a call, or some one after the other, without waiting; a failed one is the last."""
        assert not self.busy, f"client {self.name} has a call on its way"
        self.answer, self.error, self.steps, self.unanswered = None, None, 0, []
        self.task = asyncio.create_task(self._run_all(calls))

    async def _run_all(self, calls: Sequence[Call]) -> None:
        for call in calls:
            await self._run(call)
            if self.answer is None:
                self.unanswered.append(call)
                return

    async def do(self, call: Call) -> Answer | None:
        """Make one call that nobody steers and wait for its answer; None if it failed or hung (C23)."""
        assert not self.busy, f"client {self.name} has a call on its way"
        self.task, self.answer, self.error = None, None, None
        gate = current_gate.set(None)
        limit = asyncio.timeout(ANSWER_MS / 1000)
        try:
            async with limit:
                await self._run(call)
        finally:
            current_gate.reset(gate)
        if limit.expired():
            self.error = f"no answer within {ANSWER_MS / 1000:g} s"
        elif self.error == "cancelled":
            raise asyncio.CancelledError
        return self.answer

    async def insist(self, call: Call, *, again: bool) -> bool:
        """Make a call until it is answered; False if it fails time after time with no fault left to blame.

        Without `again` a claim without an answer is lost for good (C5): then the next try is a claim of its own.
        """
        for _ in range(TRIES):
            if await self.do(call) is not None:
                return True
            if not again and isinstance(call, ClaimCall):
                token = call.request.token[0] + new_token()[1:]
                call = replace(call, request=replace(call.request, token=token))
        return False

    async def wait(self) -> None:
        """Wait for the call on its way; one that hangs is cancelled and stays open (C23)."""
        if self.task is None:
            return
        if not self.task.done():
            _, hanging = await asyncio.wait({self.task}, timeout=ANSWER_MS / 1000)
            if hanging:
                self.task.cancel()
                await asyncio.wait({self.task}, timeout=ANSWER_MS / 1000)
                self.error = f"no answer within {ANSWER_MS / 1000:g} s"

    async def _run(self, call: Call) -> None:
        number = self._recorder.begin(self.name, call)
        wire = self.wire
        if self.task is not None and isinstance(wire, CallWire) and not wire.outer:
            current_gate.set(wire.gate)
        try:
            if self.task is not None and isinstance(wire, CallWire) and wire.outer:
                async with wire.gate.step(type(call).__name__):
                    self.answer = await send(wire.backend, call)
            else:
                self.answer = await send(wire.backend, call)
        except asyncio.CancelledError:
            self.answer, self.error = None, "cancelled"
        except BackendError as error:
            self.answer, self.error = None, f"{type(error).__name__}: {error}"
        except Exception as error:  # border: backend call - a store under test may raise anything
            self.answer, self.error = None, f"{type(error).__name__}: {error} (no BackendError)"
        if isinstance(call, ClaimCall) and self.answer is None:
            self.unknown.add(call.request.token)
        elif isinstance(call, ClaimCall):
            self.unknown.discard(call.request.token)
        self._recorder.end(number, self.answer, self.error)


async def send(backend: Backend, call: Call) -> Answer | None:
    """Make a call on a backend and reduce what it says to what the model judges; None for an answer of UNKNOWN (C5)."""
    if isinstance(call, ClaimCall):
        return _of_claim(await backend.claim(call.request))
    if isinstance(call, FinishCall):
        return Answer(ok=await backend.finish(call.key, call.token, call.result))
    assert isinstance(backend, LeaseBackend), f"{type(backend).__name__} is no lease backend"
    match call:
        case RenewCall(key, token, lease_ms):
            return Answer(ok=await backend.renew(key, token, lease_ms))
        case ReleaseCall(key, token, delay_ms, counted):
            return Answer(ok=await backend.release(key, token, delay_ms=delay_ms, counted=counted))
        case CheckCall(key):
            return _of_view((await backend.check([key]))[0])
        case PauseCall(key, paused):
            await backend.set_paused(key.job, paused)
            return Answer()


def _of_claim(claim: Claim) -> Answer | None:
    if claim.outcome is Outcome.UNKNOWN:
        return None
    return Answer(claim.outcome, claim.attempt if claim.won else 0)


def _of_view(view: RunView | None) -> Answer:
    if view is None:
        return Answer()
    if view.status.final:
        return Answer(status=view.status, free=False)
    return Answer(status=RunStatus.RUNNING, free=view.left_ms <= 0)


@dataclass(frozen=True, slots=True)
class Moves:
    """How two calls are interleaved: `schedule` says whose step is next (0 or 1), then the rest runs in order.

    `faults` maps (client, number of its step) to what happens to that step; `jump_ms` steps the store's clock before the
    step number `jump_at`.
    """

    schedule: str
    fault: Fault = Fault.NONE
    fault_client: int = 0
    fault_step: int = 0
    jump_ms: int = 0
    jump_at: int = 0


class Driver:
    """Steered clients on one arena, and the recorder of what they do."""

    def __init__(self, arena: Arena, wires: Sequence[Wire], names: str = "ABCDEFGH") -> None:
        self.arena = arena
        self.recorder = Recorder(arena.target.clock)
        self.clients = [Client(name, wire, self.recorder) for name, wire in zip(names, wires, strict=False)]
        self._stepped_ms = 0

    async def step_clock(self, delta_ms: int) -> None:
        """Step the store's clock and note it."""
        begun = self.recorder.tick()
        await self.arena.target.step_clock(delta_ms)
        self._stepped_ms += delta_ms
        self.recorder.steps.append(ClockStep(delta_ms, begun, self.recorder.tick()))

    async def undo_steps(self) -> None:
        """Step the store's clock back to where it was."""
        if self._stepped_ms:
            await self.step_clock(-self._stepped_ms)

    async def look(self, job: str) -> None:
        """Read the history of a job; a failure leaves no trace, like any open call."""
        begun = self.recorder.tick()
        try:
            records = await self.arena.first.history(job, limit=LOOK_LIMIT)
        except BackendError:
            return
        self.recorder.looks.append(Look(job, tuple(records), begun, self.recorder.tick()))

    def history(self, timebase: Timebase, jobs: frozenset[str] | None = None) -> History:
        """Return what was recorded, of all jobs or of some."""
        arena, recorder = self.arena, self.recorder
        ops, looks = recorder.ops, tuple(recorder.looks)
        if jobs is not None:
            ops = tuple(op for op in ops if op.job in jobs)
            looks = tuple(look for look in looks if look.job in jobs)
        return History(ops, timebase, arena.lease, arena.limits, tuple(recorder.steps), looks)


async def drive_pair(driver: Driver, turns: tuple[Sequence[Call], Sequence[Call]], moves: Moves) -> tuple[int, int]:
    """Run the calls of the first two clients step by step; returns how many steps each took."""
    pair = driver.clients[:2]
    for client, calls in zip(pair, turns, strict=True):
        client.wire.arm()
        client.start(*calls)
        task = client.task
        assert task is not None
        await client.wire.settled(task, first=True)
    jump = moves.jump_ms
    for number, symbol in enumerate(moves.schedule):
        if jump and number == moves.jump_at:
            jump = await _jump(driver, jump)
        await _one_step(driver, int(symbol), moves)
    if jump:
        await _jump(driver, jump)
    for place, client in enumerate(pair):
        for _ in range(ROUND_STEPS_MAX):
            if not client.busy or not await _one_step(driver, place, moves):
                break
    for client in pair:  # whoever waits for a lock of the other comes through now
        client.wire.disarm()
        await client.wait()
    return pair[0].steps, pair[1].steps


async def _jump(driver: Driver, delta_ms: int) -> int:
    await driver.step_clock(delta_ms)
    return 0


async def _one_step(driver: Driver, place: int, moves: Moves) -> bool:
    """Release one step of one client and wait until it settles; False if it has none to release."""
    client = driver.clients[place]
    task = client.task
    if task is None or task.done() or not await client.wire.settled(task):
        return False
    struck = moves.fault is not Fault.NONE and (moves.fault_client, moves.fault_step) == (place, client.steps)
    client.steps += 1
    await client.wire.release(moves.fault if struck else Fault.NONE, task)
    await client.wire.settled(task)
    return True
