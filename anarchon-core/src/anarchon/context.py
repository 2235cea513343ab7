"""What every part of the engine works with."""

from __future__ import annotations

from dataclasses import dataclass

from anarchon.clock import Clock
from anarchon.plugins import Observers
from anarchon.store import Store

__all__ = ["Context"]


@dataclass(frozen=True, slots=True)
class Context:
    """One instance's name, clock, store and observers."""

    instance: str
    clock: Clock
    store: Store
    observers: Observers

    def tell(self, event: str, **facts: object) -> None:
        """Tell every observer, with this instance's name."""
        self.observers.tell(event, instance=self.instance, **facts)
