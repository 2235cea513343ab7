"""How an instance is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Health"]


@dataclass(frozen=True, slots=True)
class Health:
    """How an instance is, for a health endpoint. `unsupported` lists, by job, what the backend does not do for it."""

    instance: str
    ready: bool
    store_failing: bool
    running: int
    watched: int
    jobs: int
    clock_offset_ms: float
    unsupported: Mapping[str, tuple[str, ...]]
