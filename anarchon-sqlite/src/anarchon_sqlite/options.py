"""The options of the backend: what may be written, as a URL or as arguments, and what is refused."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final

from anarchon.errors import OptionError, UrlError
from anarchon.url import BackendUrl

from anarchon_sqlite.sql import RESERVED_ENDINGS

__all__ = ["MEMORY_HINT", "Options", "Synchronous", "options_from_url"]

BUSY_TIMEOUT_MS: Final = 5_000
BUSY_TIMEOUT_LEAST_MS: Final = 10
BUSY_TIMEOUT_MOST_MS: Final = 60_000
CALL_TIMEOUT_MS: Final = 5_000
STANDING_CONNECTIONS: Final = 2
"""One writes, one reads; the others are for transaction blocks."""
CONNECTIONS: Final = 4
CONNECTIONS_LEAST: Final = STANDING_CONNECTIONS + 1
CONNECTIONS_MOST: Final = 64
TABLE: Final = "runs"
TABLE_PATTERN: Final = r"[a-z][a-z0-9_]{0,47}"
MARGIN_MS: Final = 250
"""How long before the call's own limit a wait for the write lock gives up, so that the answer still travels in time."""

MEMORY_HINT: Final = "an SQLite database in memory cannot be shared by processes: use memory:// for tests, or name a file"


class Synchronous(StrEnum):
    """When a commit is on the disk: before it returns, or (WAL) at the next checkpoint."""

    FULL = "full"
    NORMAL = "normal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options. `path` is absolute, so that a later chdir does not change the store.

    Raises:
        OptionError: a value is refused; the message says what to write.
    """

    path: str
    busy_timeout_ms: int = BUSY_TIMEOUT_MS
    synchronous: Synchronous = Synchronous.FULL
    table: str = TABLE
    max_connections: int = CONNECTIONS

    def __post_init__(self) -> None:
        if not BUSY_TIMEOUT_LEAST_MS <= self.busy_timeout_ms <= BUSY_TIMEOUT_MOST_MS:
            least, most = BUSY_TIMEOUT_LEAST_MS / 1000, BUSY_TIMEOUT_MOST_MS / 1000
            msg = f"busy_timeout={self.busy_timeout_ms / 1000:g} is refused: write seconds from {least:g} to {most:g}"
            raise OptionError(msg)
        if not CONNECTIONS_LEAST <= self.max_connections <= CONNECTIONS_MOST:
            msg = f"max={self.max_connections} is refused: write a whole number from {CONNECTIONS_LEAST} to {CONNECTIONS_MOST}"
            raise OptionError(msg)
        if not re.fullmatch(TABLE_PATTERN, self.table) or self.table.startswith("sqlite_"):
            msg = f"table={self.table!r:.80} is refused: write 1 to 48 of a-z, 0-9 and _, a letter first, not sqlite_..."
            raise OptionError(msg)
        if self.table.endswith(RESERVED_ENDINGS):  # C7
            msg = f"table={self.table!r} is refused: names ending in {', '.join(RESERVED_ENDINGS)} are for anarchon's own tables"
            raise OptionError(msg)

    @property
    def call_timeout_ms(self) -> int:
        """How long a call may take in all (C23)."""
        return max(CALL_TIMEOUT_MS, self.busy_timeout_ms)

    @property
    def lock_wait_ms(self) -> int:
        """How long a call waits for the write lock."""
        return min(self.busy_timeout_ms, self.call_timeout_ms - MARGIN_MS)


def make_options(
    path: str | os.PathLike[str],
    *,
    busy_timeout: float | timedelta,
    synchronous: str,
    table: str,
    max_connections: int,
) -> Options:
    """Check arguments and return them as options.

    Raises:
        OptionError: naming the argument.
    """
    text = os.fspath(path)
    if text == ":memory:" or text.startswith("file::memory:"):
        raise OptionError(MEMORY_HINT)
    if not isinstance(text, str) or not text or not text.isprintable() or text.endswith("/"):
        msg = f"path={text!r:.200} is refused: name a database file"
        raise OptionError(msg)
    seconds = busy_timeout.total_seconds() if isinstance(busy_timeout, timedelta) else busy_timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        msg = f"busy_timeout={busy_timeout!r:.80} is refused: write seconds or a timedelta"
        raise OptionError(msg)
    if synchronous not in tuple(Synchronous):
        msg = f"synchronous={synchronous!r:.80} is refused: write one of {', '.join(Synchronous)}"
        raise OptionError(msg)
    if isinstance(max_connections, bool) or not isinstance(max_connections, int):
        msg = f"max={max_connections!r:.80} is refused: write a whole number from {CONNECTIONS_LEAST} to {CONNECTIONS_MOST}"
        raise OptionError(msg)
    return Options(
        path=str(Path(text).absolute()),
        busy_timeout_ms=round(seconds * 1000),
        synchronous=Synchronous(synchronous),
        table=table,
        max_connections=max_connections,
    )


def options_from_url(url: BackendUrl) -> Options:
    """Read `sqlite:///relative.db` or `sqlite:////absolute.db` with its options.

    Raises:
        UrlError: the path or an option is refused.
    """
    path = _path(url)
    try:
        options = Options(
            path=str(Path(path).absolute()),
            busy_timeout_ms=url.seconds_ms(
                "busy_timeout", BUSY_TIMEOUT_MS, least_ms=BUSY_TIMEOUT_LEAST_MS, most_ms=BUSY_TIMEOUT_MOST_MS
            ),
            synchronous=Synchronous(url.text("synchronous", Synchronous.FULL, choices=tuple(Synchronous))),
            table=url.text("table", TABLE),
            max_connections=url.integer("max", CONNECTIONS, least=CONNECTIONS_LEAST, most=CONNECTIONS_MOST),
        )
    except OptionError as error:
        msg = f"{url}: {error}"
        raise UrlError(msg) from None
    url.done()
    return options


def _path(url: BackendUrl) -> str:
    if url.path == "/:memory:" or (not url.netloc and url.path in {"", "/"}):
        msg = f"{url}: {MEMORY_HINT}"
        raise UrlError(msg)
    if url.netloc:
        msg = f"{url}: a relative file takes three slashes (sqlite:///cron.db), an absolute one four (sqlite:////var/lib/cron.db)"
        raise UrlError(msg)
    if "#" in url.raw:
        msg = f"{url}: write %23 for a # in a file name"
        raise UrlError(msg)
    path = url.path[1:]
    if not path.isprintable() or path.endswith("/"):
        msg = f"{url}: {path!r} names no database file"
        raise UrlError(msg)
    return path
