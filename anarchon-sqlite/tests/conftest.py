"""Fixtures of the SQLite tests: every test gets a file of its own and leaves no thread behind (C24)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database file that does not exist yet."""
    return tmp_path / "cron.db"


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread.name == "anarchon-sqlite" and thread not in before]
    for thread in left:
        thread.join(5)  # a cancelled opening ends its thread by itself, soon
    assert [thread for thread in left if thread.is_alive()] == []
