"""What every part of the engine works with."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from anarchon.clock import Clock
from anarchon.plugins import Observers
from anarchon.store import Store

__all__ = ["Context"]


@dataclass(frozen=True, slots=True)
class Context:
    """One instance's name, clock, store and observers.

    `spawn` starts work that the engine waits for when it stops, `spawn_idle` work that it then drops.
    """

    instance: str
    clock: Clock
    store: Store
    observers: Observers
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    spawn_idle: Callable[[Coroutine[Any, Any, None]], None]

    def tell(self, event: str, **facts: object) -> None:
        """Tell every observer, with this instance's name."""
        self.observers.tell(event, instance=self.instance, **facts)
