"""Fixtures of the tests with real processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from workers import Pack, Pulse


@pytest.fixture
def packs(tmp_path: Path) -> Iterator[Callable[[], Pack]]:
    """Make packs, each on a file of its own; all their workers are killed at the end."""
    with ExitStack() as stack:
        made: list[Pack] = []

        def make() -> Pack:
            made.append(stack.enter_context(Pack(tmp_path, f"pack-{len(made)}")))
            return made[-1]

        yield make


@pytest.fixture
def pack(packs: Callable[[], Pack]) -> Pack:
    """One pack."""
    return packs()


@pytest.fixture
def pulse() -> Iterator[Pulse]:
    """How busy the machine is while the test runs."""
    with Pulse() as pulse:
        yield pulse


@pytest.fixture
def soon_ms() -> Callable[[float], int]:
    """Return a slot so many seconds from now, in Unix milliseconds."""
    return lambda seconds: round(time.time() * 1000 + seconds * 1000)
