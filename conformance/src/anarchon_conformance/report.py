"""What a run of the kit found: one verdict a clause, always all clauses, in order; marks; failures as stories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from anarchon.contract import CLAUSES, Scope

from anarchon_conformance.history import History

__all__ = ["Check", "ClauseResult", "Failure", "Mark", "Profile", "RunOptions", "Tier", "TierResult", "Verdict", "judge"]


class Tier(StrEnum):
    """The four kinds of evidence."""

    CLAUSES = "clauses"
    DUELS = "duels"
    PLANS = "plans"
    CHAOS = "chaos"


class Profile(StrEnum):
    """How much of a tier is run."""

    DEFAULT = "default"
    NIGHTLY = "nightly"


class Verdict(StrEnum):
    """What is known about a clause on this target."""

    PASS = "pass"  # noqa: S105 - a verdict, no secret
    NOT_CLAIMED = "not claimed"
    WAIVED = "waived"
    NOT_RUN = "not run"
    UNDECIDED = "undecided"
    VIOLATED = "VIOLATED"


class Mark(StrEnum):
    """Events that must have been seen, or a green run says nothing."""

    TAKEOVER = "takeover"
    LOST_REPLY_RETRY = "lost-reply retry"
    STALE_FINISH = "stale finish"
    OVERLAP = "overlap refusal"
    LIMIT = "limit reached"
    CONCURRENT = "truly concurrent claims"
    EARLY = "early"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a tier is run. `seed` feeds every random choice; `replay` is one case of one tier, as a failure printed it."""

    seed: int = 0
    profile: Profile = Profile.DEFAULT
    replay: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A clause that does not hold: where, the story, and the string that plays it again."""

    clause: str
    where: str
    story: tuple[str, ...]
    replay: str | None = None
    history: History | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Check:
    """Evidence about one clause from one tier: `count` cases with this verdict. `detail` says why where it is no pass."""

    clause: str
    tier: Tier
    verdict: Verdict
    count: int = 1
    detail: str = ""
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class TierResult:
    """Everything that one tier found. `expected` are the marks that must not be zero (a claim-only store has fewer)."""

    tier: Tier
    checks: tuple[Check, ...]
    marks: Mapping[Mark, int] = field(default_factory=dict)
    expected: frozenset[Mark] = frozenset()
    elapsed_ms: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def vacuous(self) -> tuple[Mark, ...]:
        """The marks that should have been seen and were not."""
        return tuple(mark for mark in Mark if mark in self.expected and not self.marks.get(mark, 0))


@dataclass(frozen=True, slots=True)
class ClauseResult:
    """The row of one clause. `counts` are passed cases by tier."""

    clause: str
    title: str
    verdict: Verdict
    counts: Mapping[Tier, int]
    detail: str = ""
    failures: tuple[Failure, ...] = ()


def judge(results: Iterable[TierResult], waivers: Mapping[str, str], *, lease: bool) -> tuple[ClauseResult, ...]:
    """Return one row for each C clause, in order, from what the tiers found."""
    checks = [check for result in results for check in result.checks]
    return tuple(
        _row(entry.number, entry.title, [check for check in checks if check.clause == entry.number], waivers.get(entry.number))
        if lease or entry.scope is not Scope.LEASE
        else ClauseResult(entry.number, entry.title, Verdict.NOT_CLAIMED, {}, "lease backends only")
        for entry in CLAUSES
        if entry.scope is not Scope.SCHEDULER
    )


def _row(number: str, title: str, checks: list[Check], waiver: str | None) -> ClauseResult:
    counts: Counter[Tier] = Counter()
    for check in checks:
        if check.verdict is Verdict.PASS:
            counts[check.tier] += check.count
    failures = tuple(check.failure for check in checks if check.failure is not None)
    found = {check.verdict for check in checks}
    order = (Verdict.VIOLATED, Verdict.UNDECIDED, Verdict.PASS, Verdict.NOT_CLAIMED)
    verdict = next((item for item in order if item in found), Verdict.NOT_RUN)
    details = dict.fromkeys(check.detail for check in checks if check.detail and check.verdict is not Verdict.PASS)
    detail = "; ".join(details)
    if verdict is Verdict.NOT_RUN and not detail:
        detail = "no test of the chosen tiers"
    if waiver is not None:
        if verdict is Verdict.VIOLATED:
            return ClauseResult(number, title, Verdict.WAIVED, counts, waiver, failures)
        detail = f"waived ({waiver}) but not violated: remove the waiver"
        return ClauseResult(number, title, Verdict.VIOLATED, counts, detail, failures)
    return ClauseResult(number, title, verdict, counts, detail, failures)
