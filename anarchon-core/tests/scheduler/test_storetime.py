"""The scheduler's now: the store's clock carried by the monotonic clock, corrected for the round trip."""

from __future__ import annotations

from anarchon.clock import Clock
from anarchon.storetime import STEP_MS, StoreTime


class HandClock(Clock):
    """Two clocks moved by hand."""

    def __init__(self) -> None:
        self.wall = 1_000_000.0
        self.monotonic = 5_000.0

    def wall_ms(self) -> float:
        return self.wall

    def monotonic_ms(self) -> float:
        return self.monotonic

    def passes(self, duration_ms: float) -> None:
        self.wall += duration_ms
        self.monotonic += duration_ms


def test_before_the_store_told_its_time_the_wall_clock_stands_in() -> None:
    clock = HandClock()
    time = StoreTime(clock)
    clock.passes(70)
    assert (time.now_ms(), time.measured, time.offset_to_wall_ms) == (clock.wall, False, 0)


def test_an_answer_is_taken_for_the_middle_of_its_round_trip() -> None:
    clock = HandClock()
    time = StoreTime(clock)
    time.learn(2_000_000, 5_000, 5_010)
    clock.passes(10)
    assert time.now_ms() == 2_000_000.5 + 5
    assert time.offset_to_wall_ms == time.now_ms() - clock.wall
    assert time.measured


def test_long_round_trips_teach_nothing_and_short_ones_do() -> None:
    clock = HandClock()
    time = StoreTime(clock)
    time.learn(2_000_000, 5_000, 5_010)
    kept = time.now_ms()
    time.learn(3_000_000, 5_000, 5_900)
    assert time.now_ms() == kept
    time.learn(2_000_100, 5_000, 5_004)
    assert time.now_ms() == kept + 100 + 3


def test_a_line_that_became_slow_is_believed_again_in_the_end() -> None:
    clock = HandClock()
    time = StoreTime(clock)
    time.learn(2_000_000, 5_000, 5_001)
    for _ in range(100):
        time.learn(2_050_000, 5_000, 5_200)
    assert time.now_ms() > 2_040_000


def test_c25_the_stores_step_is_followed_by_the_next_answer() -> None:
    clock = HandClock()
    time = StoreTime(clock)
    time.learn(2_000_000, 5_000, 5_001)
    time.learn(1_000, 5_000, 5_001)
    assert time.now_ms() < 1_010


def test_a_step_of_the_wall_clock_is_seen_and_changes_nothing_that_was_learnt() -> None:
    clock = HandClock()
    time = StoreTime(clock)
    time.learn(2_000_000, 5_000, 5_000)
    clock.passes(10 * 86_400_000)
    assert not time.stepped()
    before = time.now_ms()
    clock.wall += STEP_MS + 1
    assert time.stepped()
    time.settle()
    assert not time.stepped()
    assert time.now_ms() == before
    assert not time.measured


def test_a_small_drift_is_no_step() -> None:
    clock = HandClock()
    time = StoreTime(clock)
    clock.wall -= STEP_MS - 1
    assert not time.stepped()


def test_without_a_clock_of_the_store_a_step_moves_now() -> None:
    clock = HandClock()
    time = StoreTime(clock)
    clock.wall += 3_600_000
    time.settle()
    assert time.now_ms() == clock.wall


def test_steps_that_could_not_be_measured_do_not_move_the_stores_time() -> None:
    clock = HandClock()
    time = StoreTime(clock)
    time.learn(2_000_000, 5_000, 5_000)
    before = time.now_ms()
    for by_ms in (3.2e11, -3.2e11):
        clock.wall += by_ms
        time.settle()  # and the store did not answer
    assert time.now_ms() == before
