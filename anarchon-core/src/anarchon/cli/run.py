"""`anarchon run`: a scheduler from a module."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from types import ModuleType

import click

from anarchon.cli.common import log_to_stderr
from anarchon.errors import AnarchonError, ConfigurationError
from anarchon.scheduler import Scheduler

__all__ = ["load_scheduler", "run_command"]

_log = logging.getLogger("anarchon.cli")


def load_scheduler(place: str) -> Scheduler:
    """Import `module:name` and return the scheduler there; the current folder is on the import path.

    Raises:
        ConfigurationError: the module or the name is not there, or is no scheduler.
    """
    module_name, colon, name = place.partition(":")
    if not colon or not module_name or not name:
        msg = f"{place!r} names no scheduler: write module:name, for example app:scheduler"
        raise ConfigurationError(msg)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: object = _import(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Scheduler):
        what = "has no such name" if found is None else f"holds a {type(found).__name__} there"
        msg = f"{place!r} is no Scheduler: the module {what}"
        raise ConfigurationError(msg)
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # border: handler - the user's own module may raise anything
        parts = name.split(".")
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if missing in {".".join(parts[:count]) for count in range(1, len(parts) + 1)}:
            msg = f"there is no module {missing!r} here: run this in the folder of {parts[0]}.py"
            raise ConfigurationError(msg) from None
        _log.debug("%s", "".join(traceback.format_exception(error)))
        what = str(error) if isinstance(error, AnarchonError) else f"{type(error).__name__}: {error}"
        msg = f"{name} cannot be imported: {_place(error)}: {what}; --log-level DEBUG shows the traceback"
        raise ConfigurationError(msg) from None


def _place(error: Exception) -> str:
    """Return file and line of the user's own code."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, AnarchonError):  # raised in our code; theirs is the line of a module that called it
        frames = traceback.StackSummary.from_list([each for each in frames if each.name == "<module>"] or frames)
    return f"{frames[-1].filename}:{frames[-1].lineno}"


@click.command("run", short_help="Run a scheduler from a module.")
@click.argument("place", metavar="MODULE:SCHEDULER")
@click.option("--log-level", default="INFO", show_default=True, type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]))
def run_command(place: str, log_level: str) -> int:
    """Run the scheduler MODULE:SCHEDULER until SIGTERM or Ctrl-C; runs then finish or are handed over."""
    log_to_stderr(log_level)
    load_scheduler(place).run()
    return 0
