"""`anarchon run`: a scheduler from a module."""

from __future__ import annotations

import importlib
import logging
import os
import sys

import click

from anarchon.errors import ConfigurationError
from anarchon.scheduler import Scheduler

__all__ = ["load_scheduler", "run_command"]


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
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0] and error.name != module_name:
            raise
        msg = f"there is no module {module_name!r} here: run this in the folder of {module_name.partition('.')[0]}.py"
        raise ConfigurationError(msg) from None
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)  # type: ignore[assignment]  # walks from the module to any object
    if not isinstance(found, Scheduler):
        what = "has no such name" if found is None else f"holds a {type(found).__name__} there"
        msg = f"{place!r} is no Scheduler: the module {what}"
        raise ConfigurationError(msg)
    return found


@click.command("run")
@click.argument("place", metavar="MODULE:SCHEDULER")
@click.option("--log-level", default="INFO", show_default=True, type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]))
def run_command(place: str, log_level: str) -> int:
    """Run the scheduler MODULE:SCHEDULER until SIGTERM or Ctrl-C; runs then finish or are handed over."""
    logging.basicConfig(level=log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    load_scheduler(place).run()
    return 0
