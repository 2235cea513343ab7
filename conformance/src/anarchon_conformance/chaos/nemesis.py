"""What goes wrong, when, and how it is undone: each fault is one function that ends with the world as it was."""

from __future__ import annotations

import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from anarchon.clock import Clock
from anarchon.types import Limits

from anarchon_conformance.chaos.fleet import Fleet, Instance
from anarchon_conformance.chaos.journal import What
from anarchon_conformance.gate import Mode
from anarchon_conformance.target import Target

__all__ = ["SKEW_MS", "Fault", "Nemesis", "Trouble", "faults_for"]

TRIGGER_MS = 3_000.0
AT_WORK = frozenset({What.WON, What.STARTED})
MOMENTS = (AT_WORK, AT_WORK, frozenset({What.RENEWED, What.ENDED}), frozenset({What.FINISHED, What.RECORDED}))
"""At which events an instance is killed: holding a run, renewing it or before its finish, right after its finish."""
SKEW_MS = 3_000


class Fault(StrEnum):
    """Kinds of faults."""

    KILL_INSTANCE = "kill -9 an instance at work"
    FREEZE_INSTANCE = "freeze an instance past its lease"
    SKEWED_INSTANCE = "an instance whose clock is wrong"
    KILL_STORE = "kill -9 the store right after a win"
    RESTART_STORE = "restart the store"
    CUT = "cut the connections of an instance"
    LOSE_REPLIES = "lose the replies of an instance"
    DELAY = "delay the messages of an instance"
    BLACK_HOLE = "a silent connection"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A fault that happened, from its start until it was undone, on the host's monotonic clock and its wall clock."""

    fault: Fault
    victim: str
    start_ms: float
    end_ms: float
    start_wall_ms: float
    end_wall_ms: float


def faults_for(target: Target, limits: Limits, *, count: int, store_kills: int, seed: int) -> list[Fault]:
    """Return `count` faults that this target allows, every kind in turn, and as many store kills as asked, in random order."""
    first = [Fault.KILL_INSTANCE, Fault.FREEZE_INSTANCE]  # without these there is no takeover, and the run proves little
    others: list[Fault] = []
    if limits.store_clock:
        others.append(Fault.SKEWED_INSTANCE)
    if target.wire() is not None:
        others += [Fault.CUT, Fault.LOSE_REPLIES, Fault.DELAY, Fault.BLACK_HOLE]
    if target.offers("restart_store") and limits.durable:
        others.append(Fault.RESTART_STORE)
    dice = random.Random(seed)  # noqa: S311 - draws a plan, guards nothing
    dice.shuffle(others)
    kinds = first + others
    chosen: list[Fault] = []
    for number in range(count):
        chosen.append(kinds[number % len(kinds)])
    if target.offers("kill_store") and limits.durable:
        chosen += [Fault.KILL_STORE] * store_kills
    dice.shuffle(chosen)
    return chosen


class Nemesis:
    """Brings trouble to a fleet, one fault after the other, each undone before the next."""

    def __init__(self, target: Target, fleet: Fleet, *, lease_ms: int, seed: int) -> None:
        self._target = target
        self._fleet = fleet
        self._clock: Clock = target.clock
        self._lease_ms = lease_ms
        self._dice = random.Random(seed)  # noqa: S311 - draws a plan, guards nothing
        self.troubles: list[Trouble] = []
        self._acts: dict[Fault, Callable[[Instance], Awaitable[None]]] = {
            Fault.KILL_INSTANCE: self._kill_instance,
            Fault.FREEZE_INSTANCE: self._freeze,
            Fault.SKEWED_INSTANCE: self._skewed,
            Fault.KILL_STORE: self._kill_store,
            Fault.RESTART_STORE: self._restart_store,
            Fault.CUT: self._cut,
            Fault.LOSE_REPLIES: self._lose_replies,
            Fault.DELAY: self._delay,
            Fault.BLACK_HOLE: self._black_hole,
        }

    async def bring(self, fault: Fault) -> bool:
        """Wait for the event at which it strikes, strike, undo; False if the fleet is not at work."""
        moment = self._dice.choice(MOMENTS) if fault is Fault.KILL_INSTANCE else AT_WORK
        found = await self._fleet.wait_for_any(moment, TRIGGER_MS) or await self._fleet.wait_for_any(AT_WORK, TRIGGER_MS)
        if found is None:
            return False
        instance, _ = found
        start = self._clock.moment()
        try:
            await self._acts[fault](instance)
        finally:
            instance.thaw()
            if instance.gate is not None:
                instance.gate.heal()
            end = self._clock.moment()
            self.troubles.append(Trouble(fault, instance.name, start.monotonic_ms, end.monotonic_ms, start.wall_ms, end.wall_ms))
        return True

    async def _kill_instance(self, instance: Instance) -> None:
        instance.signal(signal.SIGKILL)
        await self._fleet.ready(await self._fleet.start())

    async def _freeze(self, instance: Instance) -> None:
        instance.freeze()
        await self._clock.sleep_ms(self._lease_ms * self._dice.uniform(1.2, 2.0))

    async def _skewed(self, instance: Instance) -> None:
        """Replace an instance by one whose clock is wrong; a wrong clock needs no undo, its instance ends with the fleet."""
        instance.signal(signal.SIGTERM)
        await self._fleet.ready(await self._fleet.start(skew_ms=self._dice.choice((-SKEW_MS, SKEW_MS))))

    async def _kill_store(self, instance: Instance) -> None:
        del instance  # its win is the acknowledged one that the store must not lose
        await self._target.kill_store()

    async def _restart_store(self, instance: Instance) -> None:
        del instance
        await self._target.restart_store()

    async def _cut(self, instance: Instance) -> None:
        assert instance.gate is not None
        for _ in range(5):
            instance.gate.cut_now()
            await self._clock.sleep_ms(self._dice.uniform(5, 60))

    async def _lose_replies(self, instance: Instance) -> None:
        assert instance.gate is not None
        async with instance.gate.fault(Mode.CUT_AFTER):
            await self._clock.sleep_ms(self._dice.uniform(200, 500))

    async def _delay(self, instance: Instance) -> None:
        assert instance.gate is not None
        async with instance.gate.fault(Mode.DELAY, delay_ms=self._dice.uniform(20, self._lease_ms / 2)):
            await self._clock.sleep_ms(self._lease_ms * 1.5)

    async def _black_hole(self, instance: Instance) -> None:
        assert instance.gate is not None
        async with instance.gate.fault(Mode.HALF_OPEN):
            await self._clock.sleep_ms(self._lease_ms * self._dice.uniform(1.2, 2.0))
