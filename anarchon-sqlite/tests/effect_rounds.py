"""Rounds of a handler that is killed at a chosen statement: `python effect_rounds.py FILE ROUNDS` prints what came of them.

Each round forks a child that claims a slot and writes its effects in a transaction block; SIGKILL ends it right before its
k-th statement, on whichever connection that is. Children without a kill then come until the slot is done.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from anarchon.types import ClaimRequest, Outcome, RunKey, RunResult, RunStatus, new_token
from anarchon_sqlite import SQLiteBackend

SLOT_MS = 1_700_000_000_000
TRIES_MOST = 5
WON, NOT_WON = 0, 3
connect = sqlite3.connect


def kill_before(statement: int) -> None:
    """Let this process die right before its n-th statement."""
    count = 0

    def trace(_: str) -> None:
        nonlocal count
        count += 1
        if count == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    def traced(*arguments: Any, **more: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*arguments, **more)
        db.set_trace_callback(trace)
        return db

    sqlite3.connect = traced  # type: ignore[assignment]  # this process has no other purpose


async def attempt(path: Path, slot_ms: int) -> int:
    """Claim the slot and, if it is won, write its effects and its end in one transaction."""
    backend = SQLiteBackend(path)
    await backend.open()
    key, token = RunKey("job", slot_ms), new_token()
    ten_years_ms = 315_360_000_000
    claim = await backend.claim(
        ClaimRequest(
            key=key, token=token, instance="i", lease_ms=1, attempt_limit=50, max_late_ms=ten_years_ms, keep_ms=ten_years_ms
        )
    )
    if claim.outcome is Outcome.WON:
        async with backend.transaction(key, token, RunResult(RunStatus.SUCCESS), limit_ms=5_000) as db:
            await db.execute("INSERT INTO effects VALUES (?)", (slot_ms,))
            await db.execute("UPDATE total SET n = n + 1")
    await backend.close()
    return WON if claim.outcome is Outcome.WON else NOT_WON


def child(path: Path, slot_ms: int, statement: int | None) -> int:
    """Run an attempt in a process of its own and return how it ended; negative is the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        if statement is not None:
            kill_before(statement)
        os._exit(asyncio.run(attempt(path, slot_ms)))
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def main(path: Path, rounds: int) -> None:
    """Kill at statement 1, 2, 3, … and begin again where a round survives its whole life."""
    with connect(path) as db:
        db.execute("CREATE TABLE effects (slot_ms INTEGER)")
        db.execute("CREATE TABLE total (n INTEGER)")
        db.execute("INSERT INTO total VALUES (0)")
    killed, statement, most = 0, 0, 0
    for number in range(rounds):
        slot_ms, statement = SLOT_MS + number * 1_000, statement + 1
        ended = child(path, slot_ms, statement)
        killed += ended == -signal.SIGKILL
        most = max(most, statement)
        if ended != -signal.SIGKILL:
            statement = 0
        for _ in range(TRIES_MOST):
            if child(path, slot_ms, None) == NOT_WON:
                break
    db = connect(path)
    counts = dict(db.execute("SELECT slot_ms, count(*) FROM effects GROUP BY slot_ms").fetchall())
    total = db.execute("SELECT n FROM total").fetchone()[0]
    wrong = [n for n in range(rounds) if counts.get(SLOT_MS + n * 1_000) != 1]
    print(json.dumps({"rounds": rounds, "killed": killed, "statements": most, "total": total, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
