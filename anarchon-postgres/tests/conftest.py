"""Fixtures of the PostgreSQL tests: private servers, and a table name of its own for every test."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from anarchon_postgres import PostgresBackend, setup_sql
from stores.fleet import Fleet
from stores.pgbouncer import PgBouncer
from stores.postgres import Postgres, Postgres17
from stores.server import Server

Play = Callable[[PostgresBackend], Awaitable[None]]
LIMIT_S = 60
KIND = Postgres17 if os.environ.get("ANARCHON_TEST_POSTGRES") == "17" else Postgres
"""Which server the tests run on; ANARCHON_POSTGRES_17 names the folder of its programs if Debian's is not there."""


class Database:
    """A server as the tests use it: URLs with options, and a side door."""

    def __init__(self, server: Postgres, url: str) -> None:
        self.server = server
        self.base = url
        self.table = f"t{secrets.token_hex(4)}"

    def url(self, **options: object) -> str:
        """Return the URL with a table of this test's own and further options."""
        words = {"table": self.table, **options}
        return self.base + "?" + "&".join(f"{name}={value}" for name, value in words.items())

    def make(self, **options: object) -> PostgresBackend:
        """Make an unopened backend."""
        from anarchon.url import BackendUrl

        return PostgresBackend.from_url(BackendUrl(self.url(**options)))

    def sql(self, statement: str, *values: object, user: str | None = None) -> list[tuple[Any, ...]]:
        """Run a statement past the backend, in autocommit mode."""
        with psycopg.connect(self.server.url(user=user), autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def role(self, *, create: bool) -> str:
        """Make a role of this test's own, with or without the right to create in the schema; return "name:password"."""
        name = f"u{secrets.token_hex(4)}"
        self.sql(f"CREATE ROLE {name} LOGIN PASSWORD 'geheim'")
        if create:
            self.sql(f"GRANT CREATE ON SCHEMA public TO {name}")
        return f"{name}:geheim"

    def without_function(self) -> str:
        """Make this test's tables without the function, and return a role that may write them and create nothing."""
        self.sql(setup_sql(self.table).partition("CREATE FUNCTION")[0])
        user = self.role(create=False)
        name = user.partition(":")[0]
        for ending in ("", "_jobs", "_attempts"):
            self.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {self.table}{ending} TO {name}")
        self.sql(f"GRANT SELECT ON {self.table}_schema TO {name}")
        return user


def need(kind: type[Server]) -> None:
    """Fail (where CI=true) or leave out a test whose server is not installed."""
    why = kind.absent()
    if why is not None and os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(why, pytrace=False)
    if why is not None:
        pytest.skip(why)


@pytest.fixture(scope="session")
def servers() -> Iterator[Fleet]:
    """The session's servers."""
    with Fleet() as fleet:
        yield fleet


@pytest.fixture(scope="session")
def postgres(servers: Fleet) -> Postgres:
    """The session's common PostgreSQL."""
    need(KIND)
    return servers.shared(KIND)


@pytest.fixture(scope="session")
def pgbouncer(postgres: Postgres) -> Iterator[PgBouncer]:
    """A pooler in transaction mode before the common server."""
    need(PgBouncer)
    with PgBouncer.before(postgres) as pooler:
        yield pooler


@pytest.fixture
def database(postgres: Postgres) -> Database:
    """The common server, reached directly."""
    return Database(postgres, postgres.url())


@pytest.fixture(scope="module")
def shared_database(postgres: Postgres) -> Database:
    """The common server, reached directly; one table for a module."""
    return Database(postgres, postgres.url())


@pytest.fixture(params=["direct", "pooler", "block"])
def route(request: pytest.FixtureRequest, postgres: Postgres) -> Database:
    """The common server in each way that a claim may go: the function directly, through the pooler, and without it."""
    if request.param == "pooler":
        return Database(postgres, request.getfixturevalue("pgbouncer").url())
    found = Database(postgres, postgres.url())
    if request.param == "block":
        found.base = postgres.url(user=found.without_function())
    return found


@pytest.fixture
def own(servers: Fleet) -> Iterator[Database]:
    """A server that nobody else uses: it may be killed and frozen."""
    need(KIND)
    server = servers.new(KIND)
    yield Database(server, server.url())
    server.kill()


@pytest.fixture
def play() -> Callable[[PostgresBackend, Play], None]:
    """Run a coroutine function with an open backend, within a limit."""

    def run(backend: PostgresBackend, act: Play) -> None:
        async def main() -> None:
            async with asyncio.timeout(LIMIT_S):
                await backend.open()
                try:
                    await act(backend)
                finally:
                    await backend.close()

        asyncio.run(main())

    return run


@pytest.fixture(autouse=True)
def no_socket_left() -> Iterator[None]:
    """Fail a test that leaves a socket open (C24)."""
    before = _sockets()
    yield
    assert _sockets() <= before


def _sockets() -> set[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found
