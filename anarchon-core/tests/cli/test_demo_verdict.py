"""The verdict of the demonstration counts what the workers wrote, and sees a double run and a missed one."""

from __future__ import annotations

from pathlib import Path

from anarchon.cli.demo_fleet import expected_slots, judge
from anarchon.cli.demo_jobs import Entry, Journal, Tail

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


def test_two_successes_of_one_slot_are_a_duplicate_unless_the_first_was_killed_before_it_could_say_so() -> None:
    story = [entry("start", "a"), entry("done", "a"), entry("start", "b", 2), entry("done", "b", 2)]
    assert judge(story, SLOTS, []).verdict == "violated"
    assert judge(story, SLOTS, ["a"]).takeovers == 1


def test_a_slot_that_nobody_did_is_missed() -> None:
    assert judge([], SLOTS, []).missed == 1
    assert judge([entry("start", "a")], SLOTS, ["a"]).missed == 1


def test_a_takeover_from_a_killed_instance_and_from_one_that_stood_still() -> None:
    story = [entry("start", "a"), entry("start", "b", 2), entry("done", "b", 2)]
    for killed in (["a"], []):
        verdict = judge(story, SLOTS, killed)
        assert (verdict.verdict, verdict.takeovers, verdict.handovers) == ("ok", 1, 0)


def test_a_hand_over_is_counted() -> None:
    story = [entry("start", "a"), entry("cancelled", "a"), entry("start", "b", 2), entry("done", "b", 2)]
    verdict = judge(story, SLOTS, [])
    assert (verdict.verdict, verdict.takeovers, verdict.handovers) == ("ok", 0, 1)


def test_slots_outside_the_counted_time_do_not_count() -> None:
    outside = Entry("start", "a", "tick", SLOT + 60_000, 1, SLOT)
    assert judge([entry("start", "a"), entry("done", "a"), outside], SLOTS, []).won == 1


def test_a_journal_is_read_as_it_grows_and_never_half_a_line(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    tail = Tail(file)
    assert tail.read_new() == []
    journal = Journal(file, "a")
    journal.write("ready")
    assert [each.event for each in tail.read_new()] == ["ready"]
    with file.open("ab") as half:
        half.write(b'{"event": "start", "inst')
    assert tail.read_new() == []
    with file.open("ab") as half:
        half.write(b'ance": "b"}\n')
    assert [each.instance for each in tail.read_new()] == ["b"]
