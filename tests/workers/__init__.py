"""Real processes that run real schedulers, and what tests need to start, stop, pause, kill and judge them."""

from __future__ import annotations

from workers.pack import Pack, Pulse, Worker, eventually
from workers.program import Entry, JobPlan, Kind, Plan, now_ms

__all__ = ["Entry", "JobPlan", "Kind", "Pack", "Plan", "Pulse", "Worker", "eventually", "now_ms"]
