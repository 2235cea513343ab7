"""The clauses tier: one small test for each thing that a clause says. Subclass a suite and set `target`."""

from anarchon_conformance.clauses.suites import ClaimSuite, LeaseSuite

__all__ = ["ClaimSuite", "LeaseSuite"]
