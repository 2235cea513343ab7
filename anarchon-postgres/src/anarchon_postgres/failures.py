"""What a failure of PostgreSQL means: one sentence that says where and what to do, and never the password."""

from __future__ import annotations

import re
from typing import Final

import psycopg
from anarchon.errors import BackendError, BackendTimeout, BackendUnavailable, StoreSetupError
from anarchon.url import redact

__all__ = ["explain", "explain_connect", "is_broken", "refuses_options"]

_LINE_MOST: Final = 300

# What libpq says when it cannot connect carries no code, only the server's text. The first that fits counts.
_CONNECT: Final[tuple[tuple[str, type[BackendError], str], ...]] = (
    (
        r"authentication failed|no password supplied|authentication method .* not supported",
        StoreSetupError,
        "refuses the user or the password: check both",
    ),
    (r"pg_hba\.conf", StoreSetupError, "lets this user in from this host by no rule of its pg_hba.conf: add one"),
    (r"not permitted to log in", StoreSetupError, "does not let this role log in: ALTER ROLE ... LOGIN"),
    (r"permission denied for database", StoreSetupError, "denies this user the database: GRANT CONNECT ON DATABASE"),
    (r"FATAL:\s+role .* does not exist", StoreSetupError, "does not know this user: CREATE ROLE, or correct the name"),
    (
        r"FATAL:\s+database .* does not exist|no such database",
        StoreSetupError,
        "has no such database: CREATE DATABASE, or correct the name",
    ),
    (
        r"resolve host|could not translate host|Name or service not known|getaddrinfo",
        BackendUnavailable,
        "has a host name that is not known here: correct it",
    ),
    (
        r"Connection refused|No such file or directory",
        BackendUnavailable,
        "is not listening there: start it, or correct host and port",
    ),
    (r"Network is unreachable|No route to host", BackendUnavailable, "cannot be reached over this network"),
    (r"timeout|timed out", BackendTimeout, "does not answer: check the host, a firewall, or whether it is overloaded"),
    (r"starting up|recovery mode|shutting down|not yet accepting", BackendUnavailable, "is starting or stopping"),
    (
        r"too many clients|too many connections|connection slots|no more connections allowed",
        BackendUnavailable,
        "has no free connection: raise max_connections, or lower max",
    ),
    (r"SSL|certificate", StoreSetupError, "cannot agree on TLS: check sslmode and the certificates"),
    (r"session is (not read-write|read-only)|hot standby", BackendUnavailable, "is a standby: connect to the primary"),
)

_STATES: Final[dict[str, tuple[type[BackendError], str]]] = {
    "25006": (BackendUnavailable, "cannot be written (a standby, or set read-only): connect to the primary"),
    "25P03": (BackendTimeout, "ended a transaction that stood idle beyond its limit; nothing of it was written"),
    "40001": (BackendUnavailable, "undid the call for another transaction; nothing was written"),
    "40P01": (BackendUnavailable, "undid the call to end a deadlock; nothing was written"),
    "42501": (StoreSetupError, "denies a right: GRANT SELECT, INSERT, UPDATE, DELETE on anarchon's tables to this user"),
    "42P01": (BackendUnavailable, "has lost anarchon's tables: they are looked for again at the next call"),
    "42883": (BackendUnavailable, "has lost anarchon's function: it is looked for again at the next call"),
    "53100": (BackendUnavailable, "has a full disk: free space on it"),
    "53300": (BackendUnavailable, "has no free connection: raise max_connections, or lower max"),
    "55P03": (BackendTimeout, "kept a lock waiting beyond the call's limit; nothing was written"),
    "57014": (BackendTimeout, "cancelled the call (statement_timeout, or somebody by hand); nothing was written"),
    "57P01": (BackendUnavailable, "is shutting down or ended this connection"),
    "57P02": (BackendUnavailable, "had a crash and is recovering"),
    "57P03": (BackendUnavailable, "is starting or stopping"),
}

_ENDING: Final = frozenset({"25006", "25P03", "57P01", "57P02", "57P03"})
"""What the server says before it ends a connection, or when connecting again may find a server that can be written."""


def _line(error: BaseException) -> str:
    """Return the first line of the driver's message."""
    diag = getattr(error, "diag", None)
    text = (diag.message_primary if diag is not None else None) or str(error)
    return redact(text.strip().partition("\n")[0])[:_LINE_MOST] or type(error).__name__


def is_broken(error: BaseException) -> bool:
    """Whether the connection, or the server behind it, went away or cannot be written."""
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate or ""
    return state in _ENDING or (not state and isinstance(error, psycopg.OperationalError))


def refuses_options(error: psycopg.Error) -> bool:
    """Whether a pooler does not take settings at the start of a connection."""
    return "unsupported startup parameter" in str(error)


def explain(error: psycopg.Error, place: str) -> BackendError:
    """Return the error for a call that failed on an open connection."""
    known = _STATES.get(error.sqlstate or "")
    if known is not None:
        kind, what = known
        return kind(f"{place} {what} ({_line(error)})")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return BackendUnavailable(f"{place}: the connection was lost or failed ({_line(error)})")
    return BackendError(f"{place}: {type(error).__name__}: {_line(error)}")


def explain_connect(error: psycopg.Error, place: str) -> BackendError:
    """Return the error for a connection that cannot be made."""
    text = str(error)
    for pattern, kind, what in _CONNECT:
        if re.search(pattern, text):
            return kind(f"{place} {what} ({_short(text)})")
    return BackendUnavailable(f"{place} cannot be reached ({_short(text)})")


def _short(text: str) -> str:
    """Return the server's own words of a failed connection, without libpq's repeated account of the attempt."""
    line = redact(text.strip().partition("\n")[0])
    for mark in ("FATAL:", "ERROR:", " failed: "):
        before, found, after = line.rpartition(mark)
        if found and before:
            return after.strip()[:_LINE_MOST]
    return line[:_LINE_MOST]
