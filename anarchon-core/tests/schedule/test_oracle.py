"""`next_after` against a brute-force walk of the clock, around real changes of many zones.

The default run is deterministic and short. More: ANARCHON_ORACLE_SEED=7 ANARCHON_ORACLE_ROUNDS=20 pytest … .
"""

from __future__ import annotations

import os
import random
from bisect import bisect_right
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from anarchon.schedule import Cron
from anarchon.schedule.daylight import every_hour_s, wall_clock_s
from anarchon.schedule.evaluate import first
from anarchon.schedule.grammar import fields_of
from anarchon.schedule.zones import year_table, zone

SEED = int(os.environ.get("ANARCHON_ORACLE_SEED", "1"))
ROUNDS = int(os.environ.get("ANARCHON_ORACLE_ROUNDS", "1"))
EXPRESSIONS = 5
STARTS = 12


@pytest.fixture(scope="module")
def all_jumps(oracle: ModuleType) -> dict[str, list[int]]:
    return {name: oracle.jumps(oracle.load_zone(name)) for name in oracle.ZONES}


def chosen(rng: random.Random, oracle: ModuleType, name: str, jumps: list[int]) -> list[int]:
    """Return some changes of a zone; every change of the calendar is among them."""
    info = oracle.load_zone(name)
    large = [s for s in jumps if abs(oracle.offset_s(info, s) - oracle.offset_s(info, s - 1)) > 7200]
    return large + rng.sample(jumps, min(2 * ROUNDS, len(jumps)))


def jumps_of(window: Any) -> list[int]:
    """Return the looks of a window at which the clock had jumped."""
    looks = enumerate(zip(window.shown_s, window.shown_s[1:], strict=False), start=1)
    return [window.begin_s + index * window.step_s for index, (a, b) in looks if b - a != window.step_s]


def compare(oracle: ModuleType, expression: Any, name: str, window: Any, rng: random.Random) -> None:
    expected = oracle.slots(expression, window)
    schedule = Cron(expression.text, name)
    # The first day only teaches the walk what the clock showed before.
    begin_s, end_s = window.begin_s + 86_400, window.end_s
    starts = {rng.randrange(begin_s * 1000, end_s * 1000) for _ in range(STARTS)}
    near = [slot for slot in expected if slot > begin_s]
    edges = [*rng.sample(near, min(6, len(near))), *jumps_of(window)]
    starts |= {edge * 1000 + delta for edge in edges for delta in (-1000, -1, 0, 1)}
    for t_ms in sorted(starts):
        index = bisect_right(expected, t_ms // 1000)
        found = schedule.next_after(t_ms)
        where = f"{expression.text!r} in {name} after {t_ms}"
        if index < len(expected):
            assert found == expected[index] * 1000, where
        else:
            assert found is None or found >= end_s * 1000, where


def test_slots_agree_with_a_walk_of_the_clock_by_minutes(oracle: ModuleType, all_jumps: dict[str, list[int]]) -> None:
    rng = random.Random(SEED)
    assert len(all_jumps) >= 40
    for name, jumps in all_jumps.items():
        info = oracle.load_zone(name)
        for jump_s in chosen(rng, oracle, name, jumps):
            if jump_s % 60 or oracle.offset_s(info, jump_s) % 60 or oracle.offset_s(info, jump_s - 1) % 60:
                continue  # walked by seconds below
            window = oracle.look(info, jump_s - 30 * 3600, jump_s + 30 * 3600, 60)
            for _ in range(EXPRESSIONS):
                compare(oracle, oracle.random_expression(rng), name, window, rng)


def test_a_repeated_day_counts_again(oracle: ModuleType, slots: Any) -> None:
    # The latest fold beyond three hours that the zone data holds: 23 hours, in September 1969.
    rng = random.Random(SEED)
    jump_s = slots.ms("1969-09-30T13:00:00Z") // 1000
    info = oracle.load_zone("Pacific/Kwajalein")
    assert oracle.offset_s(info, jump_s) - oracle.offset_s(info, jump_s - 1) == -23 * 3600
    window = oracle.look(info, jump_s - 48 * 3600, jump_s + 48 * 3600, 60)
    for _ in range(8 * ROUNDS):
        compare(oracle, oracle.random_expression(rng), "Pacific/Kwajalein", window, rng)


@pytest.mark.parametrize(
    ("name", "around"),
    [
        ("Africa/Monrovia", "1972-01-07T00:44:30Z"),
        ("America/New_York", "2027-03-14T07:00:00Z"),
        ("Australia/Lord_Howe", "2027-04-03T15:00:00Z"),
        ("Antarctica/Troll", "2027-10-31T01:00:00Z"),
        ("Pacific/Apia", "2011-12-30T10:00:00Z"),
    ],
)
def test_slots_agree_with_a_walk_of_the_clock_by_seconds(oracle: ModuleType, slots: Any, name: str, around: str) -> None:
    rng = random.Random(SEED)
    around_s = slots.ms(around) // 1000
    window = oracle.look(oracle.load_zone(name), around_s - 27 * 3600, around_s + 4 * 3600, 1)
    for _ in range(3 * ROUNDS):
        compare(oracle, oracle.random_expression(rng, with_seconds=True), name, window, rng)


def test_changes_of_the_clock_are_found_where_they_are(oracle: ModuleType, all_jumps: dict[str, list[int]]) -> None:
    for name in oracle.ZONES[:: 1 if ROUNDS > 1 else 4]:
        found = [s for year in range(1972, 2038) for s in year_table(name, year).instants_s]
        assert found == all_jumps[name], name


def test_croniter_agrees_with_sets_on_naive_seconds(oracle: ModuleType, sets: ModuleType) -> None:
    rng = random.Random(SEED)
    special = ("0 9 15W * *", "0 0 L * *", "0 0 1,L 2,4 3", "0 0 */2 * SAT", "0 0 * * 5#5,1#1", "0 0 * 2 5#5,3L")
    texts = [*special, *(oracle.random_expression(rng, with_seconds=n % 3 == 0).text for n in range(300 * ROUNDS))]
    for text in texts:
        fields = fields_of(text)
        naive_s = rng.randrange(0, 2_200_000_000)
        for _ in range(3):
            expected = sets.first(fields, naive_s)
            assert first(fields, naive_s) == expected, (text, naive_s)
            naive_s = expected + 1


def test_daylight_rules_do_not_depend_on_the_evaluator(oracle: ModuleType, sets: ModuleType, slots: Any) -> None:
    rng = random.Random(SEED)
    place = zone("Pacific/Chatham")
    for _ in range(100):
        fields = fields_of(oracle.random_expression(rng).text)
        rule = every_hour_s if fields.every_hour else wall_clock_s
        s = slots.ms("2027-09-25T13:59:00Z") // 1000 + rng.randrange(-9000, 9000)
        assert rule(partial(sets.first, fields), place, s) == rule(partial(first, fields), place, s)


def test_slots_strictly_increase_over_five_years(oracle: ModuleType) -> None:
    # One slot a local day, whatever the clock does: 365 or 366 a year, each on its own date.
    begin_ms, end_ms = 1_672_531_200_000, 1_830_297_600_000  # 2023 to 2027
    for name in oracle.ZONES[:: 1 if ROUNDS > 1 else 8]:
        info, schedule = oracle.load_zone(name), Cron("30 2 * * *", name)
        t_ms, dates = begin_ms, []
        while (slot_ms := schedule.next_after(t_ms)) is not None and slot_ms < end_ms:
            assert slot_ms > t_ms
            dates.append((slot_ms // 1000 + oracle.offset_s(info, slot_ms // 1000)) // 86_400)
            t_ms = slot_ms
        assert dates == list(range(dates[0], dates[0] + len(dates))), name
        assert len(dates) in {1825, 1826, 1827}, name
