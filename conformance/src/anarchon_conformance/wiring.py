"""How a client is steered: at its calls, at its backend's store steps, or at its requests on the wire."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from enum import StrEnum
from types import TracebackType
from typing import Self

from anarchon.backend import Backend

from anarchon_conformance.arena import Arena
from anarchon_conformance.gate import SETTLE_MS, Gate, Mode, reroute
from anarchon_conformance.steps import Fault, StepGate
from anarchon_conformance.target import Target

__all__ = ["BLOCKED_MS", "CallWire", "Grain", "Wire", "grain_of", "wires"]

BLOCKED_MS = SETTLE_MS
"""A released step that neither ended its call nor came to the next step within this time waits for somebody else."""

ANSWER_MS = 10_000
"""The most that a call may take once everything is let through (C23)."""


class Grain(StrEnum):
    """What one step of a schedule is."""

    CALLS = "calls"
    STEPS = "store steps"
    WIRE = "requests on the wire"


def grain_of(target: Target) -> Grain:
    """Return the finest grain at which this target can be steered."""
    if target.inner_steps or target.offers("connect_factory"):
        return Grain.STEPS
    return Grain.CALLS if target.wire() is None else Grain.WIRE


class Wire(ABC):
    """One client's connection to its store, under the schedule's control."""

    backend: Backend
    outer: bool = False
    """Whether the whole call is the step, so that the driver must wrap it in `gate.step`."""

    @abstractmethod
    def arm(self) -> None:
        """Hold the client at its next step."""

    @abstractmethod
    def disarm(self) -> None:
        """Let everything through."""

    @abstractmethod
    async def settled(self, task: asyncio.Task[None], *, first: bool = False) -> bool:
        """Wait until the call is held at a step (True) or has ended or is blocked at the store (False)."""

    @abstractmethod
    async def release(self, fault: Fault, task: asyncio.Task[None]) -> None:
        """Let the held step through with this fault."""

    @property
    @abstractmethod
    def held(self) -> bool:
        """Whether a step is held now."""


class CallWire(Wire):
    """Steers a client through a `StepGate`: at each call, or at the store steps of a backend that marks them."""

    def __init__(self, backend: Backend, gate: StepGate, *, outer: bool) -> None:
        self.backend, self.gate, self.outer = backend, gate, outer

    def arm(self) -> None:
        self.gate.arm()

    def disarm(self) -> None:
        self.gate.disarm()

    @property
    def held(self) -> bool:
        return self.gate.parked.is_set()

    async def settled(self, task: asyncio.Task[None], *, first: bool = False) -> bool:
        del first
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()

        def wake(*_: object) -> None:
            if not turn.done():
                turn.set_result(None)

        if self.held or task.done():
            return self.held
        task.add_done_callback(wake)
        self.gate.on_park = wake
        timer = loop.call_later(BLOCKED_MS / 1000, wake)
        try:
            await turn
        finally:
            timer.cancel()
            self.gate.on_park = None
            task.remove_done_callback(wake)
        return self.held

    async def release(self, fault: Fault, task: asyncio.Task[None]) -> None:
        del task
        self.gate.release(fault)


class ProxyWire(Wire):
    """Steers a client through a TCP proxy: each request on the wire is a step."""

    def __init__(self, backend: Backend, gate: Gate) -> None:
        self.backend, self.gate = backend, gate

    def arm(self) -> None:
        self.gate.set(Mode.HOLD)

    def disarm(self) -> None:
        self.gate.heal()

    @property
    def held(self) -> bool:
        return self.gate.held > 0

    async def settled(self, task: asyncio.Task[None], *, first: bool = False) -> bool:
        if self.held or task.done():
            return self.held
        waiting = asyncio.create_task(self.gate.wait_held(BLOCKED_MS * (5 if first else 1)))
        await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return self.held

    async def release(self, fault: Fault, task: asyncio.Task[None]) -> None:
        if fault is Fault.REQUEST_LOST:
            self.gate.cut_before()
        elif fault is Fault.REPLY_LOST:
            await self.gate.cut_after()
        elif fault is Fault.CANCELLED:
            task.cancel()
            await asyncio.wait({task}, timeout=ANSWER_MS / 1000)
            self.gate.cut_before()
        else:
            await self.gate.release(settle_ms=BLOCKED_MS)


class wires:  # noqa: N801 - a context, used like a function
    """Open steered clients of a target: `async with wires(arena, 2) as (a, b):`. Every gate is closed at the end."""

    def __init__(self, arena: Arena, count: int, *, skews_ms: tuple[int, ...] = ()) -> None:
        self._arena, self._count = arena, count
        self._skews_ms = skews_ms
        self._gates: list[Gate] = []
        self.all: list[Wire] = []

    async def __aenter__(self) -> Self:
        skews_ms = self._skews_ms or (0,) * self._count
        for skew_ms in skews_ms:
            self.all.append(await self._make(skew_ms))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for wire in self.all:
            wire.disarm()
        for gate in self._gates:
            await gate.close()

    async def another(self) -> Wire:
        """Open one more client, in place of one that cannot be used any more."""
        return await self._make(0)

    async def _make(self, skew_ms: int) -> Wire:
        target = self._arena.target
        if skew_ms:
            outer = not target.inner_steps
            return CallWire(await self._arena.client(target.make_skewed(skew_ms)), StepGate(), outer=outer)
        grain = grain_of(target)
        if grain is Grain.WIRE:
            return await self._proxied(target)
        gate = StepGate()
        if target.offers("connect_factory"):
            return CallWire(await self._arena.client(target.connect_factory(gate)), gate, outer=False)
        return CallWire(await self._arena.client(), gate, outer=grain is Grain.CALLS)

    async def _proxied(self, target: Target) -> Wire:
        address = target.wire()
        assert address is not None
        gate = Gate(*address, ungated=target.ungated)
        await gate.start()
        self._gates.append(gate)
        backend = await self._arena.client(target.make(reroute(target.url, gate.host, gate.port)))
        return ProxyWire(backend, gate)
