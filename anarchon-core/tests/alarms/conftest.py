"""Put the scheduler's rig on the path: files are imported by path and cannot import their neighbours."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scheduler"))
