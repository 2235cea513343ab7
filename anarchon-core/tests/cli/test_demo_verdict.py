"""The verdict of the demonstration counts what the workers wrote, and sees a double run and a missed one."""

from __future__ import annotations

from anarchon.cli.demo_fleet import expected_slots, judge
from anarchon.cli.demo_jobs import Entry

SLOT = 1_800_000_000_000
SLOTS = {("tick", SLOT)}


def entry(event: str, instance: str, attempt: int = 1) -> Entry:
    return Entry(event, instance, "tick", SLOT, attempt, SLOT)


def test_expected_slots_come_from_the_schedules() -> None:
    assert len(expected_slots(SLOT, SLOT + 10_000)) == 10 + 5 + 2


def test_a_slot_done_once_is_ok() -> None:
    verdict = judge([entry("start", "a"), entry("done", "a")], SLOTS, [])
    assert (verdict.verdict, verdict.won, verdict.duplicates, verdict.missed) == ("ok", 1, 0, 0)


def test_an_attempt_that_begins_twice_is_a_duplicate() -> None:
    assert judge([entry("start", "a"), entry("start", "b"), entry("done", "b")], SLOTS, []).duplicates == 1


def test_a_second_attempt_after_one_that_nobody_killed_is_a_duplicate() -> None:
    story = [entry("start", "a"), entry("done", "a"), entry("start", "b", 2), entry("done", "b", 2)]
    assert judge(story, SLOTS, []).verdict == "violated"
    assert judge(story, SLOTS, ["a"]).takeovers == 1


def test_a_slot_that_nobody_did_is_missed() -> None:
    assert judge([], SLOTS, []).missed == 1
    assert judge([entry("start", "a")], SLOTS, ["a"]).missed == 1


def test_a_hand_over_is_counted() -> None:
    story = [entry("start", "a"), entry("cancelled", "a"), entry("start", "b", 2), entry("done", "b", 2)]
    verdict = judge(story, SLOTS, [])
    assert (verdict.verdict, verdict.handovers) == ("ok", 1)
