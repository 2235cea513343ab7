"""Put the rig of these tests on the path: files are imported by path and cannot import their neighbours otherwise."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
