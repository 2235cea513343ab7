"""Leaderless distributed cron: every instance claims every slot, exactly one wins.

Names are imported when they are first asked for: a command or a web worker that only registers jobs later pays for the
event loop and the plugin machinery when it needs them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOMES = {
    "AnarchonError": "errors",
    "At": "schedule",
    "CatchUp": "job",
    "Cron": "schedule",
    "Every": "schedule",
    "Health": "health",
    "Job": "job",
    "JobRunning": "errors",
    "LeaseLost": "errors",
    "Overlap": "job",
    "Run": "run",
    "RunRecord": "types",
    "RunStatus": "types",
    "Schedule": "schedule",
    "Scheduler": "scheduler",
    "hookimpl": "hookspecs",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        msg = f"module 'anarchon' has no attribute {name!r}"
        raise AttributeError(msg)
    value = globals()[name] = getattr(import_module(f"anarchon.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
