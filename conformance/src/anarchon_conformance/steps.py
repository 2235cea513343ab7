"""Store steps: the points where a schedule may hold a client, lose its request or lose its reply.

A store on TCP is gated by a proxy (`gate.Gate`). A store without a wire is gated call by call, or statement by statement
if its backend says where a step begins: `async with gate.step("read the row"):` around each statement.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from enum import StrEnum

from anarchon.errors import BackendTimeout, BackendUnavailable

__all__ = ["Fault", "StepGate", "current_gate", "store_step"]


class Fault(StrEnum):
    """What happens to one store step."""

    NONE = "none"
    REQUEST_LOST = "request lost"
    REPLY_LOST = "reply lost"
    CANCELLED = "cancelled"
    """The caller is cancelled after the store took the step and before the answer came (C22)."""


class StepGate:
    """Holds one client at each of its store steps until the schedule releases it; passes everything until `arm`."""

    def __init__(self) -> None:
        self._armed = False
        self._turn: asyncio.Future[Fault] | None = None
        self.label = ""
        self.taken = 0
        self.parked = asyncio.Event()
        self.on_park: Callable[[], None] | None = None
        """Called when a step is held; the driver waits on it without a task of its own."""

    def arm(self) -> None:
        """Hold every step from now on."""
        self._armed = True
        self.taken = 0

    def disarm(self) -> None:
        """Let everything through, also what is held now."""
        self._armed = False
        self.release(Fault.NONE)

    def release(self, fault: Fault) -> None:
        """Let the held step through, with a fault or without; nothing happens if no step is held."""
        turn, self._turn = self._turn, None
        self.parked.clear()
        if turn is not None and not turn.done():
            turn.set_result(fault)

    @asynccontextmanager
    async def step(self, label: str = "") -> AsyncIterator[None]:
        """Run one store step.

        Raises:
            BackendUnavailable: the schedule lost the request: the store saw nothing.
            BackendTimeout: the schedule lost the reply: the store took the step.
        """
        fault = await self._arrive(label) if self._armed else Fault.NONE
        if fault is Fault.REQUEST_LOST:
            msg = "the connection broke before the request was sent (on purpose)"
            raise BackendUnavailable(msg)
        yield
        if fault is Fault.REPLY_LOST:
            msg = "the connection broke before the answer came (on purpose)"
            raise BackendTimeout(msg)
        if fault is Fault.CANCELLED:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.Event().wait()

    async def _arrive(self, label: str) -> Fault:
        self.label = label
        self.taken += 1
        self._turn = asyncio.get_running_loop().create_future()
        self.parked.set()
        if self.on_park is not None:
            self.on_park()
        try:
            return await self._turn
        finally:
            self._turn = None
            self.parked.clear()


current_gate: ContextVar[StepGate | None] = ContextVar("anarchon_conformance_gate", default=None)
"""The gate of the client whose call runs in this context; set by the driver, None elsewhere."""


def store_step(label: str = "") -> AbstractAsyncContextManager[None]:
    """Return the context of one store step of the call that runs now; free of effect outside a driven call."""
    gate = current_gate.get()
    return nullcontext() if gate is None else gate.step(label)
