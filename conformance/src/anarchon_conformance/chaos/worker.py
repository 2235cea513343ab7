"""A worker process of the chaos tier: `python -m anarchon_conformance.chaos.worker PLAN`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from anarchon.backend import Backend
from anarchon.clock import Clock, SystemClock
from anarchon.errors import AnarchonError, BackendError
from anarchon.types import ClaimRequest, RunKey, new_token

from anarchon_conformance.chaos.claimer import Claimer
from anarchon_conformance.chaos.journal import Journal, What
from anarchon_conformance.chaos.plan import Role, WorkerPlan
from anarchon_conformance.chaos.scheduling import run_scheduler
from anarchon_conformance.target import Target

__all__ = ["main"]

OPEN_RETRY_MS = 100.0
LOOK_MS = 200.0


async def _open(backend: Backend, clock: Clock, stop: asyncio.Event) -> None:
    """Open, again and again until the store answers."""
    while not stop.is_set():
        try:
            async with asyncio.timeout(backend.limits.call_timeout_ms / 1000):
                await backend.open()
                return
        except (BackendError, TimeoutError):
            await clock.wait(stop, OPEN_RETRY_MS)


async def _stop_when_told(stop: asyncio.Event, clock: Clock, life_ms: int) -> None:
    """Set `stop` at SIGTERM, at the end of the worker's life, or when its parent is gone."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    parent, end_ms = os.getppid(), clock.monotonic_ms() + life_ms
    while os.getppid() == parent and clock.monotonic_ms() < end_ms:
        if await clock.wait(stop, LOOK_MS):
            return
    stop.set()


async def _claims(plan: WorkerPlan, journal: Journal) -> None:
    clock, stop = SystemClock(), asyncio.Event()
    backend = Target().make(plan.url)
    watcher = asyncio.create_task(_stop_when_told(stop, clock, plan.life_ms))
    try:
        await _open(backend, clock, stop)
        await Claimer(backend, plan, journal).run(stop)
    finally:
        stop.set()
        await watcher
        await backend.close()


async def _probe(plan: WorkerPlan, journal: Journal) -> None:
    backend = Target().make(plan.url)
    try:
        await backend.open()
        key = RunKey(plan.job, plan.slot_ms)
        claim = await backend.claim(ClaimRequest(key=key, token=new_token(), instance=plan.instance, exclusive=False))
        journal.tell(What.WON if claim.won else What.REFUSED, slot_ms=plan.slot_ms, note=claim.outcome.value)
    finally:
        await backend.close()


def main(arguments: list[str]) -> int:
    """Carry out a plan; 0 at its orderly end, 2 with one sentence if the store cannot be used."""
    plan = WorkerPlan.of_argument(arguments[0])
    with Journal(Path(plan.journal), plan.instance) as journal:
        try:
            if plan.role is Role.SCHEDULER:
                run_scheduler(plan, journal)
            else:
                asyncio.run((_probe if plan.role is Role.PROBE else _claims)(plan, journal))
        except AnarchonError as error:
            journal.tell(What.GAVE_UP, note=f"{type(error).__name__}: {error}")
            return 2
        journal.tell(What.STOPPED)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
