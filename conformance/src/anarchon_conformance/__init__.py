"""The claim contract of anarchon as a test kit: clauses, duels, plans and chaos for any backend.

Names are imported when they are first asked for: pytest loads this package in every session once the kit is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anarchon_conformance.arena import Arena
    from anarchon_conformance.clauses import ClaimSuite, LeaseSuite
    from anarchon_conformance.report import Failure, Mark, Profile, RunOptions, Tier, TierResult, Verdict
    from anarchon_conformance.session import Report, run
    from anarchon_conformance.steps import StepGate, store_step
    from anarchon_conformance.suite import Violation
    from anarchon_conformance.target import MissingMethod, NotClaimed, RawRun, Target

__all__ = [
    "Arena",
    "ClaimSuite",
    "Failure",
    "LeaseSuite",
    "Mark",
    "MissingMethod",
    "NotClaimed",
    "Profile",
    "RawRun",
    "Report",
    "RunOptions",
    "StepGate",
    "Target",
    "Tier",
    "TierResult",
    "Verdict",
    "Violation",
    "run",
    "store_step",
]

_HOMES = {
    "arena": ("Arena",),
    "clauses": ("ClaimSuite", "LeaseSuite"),
    "report": ("Failure", "Mark", "Profile", "RunOptions", "Tier", "TierResult", "Verdict"),
    "session": ("Report", "run"),
    "steps": ("StepGate", "store_step"),
    "suite": ("Violation",),
    "target": ("MissingMethod", "NotClaimed", "RawRun", "Target"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
