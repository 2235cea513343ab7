"""SQLite as the store of anarchon: several processes on one host share a database file, no server to run."""

from __future__ import annotations

from anarchon.hookspecs import hookimpl
from anarchon.url import BackendUrl

from anarchon_sqlite.backend import SQLiteBackend

__all__ = ["CONTRACT_VERSION", "SQLiteBackend", "anarchon_backend"]

CONTRACT_VERSION = 1
"""The version of the claim contract that this package was written for."""


@hookimpl
def anarchon_backend(url: BackendUrl) -> SQLiteBackend | None:
    """Serve `sqlite://`."""
    return SQLiteBackend.from_url(url) if url.scheme == "sqlite" else None
