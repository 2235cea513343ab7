"""Fleets of real engines on virtual time: the K clauses under faults, driven by Hypothesis."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from anarchon.testing import Fault, FaultKind, Mark, Plan, simulate
from fleets import AFTER, AMOUNTS, BEFORE, DAYS, DURATIONS_MS, KINDS, NIGHTS, SETTLE, random_plan
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

SCENARIOS = 300
SECONDS = 40
MARKS = (
    Mark.TAKEOVER,
    Mark.LOST_REPLY,
    Mark.HAND_OVER,
    Mark.PARTITION_HEALED,
    Mark.DAYLIGHT_SAVING,
    Mark.DEPLOY,
    Mark.CLOCK_STEP,
)


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    kind = draw(st.sampled_from((*KINDS, FaultKind.STORE_STEP)))
    return Fault(
        at_ms=draw(st.integers(3_000, SECONDS * 900)),
        kind=kind,
        instance=draw(st.integers(0, 4)),
        duration_ms=draw(st.sampled_from(DURATIONS_MS)),
        amount=draw(st.sampled_from(AMOUNTS.get(kind, (0.0,)))),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    return Plan(
        instances=draw(st.sampled_from((3, 3, 4, 5))),
        duration=timedelta(seconds=SECONDS),
        seed=draw(st.integers(0, 2**32)),
        start=draw(st.sampled_from(DAYS + NIGHTS)),
        faults=draw(st.lists(faults(), max_size=8)),
        settle=SETTLE,
        handler_s=draw(st.sampled_from(((0.1, 2.0), (0.1, 9.0), (3.0, 14.0)))),
        skews_ms=draw(st.sampled_from(((), (90_000.0,), (-90_000.0, 0.0, 4_000.0)))),
    )


@pytest.mark.timeout(400)
def test_k_clauses_hold_in_hundreds_of_faulty_fleets(request: pytest.FixtureRequest) -> None:
    marks: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    nightly = request.config.getoption("--profile", "default") == "nightly"

    @settings(
        max_examples=SCENARIOS * (10 if nightly else 1),
        deadline=None,
        derandomize=not nightly,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(plans())
    def holds(plan: Plan) -> None:
        report = simulate(BEFORE, after_deploy=AFTER, plan=plan)
        report.raise_if_violated()
        marks.update(report.marks)
        counts.update(
            scenarios=1,
            slot_instances=report.slot_instances,
            live_overlaps=report.live_overlaps,
            crash_runs=report.crash_runs,
            attempts=len(report.attempts),
        )

    holds()
    print(dict(counts), dict(marks))
    assert counts["scenarios"] >= SCENARIOS
    assert counts["slot_instances"] >= 15_000
    assert {mark: marks[mark] for mark in MARKS if marks[mark] < 30} == {}
    # Two live runs of a job that refuses overlap: only a lease that ends within one round trip can make them (K11).
    assert counts["live_overlaps"] <= 0.005 * counts["attempts"]


def test_a_seed_reproduces_a_simulation_exactly() -> None:
    one, two = (simulate(BEFORE, after_deploy=AFTER, plan=random_plan(7)) for _ in range(2))
    assert [(a.key, a.attempt, a.instance, a.start_ms, a.end) for a in one.attempts] == [
        (a.key, a.attempt, a.instance, a.start_ms, a.end) for a in two.attempts
    ]
    assert one.attempts


def test_without_faults_each_slot_runs_exactly_once_on_the_first_attempt() -> None:
    report = simulate(BEFORE, plan=Plan(instances=5, duration=timedelta(minutes=10), handler_s=(0.1, 2.0)))
    report.raise_if_violated()
    assert {attempt.attempt for attempt in report.attempts} == {1}
    assert report.slots > 350


def test_twenty_instances_are_a_fleet_like_any_other() -> None:
    fault = Fault(20_000, FaultKind.CRASH, 3, 5_000)
    report = simulate(BEFORE, plan=Plan(instances=20, duration=timedelta(seconds=40), faults=(fault,)))
    report.raise_if_violated()
