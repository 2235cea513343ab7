"""The two suites: what every backend is held to, and what a lease backend is held to besides."""

from __future__ import annotations

from anarchon_conformance.clauses.claiming import ClaimingTests
from anarchon_conformance.clauses.closing import ClosingTests
from anarchon_conformance.clauses.fencing import FencingTests
from anarchon_conformance.clauses.leasing import LeasingTests
from anarchon_conformance.clauses.living import LeaseLivingTests, LivingTests
from anarchon_conformance.clauses.recording import LeaseRecordingTests, RecordingTests
from anarchon_conformance.clauses.remembering import LeaseRememberingTests, RememberingTests
from anarchon_conformance.clauses.timing import LeaseTimingTests, TimingTests

__all__ = ["ClaimSuite", "LeaseSuite"]


class ClaimSuite(ClaimingTests, RememberingTests, TimingTests, RecordingTests, LivingTests, ClosingTests):
    """The clauses of every backend (C1-C9, C18-C25)."""


class LeaseSuite(
    LeasingTests, FencingTests, LeaseRememberingTests, LeaseTimingTests, LeaseRecordingTests, LeaseLivingTests, ClaimSuite
):
    """All clauses, for a backend that also knows who is alive."""
