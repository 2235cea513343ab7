"""Duels and plans as data: how many there are, that their texts read back, that plans draw and shrink."""

from __future__ import annotations

import asyncio
from math import comb

import pytest
from anarchon_conformance import MissingMethod, RunOptions, Target, Tier
from anarchon_conformance.arena import Arena
from anarchon_conformance.checker import Judgement
from anarchon_conformance.duels import reduced_set, run_duels
from anarchon_conformance.duelset import Act, Before, Duel, Skew, base_duels, interleavings, variants
from anarchon_conformance.plans import PlanRunner, corpus, run_plans
from anarchon_conformance.planset import Plan, plans
from anarchon_conformance.steps import Fault
from anarchon_conformance.wiring import wires
from hypothesis import given, settings


class Plain(Target):
    """The reference store of the core."""

    url = "memory://kit-sets"


def test_there_are_ten_states_and_every_pair_of_operations_on_them() -> None:
    assert len(Before) == 10
    pairs = list(base_duels(lease=True, exact=True))
    assert {pair.before for pair in pairs} == set(Before)
    assert len(pairs) == len(set(pairs)) == 376
    assert len(list(base_duels(lease=False, exact=True))) == 21


def test_an_instant_that_cannot_be_hit_is_not_asked_for() -> None:
    assert Before.LEASE_END not in {pair.before for pair in base_duels(lease=True, exact=False)}


@pytest.mark.parametrize(("left", "right"), [(1, 1), (2, 2), (1, 4), (3, 3)])
def test_few_steps_are_interleaved_in_every_way(left: int, right: int) -> None:
    found = interleavings(left, right)
    assert found == sorted(found), "A's steps first"
    assert len(found) == len(set(found)) == comb(left + right, left)
    assert all((order.count("0"), order.count("1")) == (left, right) for order in found)


def test_many_steps_are_interleaved_in_the_ways_that_catch_most() -> None:
    found = interleavings(6, 6, 12)
    assert 10 < len(found) == len(set(found)) <= 12
    assert {"000000111111", "111111000000", "010101010101"} <= set(found)
    assert all((order.count("0"), order.count("1")) == (6, 6) for order in found)


@pytest.mark.parametrize("steps", [6, 9, 12, 60, 600])
def test_every_kind_of_order_is_among_them_however_many_steps_there_are(steps: int) -> None:
    switches = [(order[0], order.count("01") + order.count("10")) for order in interleavings(steps, steps, 12)]
    for first in "01":
        assert (first, 1) in switches, "one after the other"
        assert (first, 2) in switches, "interrupted once"
        assert [much for who, much in switches if who == first and much > 2], "mixed"


def test_steps_too_many_to_list_every_order_are_still_interleaved() -> None:
    found = interleavings(60, 60, 300)  # there are 10 to the power of 35
    assert len(set(found)) == len(found) > 290
    assert all((order.count("0"), order.count("1")) == (60, 60) for order in found)


def test_a_duel_has_at_most_one_fault_one_jump_one_skew() -> None:
    pair = Duel(Before.EXPIRED, Act.CLAIM, Act.CLAIM, next(iter(base_duels(lease=True, exact=True))).moves)
    found = list(variants(pair, (2, 2), clock=True, skewed=True))
    for duel in found:
        extras = (duel.moves.fault is not Fault.NONE) + bool(duel.moves.jump_ms) + (duel.skew is not Skew.NONE)
        assert extras <= 1
    assert len(found) == 6 * (1 + 12 + 1) + 4 + 2


def test_the_text_of_a_duel_reads_back() -> None:
    for pair in base_duels(lease=True, exact=True):
        for duel in variants(pair, (1, 2), clock=True, skewed=True):
            assert Duel.parse(str(duel)) == duel


@pytest.mark.parametrize(
    "text", ["", "duel:", "duel:free/claim", "duel:nowhere/claim/claim/01", "duel:free/claim/claim/02", "plan:x"]
)
def test_a_text_that_is_no_duel_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no duel"):
        Duel.parse(text)


@pytest.mark.parametrize("lease", [True, False])
def test_the_reduced_set_reads_and_holds_duels_for_any_store(lease: bool) -> None:
    duels = reduced_set(lease=lease)
    assert len(duels) == len(set(duels))
    assert any(duel.every_order for duel in duels)


def test_the_text_of_a_plan_reads_back() -> None:
    @settings(max_examples=100, database=None, deadline=None)
    @given(plans(lease=True, clock=True))
    def check(plan: Plan) -> None:
        assert Plan.parse(str(plan)) == plan

    check()
    assert all(Plan.parse(str(plan)) == plan for plan in corpus())


@pytest.mark.parametrize("text", ["", "plan:", "plan:A.claim.9", "plan:D.claim.0", "plan:A.sing.0", "plan:A.claim.0~later"])
def test_a_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no plan"):
        Plan.parse(text)


def test_a_plan_without_any_of_its_steps_is_still_a_plan_that_can_be_played() -> None:
    async def play() -> None:
        async with Arena(Plain()) as arena, wires(arena, 3) as opened:
            player = PlanRunner(arena, opened)
            plan = Plan.parse("plan:A.claim.0~hold/B.claim.0.s/A.go.0/B.release.0~lost-reply/C.again.0/A.finish.0/B.pause.0")
            for left_out in range(len(plan.steps)):
                steps = plan.steps[:left_out] + plan.steps[left_out + 1 :]
                played = await player.play(Plan(steps))
                assert played.finding.judgement is Judgement.OK, played.finding

    asyncio.run(play())


def test_replays_of_a_right_store_pass() -> None:
    assert not [check for check in run_duels(Plain(), RunOptions(replay="duel:free/claim/claim/01")).checks if check.failure]
    played = run_plans(Plain(), RunOptions(replay="plan:A.claim.0~hold/B.claim.0/A.go.0"))
    assert played.tier is Tier.PLANS
    assert not [check for check in played.checks if check.failure]


def test_a_missing_method_is_named() -> None:
    assert not Plain().offers("raw_run")
    with pytest.raises(MissingMethod, match=r"Target\.raw_run is missing"):
        Plain().require("raw_run")
