"""Put the reasons and the scheduler's rig on the path: files are imported by path and cannot import their neighbours."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "scheduler")]
