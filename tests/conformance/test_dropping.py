"""Leave one clause out of the model: some history of some mutant must then pass, or the clause is dead weight."""

from __future__ import annotations

import asyncio
from functools import cache

import pytest
from anarchon_conformance.arena import Arena
from anarchon_conformance.checker import Judgement, check
from anarchon_conformance.duels import DuelRunner
from anarchon_conformance.duelset import Duel
from anarchon_conformance.history import History
from anarchon_conformance.plans import PlanRunner, corpus
from anarchon_conformance.wiring import wires
from zoo.dropping import without
from zoo.matrix import read_matrix
from zoo.mutants import MUTANTS
from zoo.store import ZooTarget

JUDGED = ["C1", "C2", "C3", "C4", "C8", "C9", "C10", "C11", "C12", "C13", "C14", "C15", "C16", "C17", "C18", "C19"]
"""The clauses that the checker can name; all others have tests of their own in the clauses tier."""


async def _guilty() -> list[tuple[str, History]]:
    found = []
    for kind in MUTANTS:
        duel = read_matrix()[kind.__name__].duel
        async with Arena(ZooTarget(kind)) as arena, DuelRunner(arena) as runner:
            if duel is not None:
                found.append((await runner.fight([Duel.parse(duel)]))[0])
        async with Arena(ZooTarget(kind)) as arena, wires(arena, 3) as opened:
            player = PlanRunner(arena, opened)
            found += [await player.play(plan) for plan in corpus()]  # type: ignore[misc]
    return [(item.finding.clause, item.history) for item in found if item.finding.judgement is Judgement.VIOLATION]


@cache
def guilty() -> list[tuple[str, History]]:
    """Every history of the zoo that breaks a clause, by its duel in the matrix and by the corpus of plans."""
    return asyncio.run(_guilty())


@pytest.mark.parametrize("clause", JUDGED)
def test_without_a_clause_some_guilty_history_passes(clause: str) -> None:
    histories = [history for named, history in guilty() if named == clause]
    assert histories, f"no mutant is caught by {clause}"
    model, ignored = without(clause), frozenset({clause})
    assert any(check(history, model=model, ignore=ignored).judgement is Judgement.OK for history in histories)
