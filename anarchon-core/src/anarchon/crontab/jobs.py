"""The lines of a crontab as jobs of a scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from anarchon.crontab.command import command_handler
from anarchon.crontab.parser import Crontab, Problem
from anarchon.errors import ConfigurationError, OptionError
from anarchon.job import JobOptions
from anarchon.scheduler import Scheduler

__all__ = ["add_crontab"]

_WHOLE: Final = frozenset({"max_attempts", "retries", "catch_up_limit", "history_size"})
_TEXT: Final = frozenset({"overlap", "catch_up", "was"})
_KNOWN: Final = frozenset(JobOptions.__annotations__) | {"name", "tz", "seconds"}


def add_crontab(scheduler: Scheduler, crontab: Crontab) -> list[Problem]:
    """Add every line as a job; return the lines whose options or user are refused."""
    problems: list[Problem] = []
    for line in crontab.lines:
        try:
            options = _options(line.options)
            scheduler.add_job(command_handler(line), line.schedule, name=line.name, **options)
        except ConfigurationError as error:
            text = str(error).removeprefix(f"{line.file}:{line.line}: ")
            problems.append(Problem(line.file, line.line, text))
    return problems


def _options(texts: Mapping[str, str]) -> JobOptions:
    """Turn the words of a comment into options; a value that cannot be read is handed on and refused there.

    Raises:
        OptionError: there is no such option; it must not reach `add_job`, whose own parameters have names too.
    """
    options: dict[str, object] = {}
    for name, text in texts.items():
        if name not in _KNOWN:
            near = get_close_matches(name, _KNOWN, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"options: {', '.join(sorted(_KNOWN))}"
            msg = f"unknown option {name!r}={text!r:.40} in its comment; {hint}"
            raise OptionError(msg)
        if name in _TEXT:
            options[name] = tuple(text.split(",")) if name == "was" else text
            continue
        try:
            options[name] = int(text) if name in _WHOLE else float(text)
        except ValueError:
            options[name] = text
    return options  # type: ignore[return-value]  # checked by add_job, key by key
