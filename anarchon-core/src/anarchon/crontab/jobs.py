"""The lines of a crontab as jobs of a scheduler."""

from __future__ import annotations

from collections.abc import Mapping

from anarchon.crontab.command import command_handler
from anarchon.crontab.parser import Crontab, Problem
from anarchon.errors import ConfigurationError
from anarchon.job import JobOptions
from anarchon.scheduler import Scheduler

__all__ = ["add_crontab"]

_WHOLE = frozenset({"max_attempts", "retries", "catch_up_limit", "history_size"})
_TEXT = frozenset({"overlap", "catch_up", "was"})


def add_crontab(scheduler: Scheduler, crontab: Crontab) -> list[Problem]:
    """Add every line as a job; return the lines whose options or user are refused."""
    problems: list[Problem] = []
    for line in crontab.lines:
        try:
            scheduler.add_job(command_handler(line), line.schedule, name=line.name, **_options(line.options))
        except ConfigurationError as error:
            text = str(error).removeprefix(f"{line.file}:{line.line}: ")
            problems.append(Problem(line.file, line.line, text))
    return problems


def _options(texts: Mapping[str, str]) -> JobOptions:
    """Turn the words of a comment into options; what cannot be read is handed on and refused there."""
    options: dict[str, object] = {}
    for name, text in texts.items():
        if name in _TEXT:
            options[name] = tuple(text.split(",")) if name == "was" else text
            continue
        try:
            options[name] = int(text) if name in _WHOLE else float(text)
        except ValueError:
            options[name] = text
    return options  # type: ignore[return-value]  # checked by add_job, key by key
