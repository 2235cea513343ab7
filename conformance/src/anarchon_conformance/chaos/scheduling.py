"""A real scheduler as a worker: one job every second whose handler writes down when it starts and ends."""

from __future__ import annotations

import asyncio
import os
import threading

from anarchon import hookspecs
from anarchon.backend import LeaseBackend
from anarchon.clock import SystemClock
from anarchon.job import JobOptions
from anarchon.run import Run
from anarchon.schedule import Every
from anarchon.scheduler import Scheduler
from anarchon.types import RunKey, RunStatus

from anarchon_conformance.chaos.journal import Journal, What
from anarchon_conformance.chaos.plan import OffClock, WorkerPlan

__all__ = ["run_scheduler"]

GRACE_S = 2
GONE_MS = 500.0


class _Observer:
    """Writes down what the scheduler tells."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @hookspecs.hookimpl
    def anarchon_run_finished(self, key: RunKey, attempt: int, status: RunStatus, recorded: bool) -> None:  # noqa: FBT001 - a hook
        if recorded:
            self._journal.tell(What.RECORDED, slot_ms=key.slot_ms, attempt=attempt, note=status.value)

    @hookspecs.hookimpl
    def anarchon_slot_skipped(self, key: RunKey, reason: str) -> None:
        self._journal.tell(What.NOTED, slot_ms=key.slot_ms, note=reason)

    @hookspecs.hookimpl
    def anarchon_run_missed(self, key: RunKey, reason: str) -> None:
        self._journal.tell(What.NOTED, slot_ms=key.slot_ms, note=reason)

    @hookspecs.hookimpl
    def anarchon_run_released(self, key: RunKey, attempt: int, why: str) -> None:
        self._journal.tell(What.RELEASED, slot_ms=key.slot_ms, attempt=attempt, note=why)


def run_scheduler(plan: WorkerPlan, journal: Journal) -> None:
    """Run a scheduler until SIGTERM, or until the parent is gone or the worker's life is over."""
    clock = SystemClock()

    async def handler(run: Run) -> None:
        def tell(what: What) -> None:
            journal.tell(what, slot_ms=run.slot_ms, attempt=run.attempt, token=run.token)

        tell(What.STARTED)
        try:
            await clock.sleep_ms(plan.work_ms)
        except asyncio.CancelledError:
            tell(What.CANCELLED)
            raise
        tell(What.ENDED)

    scheduler = Scheduler(
        plan.url, instance=plan.instance, grace=GRACE_S, plugins=[_Observer(journal)], clock=OffClock(plan.skew_ms)
    )
    # The verdict reads the whole history at the end, also of a storm that lasts longer than a hundred runs.
    options: JobOptions = {
        "jitter": 0.05,
        "max_late": plan.max_late_ms / 1000,
        "overlap": "allow",
        "history_size": max(100, 2 * plan.life_ms // plan.period_ms),
    }
    if isinstance(scheduler.backend, LeaseBackend):
        options |= {"lease": plan.lease_ms / 1000, "heartbeat": plan.lease_ms / 3000, "max_attempts": 50}
    scheduler.add_job(handler, Every(seconds=max(1, plan.period_ms // 1000)), name=plan.job, **options)
    guard = threading.Thread(target=_leave_with_parent, args=(plan.life_ms,), daemon=True)
    guard.start()
    journal.tell(What.READY)
    scheduler.run()


def _leave_with_parent(life_ms: int) -> None:
    """End this process when nobody waits for it any more."""
    parent, clock, never = os.getppid(), SystemClock(), threading.Event()
    end_ms = clock.monotonic_ms() + life_ms
    while os.getppid() == parent and clock.monotonic_ms() < end_ms:
        never.wait(GONE_MS / 1000)
    os._exit(3)
