"""PostgreSQL as the store of anarchon: any number of instances on any number of hosts, on the server you already run."""

from __future__ import annotations

from anarchon.hookspecs import hookimpl
from anarchon.url import BackendUrl

from anarchon_postgres.backend import PostgresBackend
from anarchon_postgres.store import setup_sql

__all__ = ["CONTRACT_VERSION", "PostgresBackend", "anarchon_backend", "setup_sql"]

CONTRACT_VERSION = 1
"""The version of the claim contract that this package was written for."""


@hookimpl
def anarchon_backend(url: BackendUrl) -> PostgresBackend | None:
    """Serve `postgresql://` and `postgres://`."""
    return PostgresBackend.from_url(url) if url.scheme in {"postgresql", "postgres"} else None
