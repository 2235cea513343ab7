"""The command `anarchon`."""

from anarchon.cli.main import main

__all__ = ["main"]
