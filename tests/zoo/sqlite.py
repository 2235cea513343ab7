"""SQLite as a target of the kit: gated transaction by transaction, and once broken on purpose."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from anarchon.backend import Backend
from anarchon.clock import SystemClock
from anarchon.types import Claim, ClaimRequest, Outcome, RunKey, RunResult, RunView
from anarchon_conformance import RawRun, StepGate, Target
from anarchon_sqlite import SQLiteBackend

T = TypeVar("T")


class SteppedClock(SystemClock):
    """The machine's clock, and a step on top."""

    def __init__(self) -> None:
        self.stepped_ms = 0

    def wall_ms(self) -> float:
        return super().wall_ms() + self.stepped_ms


class GatedSQLite(SQLiteBackend):
    """The real backend, each of its transactions behind the gate."""

    def __init__(self, path: Path, gate: StepGate, clock: SteppedClock) -> None:
        super().__init__(path, clock=clock)
        self.gate = gate

    async def claim(self, request: ClaimRequest) -> Claim:
        async with self.gate.step("peek"):
            known = await self._writer.read(lambda db: self._steps.peek(db, request))
        if known is not None:
            return known
        async with self.gate.step("claim"):
            return await self._writer.write(lambda db: self._steps.claim(db, request))

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        async with self.gate.step("finish"):
            return await super().finish(key, token, result)

    async def renew(self, key: RunKey, token: str, lease_ms: int) -> bool:
        async with self.gate.step("renew"):
            return await super().renew(key, token, lease_ms)

    async def release(
        self, key: RunKey, token: str, *, delay_ms: int = 0, counted: bool = False, error: str | None = None
    ) -> bool:
        async with self.gate.step("release"):
            return await super().release(key, token, delay_ms=delay_ms, counted=counted, error=error)

    async def check(self, keys: Sequence[RunKey]) -> list[RunView | None]:
        async with self.gate.step("check"):
            return await super().check(keys)

    async def set_paused(self, job: str, paused: bool) -> None:
        async with self.gate.step("pause"):
            await super().set_paused(job, paused)


class CheckThenSetSQLite(GatedSQLite):
    """Broken on purpose: one transaction reads that a slot is free, a second one writes the run, whatever is there by then."""

    async def claim(self, request: ClaimRequest) -> Claim:
        key = request.key

        def is_free(db: sqlite3.Connection) -> bool:
            return self._steps._run(db, key) is None

        def write(db: sqlite3.Connection) -> Claim:
            claim = self._steps.claim(db, request)
            if claim.outcome is Outcome.RUNNING:  # an upsert does not mind
                now_ms = self._steps.now_ms()
                db.execute("UPDATE runs SET token = ? WHERE job = ? AND slot_ms = ?", (request.token, key.job, key.slot_ms))
                return Claim(Outcome.WON, 1, store_now_ms=now_ms)
            return claim

        async with self.gate.step("read"):
            free = await self._writer.read(is_free)
        if not free:
            return await super().claim(request)
        async with self.gate.step("write"):
            return await self._writer.write(write)


class SQLiteTarget(Target):
    """An SQLite file, with the side doors that a file can offer."""

    kind: type[GatedSQLite] = GatedSQLite

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self.hands = SteppedClock()

    def make(self, url: str) -> Backend:
        return self.kind(self.path, StepGate(), self.hands)

    def connect_factory(self, gate: StepGate) -> Backend:
        return self.kind(self.path, gate, self.hands)

    async def step_clock(self, delta_ms: int) -> None:
        self.hands.stepped_ms += delta_ms

    async def raw_run(self, key: RunKey) -> RawRun | None:
        db = sqlite3.connect(self.path)
        try:
            row = db.execute(
                "SELECT token, attempt FROM runs WHERE job = ? AND slot_ms = ? AND space = ?", (key.job, key.slot_ms, key.space)
            ).fetchone()
        finally:
            db.close()
        return None if row is None else RawRun(None, row[1], row[0])


class BrokenSQLiteTarget(SQLiteTarget):
    """The same, broken."""

    kind = CheckThenSetSQLite
