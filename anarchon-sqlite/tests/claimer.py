"""One process of a fleet under test: reads commands as JSON lines, says what happened as JSON lines.

`{"do": "open", "path": ...}`, `{"do": "close"}`, `{"do": "claim", "slots": [...], "stop_at": n, "kill_at": n}`.
`stop_at` and `kill_at` stop or kill this very process inside the transaction that claims the slot of that number.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from dataclasses import replace
from typing import Any

from anarchon.clock import SystemClock
from anarchon.errors import AnarchonError, BackendTimeout
from anarchon.types import Claim, ClaimRequest, RunKey, new_token
from anarchon_sqlite import SQLiteBackend

ASKS_MOST = 200
TEMPLATE = ClaimRequest(
    key=RunKey("fleet", 0),
    token="",
    instance=str(os.getpid()),
    lease_ms=600_000,
    max_late_ms=10**12,
    exclusive=False,
    history_size=10**6,
)


class Trap(SystemClock):
    """The machine's clock, which once raises a signal while the store's transaction is open."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.backend: SQLiteBackend | None = None

    def wall_ms(self) -> float:
        worker = self.backend._writer._worker if self.backend else None
        if self.signal is not None and worker is not None and worker.in_transaction:
            number, self.signal = self.signal, None
            say(trap=number)
            # To this thread: a signal to the process may be taken by another one while this one goes on and commits.
            signal.pthread_kill(threading.get_ident(), number)
        return super().wall_ms()


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


async def ask(backend: SQLiteBackend, slot_ms: int) -> Claim:
    """Claim as the scheduler does: an unknown outcome is asked again with the same token (K2)."""
    request = replace(TEMPLATE, key=RunKey("fleet", slot_ms), token=new_token())
    for _ in range(ASKS_MOST):
        try:
            return await backend.claim(request)
        except BackendTimeout:
            say(timeout=slot_ms)
    raise TimeoutError(slot_ms)


async def claim_all(backend: SQLiteBackend, trap: Trap, command: dict[str, Any]) -> None:
    won = []
    for number, slot_ms in enumerate(command["slots"]):
        if number == command.get("stop_at"):
            trap.signal = signal.SIGSTOP
        if number == command.get("kill_at"):
            trap.signal = signal.SIGKILL
        if (await ask(backend, slot_ms)).won:
            won.append(slot_ms)
    say(won=won)


async def main() -> None:
    trap = Trap()
    backend = SQLiteBackend("unused.db")
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["do"] == "open":
                backend = trap.backend = SQLiteBackend(command["path"], busy_timeout=command.get("busy_timeout", 5), clock=trap)
                await backend.open()
                say(opened=True)
            elif command["do"] == "claim":
                await claim_all(backend, trap, command)
            else:
                await backend.close()
                say(closed=True)
        except AnarchonError as error:
            say(error=f"{type(error).__name__}: {error}")


asyncio.run(main())
