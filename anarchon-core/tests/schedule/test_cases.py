"""The corpus of hand-checked cases, from wherever they are started."""

from __future__ import annotations

import itertools
import json
from typing import Any

from anarchon.schedule import parse


def test_corpus_case_gives_its_slots(cron_case: dict[str, Any], slots: Any) -> None:
    schedule = parse(cron_case["expr"], cron_case["tz"])
    expected = cron_case["expected_utc"]
    assert slots.after(schedule, cron_case["after_utc"], len(expected)) == expected


def test_corpus_case_is_stateless(cron_case: dict[str, Any], slots: Any) -> None:
    # Each slot follows from any instant of the span before it, in whatever order the questions come.
    schedule = parse(cron_case["expr"], cron_case["tz"])
    bounds = [slots.ms(cron_case["after_utc"]), *map(slots.ms, cron_case["expected_utc"])]
    for before, slot in reversed(list(itertools.pairwise(bounds))):
        for t_ms in (before, (before + slot) // 2, slot - 1):
            assert schedule.next_after(t_ms) == slot


def test_corpus_is_complete(request: Any) -> None:
    assert len(json.loads((request.path.parent / "cron_cases.json").read_text("utf-8"))) == 125
