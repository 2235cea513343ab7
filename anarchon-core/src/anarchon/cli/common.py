"""What several commands share: the URL, JSON, times, a store opened for a few questions."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import os
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from anarchon.backend import Backend
from anarchon.clock import SystemClock
from anarchon.errors import ConfigurationError
from anarchon.plugins import Observers, new_manager
from anarchon.registry import URL_VARIABLE, create_backend
from anarchon.store import Store

__all__ = [
    "StoreCommand",
    "ask",
    "iso",
    "json_option",
    "log_to_stderr",
    "print_json",
    "read_instant",
    "url_argument",
    "url_option",
]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class StoreCommand(click.Command):
    """A command whose first argument, the URL, may be left to `ANARCHON_URL`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        url = os.environ.get(URL_VARIABLE)
        left_out = not any("://" in argument or argument in {"-h", "--help"} for argument in args)
        wanted = sum(isinstance(parameter, click.Argument) for parameter in self.params)
        if url and left_out:
            args = [url, *args]
        elif left_out and sum(not argument.startswith("-") for argument in args) < wanted:
            msg = f"no store: write its URL, for example sqlite:///cron.db, or set {URL_VARIABLE}"
            raise ConfigurationError(msg)
        return super().parse_args(ctx, args)


url_argument = click.argument("url")
url_option = click.option("--url", envvar=URL_VARIABLE, help=f"The store; {URL_VARIABLE} if left out.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class _Lines(logging.Formatter):
    """Gives a warning one line: drivers warn of each connection that a store closed, with a traceback of their own."""

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info and record.levelno < logging.ERROR:
            record = copy.copy(record)  # another handler may want it whole
            error = (record.exc_info or (None, None))[1]
            record.msg, record.args = f"{record.getMessage()}: {error}", ()
            record.exc_info = record.exc_text = None
        return super().format(record)


def log_to_stderr(level: str) -> None:
    """Send what is logged at `level` and above to stderr; at DEBUG with every traceback, else with those of errors."""
    handler = logging.StreamHandler()
    form = logging.Formatter if level == "DEBUG" else _Lines
    handler.setFormatter(form("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=False))


def iso(at_ms: int | None) -> str | None:
    """Return Unix milliseconds as ISO 8601 in UTC; milliseconds are shown only where there are any."""
    if at_ms is None:
        return None
    moment = datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{at_ms % 1000:03d}Z" if at_ms % 1000 else f"{moment}Z"


def read_instant(option: str, text: str) -> int:
    """Return Unix milliseconds of an ISO 8601 instant with a zone, or of plain milliseconds.

    Raises:
        ConfigurationError: it is neither.
    """
    if text.isascii() and text.isdecimal() and len(text) < 16:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        msg = f"{option}={text!r:.60} is no instant: write 2027-01-15T10:00:00Z, or Unix milliseconds"
        raise ConfigurationError(msg)
    return round(moment.timestamp() * 1000)


def ask(url: str, question: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
    """Open a store, ask, close it.

    Raises:
        AnarchonError: what the URL or the store made of it.
    """
    manager = new_manager()
    backend: Backend = create_backend(url, manager)

    async def run() -> T:
        store = Store(backend, SystemClock(), Observers(manager), "command-line")
        await store.open()
        try:
            return await question(store)
        finally:
            await store.close(timeout_ms=2_000)

    return asyncio.run(run())
