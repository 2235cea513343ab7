"""Exactly-once effects: kill -9 at every statement of an attempt, two hundred rounds, each effect counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROUNDS = 200
PROGRAM = Path(__file__).with_name("effect_rounds.py")


def test_c18_two_hundred_kills_leave_each_effect_exactly_once(tmp_path: Path) -> None:
    words = [sys.executable, str(PROGRAM), str(tmp_path / "effects.db"), str(ROUNDS)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=110)
    told = json.loads(done.stdout)
    print(told)
    assert told["wrong"] == []
    assert told["total"] == ROUNDS
    assert told["killed"] >= 0.8 * ROUNDS
    assert told["statements"] >= 10
