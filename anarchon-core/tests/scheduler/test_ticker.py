"""The ticker: which slots are due, and which passed unseen. Pure; time is an argument."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from anarchon import Cron, Every
from anarchon.job import Job
from anarchon.ticker import Due, Gap, Ticker
from rig import START_MS, Grid, Slots, job_of

YEAR_MS = 366 * 86_400_000


class Bench:
    """A ticker with its failures; `draw` decides the jitter."""

    def __init__(self, draw: Callable[[float], float] = lambda most_ms: 0.0) -> None:
        self.failed: list[tuple[str, str]] = []
        self.ticker = Ticker(draw, self._fail)

    def _fail(self, job: Job, error: Exception) -> None:
        self.failed.append((job.name, type(error).__name__))

    def due(self, now_ms: float) -> list[tuple[str, int]]:
        """Return what is due as (job, milliseconds since the start); there must be no gap."""
        due, gaps = self.ticker.pop(now_ms)
        assert gaps == []
        slots = [item.slot_ms for item in due]
        assert slots == sorted(slots)
        return sorted(((item.job.name, item.slot_ms - START_MS) for item in due), key=lambda entry: (entry[1], entry[0]))


def test_slots_come_at_their_time_oldest_first() -> None:
    bench = Bench()
    bench.ticker.add(job_of(Grid(2_000), name="b"), START_MS)
    bench.ticker.add(job_of(Grid(3_000), name="a"), START_MS)
    assert bench.ticker.next_ms() == START_MS + 2_000
    assert bench.due(START_MS + 1_999) == []
    assert bench.due(START_MS + 2_000) == [("b", 2_000)]
    assert bench.due(START_MS + 2_000) == []
    assert bench.due(START_MS + 6_000) == [("a", 3_000), ("b", 4_000), ("a", 6_000), ("b", 6_000)]
    assert bench.ticker.next_ms() == START_MS + 8_000


def test_k3_the_first_slot_is_the_next_one_strictly_after_the_start() -> None:
    bench = Bench()
    bench.ticker.add(job_of(Grid(1_000)), START_MS)
    assert bench.due(START_MS) == []
    assert bench.due(START_MS + 1_000) == [("job", 1_000)]


def test_an_empty_ticker_has_nothing_to_say() -> None:
    bench = Bench()
    assert bench.ticker.next_ms() is None
    assert bench.ticker.pop(START_MS) == ([], [])
    bench.ticker.add(job_of(Slots(START_MS - 1)), START_MS)
    assert bench.ticker.next_ms() is None


def test_equal_schedules_share_one_evaluation_a_slot() -> None:
    asked: list[int] = []

    class Counted(Grid):
        def next_after(self, t_ms: int, /) -> int | None:
            asked.append(t_ms)
            return super().next_after(t_ms)

    bench = Bench()
    for number in range(1_000):
        bench.ticker.add(job_of(Counted(1_000), name=f"job-{number}"), START_MS)
    assert len(asked) == 1
    assert len(bench.due(START_MS + 1_000)) == 1_000
    assert len(asked) == 2


def test_the_drawn_jitter_delays_a_slot_and_nothing_else() -> None:
    asked: list[float] = []

    def draw(most_ms: float) -> float:
        asked.append(most_ms)
        return most_ms

    bench = Bench(draw)
    bench.ticker.add(job_of(Grid(60_000), name="written", jitter=30), START_MS)
    bench.ticker.add(job_of(Grid(60_000), name="default", jitter=None), START_MS)
    bench.ticker.add(job_of(Grid(5_000), name="frequent", jitter=None), START_MS)
    bench.ticker.add(job_of(Grid(60_000), name="narrow", jitter=None, max_late=1), START_MS)
    slot = START_MS + 60_000
    for at_ms in range(START_MS + 5_000, slot, 5_000):
        bench.due(at_ms + 500)
    asked.clear()
    assert bench.due(slot) == []
    assert sorted(asked) == [500, 500, 2_000, 30_000]  # a tenth of 5 s, half of max_late, 2 s, as written
    assert bench.due(slot + 500) == [("frequent", 60_000), ("narrow", 60_000)]
    assert bench.due(slot + 1_999) == []
    assert bench.due(slot + 2_000) == [("default", 60_000)]


def test_a_removed_job_is_not_due_any_more_its_waiting_slots_neither() -> None:
    bench = Bench(lambda most_ms: most_ms)
    bench.ticker.add(job_of(Grid(1_000), name="a", jitter=0.5), START_MS)
    bench.ticker.add(job_of(Grid(1_000), name="b", jitter=0.5), START_MS)
    assert bench.due(START_MS + 1_000) == []
    bench.ticker.remove("a")
    bench.ticker.remove("unknown")
    assert bench.due(START_MS + 1_500) == [("b", 1_000)]
    bench.ticker.remove("b")
    assert bench.due(START_MS + 9_000) == []
    assert bench.ticker.next_ms() is None


def test_a_job_added_again_under_its_name_is_not_run_for_a_slot_of_the_old_one() -> None:
    bench = Bench(lambda most_ms: most_ms)
    bench.ticker.add(job_of(Grid(1_000), lambda: None, jitter=0.5), START_MS)
    assert bench.due(START_MS + 1_000) == []
    bench.ticker.remove("job")
    bench.ticker.add(job_of(Grid(60_000), lambda: None, jitter=0.5), START_MS + 1_100)
    assert bench.due(START_MS + 2_000) == []


def test_k9_jobs_that_come_and_go_leave_nothing_behind() -> None:
    bench = Bench()
    bench.ticker.add(job_of(Slots(START_MS + YEAR_MS), name="stays"), START_MS)
    for number in range(2_000):
        bench.ticker.add(job_of(Slots(START_MS + YEAR_MS + number), name="comes"), START_MS)
        bench.ticker.remove("comes")
    assert len(bench.ticker._heap) < 200
    assert bench.due(START_MS + 1) == []
    assert bench.ticker.next_ms() == START_MS + YEAR_MS


def test_k13_slots_too_old_to_claim_are_reported_as_a_gap_not_walked() -> None:
    asked: list[int] = []

    class Counted(Grid):
        def next_after(self, t_ms: int, /) -> int | None:
            asked.append(t_ms)
            return super().next_after(t_ms)

    job = job_of(Counted(1_000), max_late=10)
    bench = Bench()
    bench.ticker.add(job, START_MS)
    now_ms = START_MS + 5 * YEAR_MS
    due, gaps = bench.ticker.pop(now_ms)
    assert gaps == [Gap(job, START_MS + 999, now_ms - 10_001)]
    assert [item.slot_ms for item in due] == [now_ms - back_ms for back_ms in range(10_000, -1, -1_000)]
    assert len(asked) < 20  # K9


def test_k13_jobs_of_one_schedule_have_each_its_own_late_window() -> None:
    patient, narrow = job_of(Grid(1_000), name="patient", max_late=60), job_of(Grid(1_000), name="narrow", max_late=2)
    bench = Bench()
    bench.ticker.add(patient, START_MS)
    bench.ticker.add(narrow, START_MS)
    now_ms = START_MS + 10_000
    due, gaps = bench.ticker.pop(now_ms)
    claimed = {job.name: {item.slot_ms for item in due if item.job is job} for job in (patient, narrow)}
    assert claimed["patient"] == set(range(START_MS + 1_000, now_ms + 1, 1_000))
    assert claimed["narrow"] == {now_ms - 2_000, now_ms - 1_000, now_ms}
    assert gaps == [Gap(narrow, START_MS + 999, now_ms - 2_001)]


@pytest.mark.parametrize("now_ms", [START_MS + 100_000, START_MS + 100_000.25, START_MS + 99_999.75, START_MS + 7_000.5])
def test_k13_every_slot_is_either_due_or_in_a_gap(now_ms: float) -> None:
    bench = Bench()
    jobs = [job_of(Grid(1_000), name=str(late), max_late=late) for late in (1, 5, 60, 99.5)]
    for job in jobs:
        bench.ticker.add(job, START_MS)
    due, gaps = bench.ticker.pop(now_ms)
    for job in jobs:
        seen = [item.slot_ms for item in due if item.job is job]
        for gap in (gap for gap in gaps if gap.job is job):
            seen += [slot for slot in range(START_MS, START_MS + 200_000, 1_000) if gap.after_ms < slot <= gap.until_ms]
        assert sorted(seen) == list(range(START_MS + 1_000, int(now_ms) + 1, 1_000))


def test_reposition_starts_from_an_earlier_now_and_keeps_what_waits() -> None:
    bench = Bench(lambda most_ms: most_ms)
    bench.ticker.add(job_of(Grid(60_000), jitter=1), START_MS)
    bench.ticker.pop(START_MS + 60_000)
    assert bench.ticker.next_ms() == START_MS + 61_000
    bench.ticker.reposition(START_MS - YEAR_MS)
    assert bench.ticker.next_ms() == START_MS - YEAR_MS + 60_000
    bench.ticker.reposition(START_MS + YEAR_MS)
    assert bench.ticker.next_ms() == START_MS + 61_000
    assert bench.due(START_MS + 61_000) == [("job", 60_000)]


def test_put_back_waits_for_its_time_once_more() -> None:
    bench = Bench()
    job = job_of(Grid(60_000))
    bench.ticker.add(job, START_MS)
    ((due,), _) = bench.ticker.pop(START_MS + 60_000)
    bench.ticker.put_back(Due(job, due.slot_ms, due.at_ms + 250))
    assert bench.ticker.next_ms() == START_MS + 60_250
    assert bench.due(START_MS + 60_249) == []
    assert bench.due(START_MS + 60_250) == [("job", 60_000)]


class Broken:
    """A schedule that answers what it is told to."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def next_after(self, t_ms: int, /) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer(t_ms) if callable(self.answer) else self.answer

    @property
    def digest(self) -> str:
        return f"broken-{self.answer}"


BROKEN: list[Any] = [
    ValueError("no"),
    lambda t_ms: t_ms,
    lambda t_ms: t_ms - 1,
    lambda t_ms: datetime(2030, 1, 1, tzinfo=UTC),
    lambda t_ms: "soon",
    lambda t_ms: t_ms + 0.5,
    lambda t_ms: True,
]


@pytest.mark.parametrize("answer", BROKEN)
def test_k5_a_broken_schedule_is_told_and_stops_no_other(answer: Any) -> None:
    bench = Bench()
    bench.ticker.add(job_of(Broken(answer), name="broken"), START_MS)
    bench.ticker.add(job_of(Grid(1_000), name="fine"), START_MS)
    assert [name for name, _ in bench.failed] == ["broken"]
    assert bench.due(START_MS + 1_000) == [("fine", 1_000)]


def test_k5_a_schedule_that_breaks_later_takes_its_last_good_slot_with_it() -> None:
    bench = Bench()
    broken = Broken(lambda t_ms: START_MS + 1_000 if t_ms < START_MS + 1_000 else 1 // 0)
    bench.ticker.add(job_of(broken, name="broken"), START_MS)
    assert bench.due(START_MS + 1_000) == [("broken", 1_000)]
    assert bench.failed == [("broken", "ZeroDivisionError")]
    assert bench.ticker.next_ms() is None
    bench.ticker.remove("broken")


def test_k9_a_schedule_of_every_millisecond_is_bounded_a_pop_and_loses_nothing() -> None:
    bench = Bench()
    bench.ticker.add(job_of(Grid(1), max_late=3600), START_MS)
    seen = len(bench.due(START_MS + 110_000))
    assert seen <= 110_000
    while bench.ticker.next_ms() is not None and seen < 110_000:
        more = len(bench.due(START_MS + 110_000))
        assert more
        seen += more
    assert seen == 110_000


def test_real_schedules_over_a_daylight_saving_night() -> None:
    bench = Bench()
    before_ms = round(datetime(2027, 3, 27, 12, tzinfo=UTC).timestamp() * 1000)
    bench.ticker.add(job_of(Cron("30 2 * * *", "Europe/Berlin"), name="night", max_late=3600), before_ms)
    bench.ticker.add(job_of(Every(hours=6), name="grid", max_late=3600), before_ms)
    found: list[str] = []
    for hour in range(1, 25):
        due, gaps = bench.ticker.pop(before_ms + hour * 3_600_000)
        assert gaps == []
        found += [f"{item.job.name} {datetime.fromtimestamp(item.slot_ms / 1000, UTC):%d %H:%M}" for item in due]
    assert found == ["grid 27 18:00", "grid 28 00:00", "night 28 01:00", "grid 28 06:00", "grid 28 12:00"]
