"""One run of the kit on one target: which tiers, in which order, and the report that they add up to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anarchon.backend import CONTRACT_VERSION
from anarchon.types import Limits

from anarchon_conformance.arena import Arena
from anarchon_conformance.report import ClauseResult, Failure, RunOptions, Tier, TierResult, Verdict, judge
from anarchon_conformance.target import Target

__all__ = ["DEFAULT_TIERS", "Report", "run", "run_clauses", "tier_of_replay"]

DEFAULT_TIERS = (Tier.CLAUSES, Tier.DUELS, Tier.PLANS)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a run found; every clause has a row."""

    target: str
    lease: bool
    limits: Limits
    options: RunOptions
    rows: tuple[ClauseResult, ...]
    tiers: tuple[TierResult, ...]
    contract: int = CONTRACT_VERSION

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The failures of clauses that are not waived, in the order of the clauses."""
        return tuple(failure for row in self.rows if row.verdict is not Verdict.WAIVED for failure in row.failures)

    @property
    def passed(self) -> bool:
        """Whether nothing that is claimed was violated or left undecided, and no tier was vacuous."""
        bad = {Verdict.VIOLATED, Verdict.UNDECIDED}
        return not any(row.verdict in bad for row in self.rows) and not any(result.vacuous for result in self.tiers)


def tier_of_replay(text: str) -> tuple[Tier, str]:
    """Return which tier a replay string belongs to, and what that tier is to be told.

    Raises:
        ValueError: it is no replay string.
    """
    head, _, rest = text.partition(":")
    known = {"clauses": Tier.CLAUSES, "duel": Tier.DUELS, "plan": Tier.PLANS, "chaos": Tier.CHAOS}
    if head not in known or not rest:
        msg = f"{text!r:.200} is no replay string: copy the one that a failure printed, for example duel:free/claim/claim/01"
        raise ValueError(msg)
    return known[head], rest if known[head] in {Tier.CLAUSES, Tier.CHAOS} else text


def run(target: Target, options: RunOptions, *, tiers: Sequence[Tier] = DEFAULT_TIERS) -> Report:
    """Run some tiers on a target, or the one case that `options.replay` names.

    Raises:
        ConfigurationError: the URL cannot be used.
        BackendError: the store cannot be opened.
        ValueError: the replay string cannot be read.
    """
    told = options
    if options.replay is not None:
        tier, rest = tier_of_replay(options.replay)
        tiers, told = (tier,), replace(options, replay=rest)
    lease, limits = asyncio.run(_introduction(target))
    results = tuple(_run_tier(target, told, tier=tier, lease=lease) for tier in Tier if tier in tiers)
    rows = judge(results, target.waivers, lease=lease)
    return Report(target.name, lease, limits, options, rows, results)


async def _introduction(target: Target) -> tuple[bool, Limits]:
    async with Arena(target) as arena:
        return arena.lease, arena.limits


def _run_tier(target: Target, options: RunOptions, *, tier: Tier, lease: bool) -> TierResult:
    match tier:
        case Tier.CLAUSES:
            return run_clauses(target, options, lease=lease)
        case Tier.DUELS:
            from anarchon_conformance.duels import run_duels

            return run_duels(target, options)
        case Tier.PLANS:
            from anarchon_conformance.plans import run_plans

            return run_plans(target, options)
        case Tier.CHAOS:
            from anarchon_conformance.chaos import run_chaos

            return asyncio.run(run_chaos(target, options))


def run_clauses(target: Target, options: RunOptions, *, lease: bool) -> TierResult:
    """Run the clauses tier on a target."""
    from anarchon_conformance.clauses import ClaimSuite, LeaseSuite
    from anarchon_conformance.suite import run_suite

    base = LeaseSuite if lease else ClaimSuite
    suite: type[ClaimSuite] = type(f"Suite of {target.name}", (base,), {"target": target})
    return asyncio.run(run_suite(suite(), options))
