"""Leaderless distributed cron: every instance claims every slot, exactly one wins."""

from anarchon.errors import AnarchonError, JobRunning, LeaseLost
from anarchon.health import Health
from anarchon.hookspecs import hookimpl
from anarchon.job import CatchUp, Job, Overlap
from anarchon.run import Run
from anarchon.schedule import At, Cron, Every, Schedule
from anarchon.scheduler import Scheduler
from anarchon.types import RunRecord, RunStatus

__all__ = [
    "AnarchonError",
    "At",
    "CatchUp",
    "Cron",
    "Every",
    "Health",
    "Job",
    "JobRunning",
    "LeaseLost",
    "Overlap",
    "Run",
    "RunRecord",
    "RunStatus",
    "Schedule",
    "Scheduler",
    "__version__",
    "hookimpl",
]

__version__ = "0.1.0"
