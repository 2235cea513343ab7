"""The chaos tier: real processes, a real store, faults with their undo."""

from anarchon_conformance.chaos.run import run_chaos

__all__ = ["run_chaos"]
