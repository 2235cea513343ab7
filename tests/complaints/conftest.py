"""Put the scheduler's rig on the path: scenarios run real engines on virtual time and need it as the core's tests do."""

from __future__ import annotations

import sys
from pathlib import Path

CORE_TESTS = Path(__file__).parents[2] / "anarchon-core" / "tests"
sys.path[:0] = [str(Path(__file__).parent), str(CORE_TESTS / "scheduler")]
