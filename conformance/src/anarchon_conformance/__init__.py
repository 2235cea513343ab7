"""The claim contract of anarchon as a test kit: clauses, duels, plans and chaos for any backend."""

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
