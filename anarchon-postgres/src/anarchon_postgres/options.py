"""The options of the backend: what may be written, as a URL or as arguments, and what is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import psycopg
from anarchon.errors import OptionError, UrlError
from anarchon.url import BackendUrl
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from anarchon_postgres.schema import ENDINGS

__all__ = ["PASSED_ON", "Options", "make_options", "options_from_url"]

TABLE: Final = "runs"
TABLE_PATTERN: Final = r"[a-z][a-z0-9_]{0,47}"
SCHEMA_PATTERN: Final = r"[A-Za-z_][A-Za-z0-9_]{0,62}"
CONNECTIONS: Final = 4
CONNECTIONS_LEAST: Final = 1
CONNECTIONS_MOST: Final = 64
CALL_TIMEOUT_MS: Final = 5_000
CALL_TIMEOUT_LEAST_MS: Final = 250
CALL_TIMEOUT_MOST_MS: Final = 60_000
MARGIN: Final = 20
"""One part in so many of the call's limit is kept back, so that the failure is told before the caller gives up."""

PASSED_ON: Final = (
    "application_name",
    "channel_binding",
    "gssencmode",
    "host",
    "krbsrvname",
    "passfile",
    "password",
    "port",
    "service",
    "sslcert",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "target_session_attrs",
    "user",
)
"""Options of a URL that go to libpq as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options. `parameters` are libpq's, by name; they may hold the password.

    Raises:
        OptionError: a value is refused; the message says what to write.
    """

    parameters: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    table: str = TABLE
    schema: str | None = None
    max_connections: int = CONNECTIONS
    call_timeout_ms: int = CALL_TIMEOUT_MS

    def __post_init__(self) -> None:
        if not isinstance(self.table, str) or not re.fullmatch(TABLE_PATTERN, self.table):
            msg = f"table={self.table!r:.80} is refused: write 1 to 48 of a-z, 0-9 and _, a letter first"
            raise OptionError(msg)
        if self.table.endswith(ENDINGS):  # C7
            msg = f"table={self.table!r} is refused: names ending in {', '.join(ENDINGS)} are for anarchon's own tables"
            raise OptionError(msg)
        if self.schema is not None and (
            not isinstance(self.schema, str) or not re.fullmatch(SCHEMA_PATTERN, self.schema) or self.schema.startswith("pg_")
        ):
            msg = f"schema={self.schema!r:.80} is refused: write 1 to 63 of A-Z, a-z, 0-9 and _, no digit first, not pg_..."
            raise OptionError(msg)
        if not _whole(self.max_connections) or not CONNECTIONS_LEAST <= self.max_connections <= CONNECTIONS_MOST:
            limits = f"from {CONNECTIONS_LEAST} to {CONNECTIONS_MOST}"
            msg = f"max={self.max_connections!r:.80} is refused: write a whole number {limits}"
            raise OptionError(msg)
        if not CALL_TIMEOUT_LEAST_MS <= self.call_timeout_ms <= CALL_TIMEOUT_MOST_MS:
            least, most = CALL_TIMEOUT_LEAST_MS / 1000, CALL_TIMEOUT_MOST_MS / 1000
            msg = f"call_timeout={self.call_timeout_ms / 1000:g} is refused: write seconds from {least:g} to {most:g}"
            raise OptionError(msg)

    @property
    def limit_ms(self) -> int:
        """How long a call may take before it fails by itself (C23)."""
        return self.call_timeout_ms - self.call_timeout_ms // MARGIN

    @property
    def lock_wait_ms(self) -> int:
        """How long the server waits for a lock within a call: shorter, so that its answer still travels in time."""
        return self.limit_ms - self.call_timeout_ms // MARGIN

    @property
    def conninfo(self) -> str:
        """The parameters as libpq's connection string; it may hold the password."""
        return make_conninfo("", **dict(self.parameters))

    @property
    def place(self) -> str:
        """Where the server is, for messages: host, port and database, no password."""
        known = dict(self.parameters)
        where = known.get("host") or known.get("service") or "the local socket"
        port, name = known.get("port"), known.get("dbname")
        return f"PostgreSQL at {where}{f':{port}' if port else ''}{f'/{name}' if name else ''}"


def make_options(
    conninfo: str,
    *,
    table: str,
    schema: str | None,
    max_connections: int,
    call_timeout: float | timedelta,
) -> Options:
    """Check arguments and return them as options; `conninfo` is libpq's connection string or URL.

    Raises:
        OptionError: naming the argument.
    """
    try:
        known = conninfo_to_dict(conninfo)
    except (psycopg.Error, TypeError, AttributeError):
        # The driver's own message may quote a piece of the password.
        msg = "conninfo is refused: write a libpq URL (postgresql://user@host/database) or 'host=... dbname=...'"
        raise OptionError(msg) from None
    seconds = call_timeout.total_seconds() if isinstance(call_timeout, timedelta) else call_timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not abs(seconds) <= 10**9:
        msg = f"call_timeout={call_timeout!r:.80} is refused: write seconds or a timedelta"
        raise OptionError(msg)
    return Options(
        parameters=tuple((name, str(value)) for name, value in known.items() if value is not None),
        table=table,
        schema=schema,
        max_connections=max_connections,
        call_timeout_ms=round(seconds * 1000),
    )


def options_from_url(url: BackendUrl) -> Options:
    """Read `postgresql://user:password@host:port/database?option=value`.

    Raises:
        UrlError: the URL or an option is refused.
    """
    if "#" in url.raw:
        msg = f"{url}: write %23 for a # in a name or password"
        raise UrlError(msg)
    known = {"host": url.host, "user": url.username, "password": url.password, "dbname": url.path[1:] or None}
    if url.port is not None:
        known["port"] = str(url.port)
    for name in PASSED_ON:
        value = url.text(name, "")
        if value and known.get(name):
            msg = f"{url}: {name} stands before the question mark and behind it; keep one"
            raise UrlError(msg)
        known[name] = value or known.get(name)
    try:
        options = Options(
            parameters=tuple((name, value) for name, value in known.items() if value),
            table=url.text("table", TABLE),
            schema=url.text("schema", "") or None,
            max_connections=url.integer("max", CONNECTIONS, least=CONNECTIONS_LEAST, most=CONNECTIONS_MOST),
            call_timeout_ms=url.seconds_ms(
                "call_timeout", CALL_TIMEOUT_MS, least_ms=CALL_TIMEOUT_LEAST_MS, most_ms=CALL_TIMEOUT_MOST_MS
            ),
        )
    except OptionError as error:
        msg = f"{url}: {error}"
        raise UrlError(msg) from None
    url.done()
    return options


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
