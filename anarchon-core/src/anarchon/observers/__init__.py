"""Observers that come with the core; hand them to `Scheduler(plugins=[…])`."""

from anarchon.observers.metrics import Metrics
from anarchon.observers.pings import Pings

__all__ = ["Metrics", "Pings"]
