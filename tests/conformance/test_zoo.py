"""The zoo: what is right never alarms, what is broken is caught exactly as the committed matrix says."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from anarchon_conformance import RunOptions, Tier
from anarchon_conformance.duels import reduced_set, run_duels
from anarchon_conformance.plans import run_plans
from anarchon_conformance.session import run_clauses
from zoo.matrix import Kind, first_duel, kills_of, read_matrix
from zoo.mutants import MUTANTS, RIGHT, CheckThenSet
from zoo.store import SimBackend, ZooTarget


def test_there_are_at_least_twenty_and_the_matrix_names_them_all() -> None:
    assert len(MUTANTS) >= 20
    assert list(read_matrix()) == [kind.__name__ for kind in MUTANTS]


def test_every_mutant_is_caught_by_some_tier() -> None:
    survivors = [
        name for name, kills in read_matrix().items() if not kills.clauses and kills.duels is None and kills.plans is None
    ]
    assert survivors == []


@pytest.mark.parametrize("kind", MUTANTS, ids=lambda kind: kind.__name__)
def test_a_mutant_dies_exactly_as_the_matrix_says(kind: Kind) -> None:
    assert kills_of(kind) == read_matrix()[kind.__name__]


@pytest.mark.parametrize("kind", MUTANTS, ids=lambda kind: kind.__name__)
def test_the_reduced_set_kills_what_duels_can_kill(kind: Kind) -> None:
    if read_matrix()[kind.__name__].duels is not None:
        duels = reduced_set(lease=issubclass(kind, SimBackend))
        assert asyncio.run(first_duel(kind, duels)) is not None


@pytest.mark.parametrize("kind", RIGHT, ids=lambda kind: kind.__name__)
def test_what_is_right_passes_the_clauses_and_every_duel(kind: Kind) -> None:
    assert not [
        check for check in run_clauses(ZooTarget(kind), RunOptions(), lease=issubclass(kind, SimBackend)).checks if check.failure
    ]
    result = run_duels(ZooTarget(kind), RunOptions())
    assert [check.failure for check in result.checks if check.failure] == []
    assert result.vacuous == ()


@pytest.mark.parametrize("kind", RIGHT, ids=lambda kind: kind.__name__)
def test_what_is_right_never_alarms_on_twenty_fresh_seeds(kind: Kind) -> None:
    for _ in range(20):
        seed = secrets.randbelow(2**32)
        result = run_plans(ZooTarget(kind), RunOptions(seed), most=25)
        assert [check.failure for check in result.checks if check.failure] == [], f"seed {seed}"
        assert result.vacuous == ()


def test_a_drawn_plan_that_fails_shrinks_to_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anarchon_conformance.plans.corpus", lambda: ())
    result = run_plans(ZooTarget(CheckThenSet), RunOptions(seed=3), most=2_000)
    failure = next(check.failure for check in result.checks if check.failure)
    assert failure.replay is not None
    assert len(failure.replay.split("/")) <= 4
    assert result.tier is Tier.PLANS
