"""What the server holds for us: looked at when a backend opens, made or brought up to date where that is allowed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import Final, Self

import psycopg
from anarchon.errors import BackendUnavailable, StoreSetupError

from anarchon_postgres.decision import FUNCTION
from anarchon_postgres.lanes import Connection, Lanes, fetch
from anarchon_postgres.schema import MAKE_VERSIONS, OLDEST_FLEET, PUT_VERSION, SCHEMA, SCHEMA_VERSION, Names

__all__ = ["Facts", "begin_transaction", "ensure", "look", "setup_sql"]

SERVER_LEAST: Final = 130_000
SETUP_CALLS: Final = 3
"""Setting up may take as many times a call's limit: every instance of a fleet waits for the first."""

# Everything in one row, in the order of `Facts`. A schema or table that is not there makes NULLs, not errors.
_LOOK: Final = """
WITH place AS MATERIALIZED (SELECT coalesce(%(schema)s::text, current_schema()) AS name),
    spot AS MATERIALIZED (SELECT name, to_regnamespace(quote_ident(name)) AS id FROM place),
    tables AS MATERIALIZED (
        SELECT c.oid AS id FROM spot JOIN pg_class c ON c.relnamespace = spot.id
        WHERE c.relkind IN ('r', 'p')
            AND c.relname IN (%(table)s::text, %(table)s::text || '_jobs', %(table)s::text || '_attempts'))
SELECT current_setting('server_version_num')::int, current_user, current_database(), name, id IS NOT NULL,
    coalesce(has_schema_privilege(id, 'USAGE'), false), coalesce(has_schema_privilege(id, 'CREATE'), false),
    has_database_privilege(current_database(), 'CREATE'),
    pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
    current_setting('transaction_isolation'), current_setting('synchronous_commit'), current_setting('fsync') = 'on',
    current_setting('server_encoding'), current_setting('synchronous_standby_names') <> '',
    (SELECT count(*)::int FROM pg_stat_replication),
    (SELECT count(*)::int FROM tables),
    (SELECT coalesce(bool_and(has_table_privilege(id, right_)), true)
        FROM tables, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS right_),
    EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = id AND c.relname = %(table)s::text || '_schema'),
    EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = id AND p.proname = %(function)s::text
        AND has_function_privilege(p.oid, 'EXECUTE'))
FROM spot
"""

_TABLES: Final = 3


@dataclass(frozen=True, slots=True)
class Facts:
    """What a look at the server found, and the versions written there (0 where there are none)."""

    server_version: int
    user: str
    database: str
    schema: str | None
    has_schema: bool
    may_use_schema: bool
    may_create: bool
    may_create_schema: bool
    standby: bool
    read_only: bool
    isolation: str
    synchronous_commit: str
    fsync: bool
    encoding: str
    synchronous_standby: bool
    replicas: int
    tables: int
    may_write: bool
    has_versions: bool
    has_function: bool
    version: int = 0
    oldest_fleet: int = 0

    @classmethod
    def of(cls, row: tuple[object, ...], version: tuple[int, int]) -> Self:
        """Return the facts of a row of the look and a row of the versions."""
        values = dict(zip((item.name for item in fields(cls)), (*row, *version), strict=True))
        return cls(**values)  # type: ignore[arg-type]  # the row has the types of the SELECT above

    @property
    def complete(self) -> bool:
        """Whether the tables are there in a version that this code works with."""
        return self.tables == _TABLES and self.version >= SCHEMA_VERSION and self.oldest_fleet <= SCHEMA_VERSION


async def look(connection: Connection, table: str, schema: str | None) -> tuple[Facts, Names]:
    """Look at the server, changing nothing.

    Raises:
        StoreSetupError: there is no schema to look in.
    """
    names = Names(schema or "", table)
    (row,) = await fetch(connection, _LOOK, {"schema": schema, "table": table, "function": names.function_name})
    facts = Facts.of(row, (0, 0))
    if facts.schema is None:
        msg = f"user {facts.user!r} has no schema in its search_path in database {facts.database!r}: write ?schema=NAME"
        raise StoreSetupError(msg)
    names = Names(facts.schema, table)
    if not facts.has_versions or not facts.may_use_schema:
        return facts, names
    query = names.fill("SELECT version, oldest_fleet FROM {versions} ORDER BY version DESC LIMIT 1")
    found = await fetch(connection, query)
    return Facts.of(row, (found[0][0], found[0][1]) if found else (0, 0)), names


async def begin_transaction(connection: Connection, *, lock_wait_ms: int, statement_ms: int, idle_ms: int) -> None:
    """Begin a transaction as all of ours are: READ COMMITTED, whatever the server's default is, and with limits of its own."""
    await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED", prepare=False)
    await connection.execute(
        """SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true),
            set_config('idle_in_transaction_session_timeout', %s, true)""",
        (str(lock_wait_ms), str(statement_ms), str(idle_ms)),
        prepare=False,
    )


async def ensure(lanes: Lanes) -> tuple[Facts, Names]:
    """Make sure that the tables are there, and the function where it may be; many instances may do so at once (C21).

    Raises:
        StoreSetupError: the server, the user's rights or the tables' version cannot carry a store.
        BackendUnavailable: it can, but not now.
    """
    options = lanes.options

    async def act(connection: Connection) -> tuple[Facts, Names]:
        facts, names = await look(connection, options.table, options.schema)
        _check_server(facts, lanes.place)
        if not facts.complete or (not facts.has_function and facts.may_create):
            await _install(connection, facts, names, lanes)
            facts, names = await look(connection, options.table, names.schema)
        _check_rights(facts, names)
        return facts, names

    return await lanes.call(act, limit_ms=SETUP_CALLS * options.limit_ms)


async def _install(connection: Connection, facts: Facts, names: Names, lanes: Lanes) -> None:
    """Bring the tables up to date and add the function, one instance after the other."""
    _check_versions(facts, names)
    tables = f"anarchon's tables ({names.table}, ...) in schema {names.schema!r} of database {facts.database!r}"
    if facts.has_schema and not facts.may_create:
        missing = f"are of version {facts.version}, not {SCHEMA_VERSION}" if facts.version else "do not exist"
        msg = (
            f"{tables} {missing}, and user {facts.user!r} may not create any: GRANT CREATE ON SCHEMA {names.schema} TO "
            f"{facts.user}, or open once as the owner"
        )
        raise StoreSetupError(msg)
    if not facts.has_schema and not facts.may_create_schema:
        msg = (
            f"schema {names.schema!r} does not exist in database {facts.database!r} and user {facts.user!r} may not create it: "
            f"CREATE SCHEMA {names.schema} AUTHORIZATION {facts.user}"
        )
        raise StoreSetupError(msg)
    limit_ms = SETUP_CALLS * lanes.options.limit_ms
    await begin_transaction(connection, lock_wait_ms=limit_ms, statement_ms=limit_ms, idle_ms=lanes.options.limit_ms)
    # Without it, creating what another instance creates at the same moment fails even with IF NOT EXISTS.
    await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_lock_number(names),), prepare=False)
    # Another instance may have done it all meanwhile. This look also makes our process of the server hear of that: without
    # it, its memory of "no such schema" would outlast the lock.
    now, _ = await look(connection, names.table, names.schema)
    if not now.has_schema:
        await connection.execute(f'CREATE SCHEMA "{names.schema}"', prepare=False)
    _check_versions(now, names)
    try:
        await _upgrade(connection, now, names)
    except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject) as error:
        msg = (
            f"schema {names.schema!r} of database {now.database!r} holds something else by the name of one of anarchon's tables "
            f"({error.diag.message_primary}): choose other names with ?table=NAME"
        )
        raise StoreSetupError(msg) from error
    except psycopg.errors.InsufficientPrivilege as error:
        msg = (
            f"user {now.user!r} may not change anarchon's tables in schema {names.schema!r} ({error.diag.message_primary}): "
            f"open once as their owner"
        )
        raise StoreSetupError(msg) from error
    await connection.execute("COMMIT", prepare=False)


async def _upgrade(connection: Connection, now: Facts, names: Names) -> None:
    if now.version < SCHEMA_VERSION:
        await connection.execute(names.fill(MAKE_VERSIONS), prepare=False)
    for version, step in enumerate(SCHEMA, 1):
        if version <= now.version:
            continue
        for statement in step:
            await connection.execute(names.fill(statement), prepare=False)
        await connection.execute(names.fill(PUT_VERSION), (version, OLDEST_FLEET), prepare=False)
    if not now.has_function:
        await connection.execute(names.fill(FUNCTION), prepare=False)


def _lock_number(names: Names) -> int:
    digest = hashlib.sha256(f"anarchon {names.schema}.{names.table}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _check_server(facts: Facts, place: str) -> None:
    if facts.server_version < SERVER_LEAST:
        msg = f"{place} is version {facts.server_version // 10_000}: anarchon needs {SERVER_LEAST // 10_000} or later"
        raise StoreSetupError(msg)
    if facts.standby:
        raise BackendUnavailable(f"{place} is a hot standby, where nothing can be written: connect to the primary")
    if facts.read_only:
        msg = f"{place}: user {facts.user!r} is set to read-only transactions (default_transaction_read_only): give it another"
        raise StoreSetupError(msg)


def _check_versions(facts: Facts, names: Names) -> None:
    if facts.version > SCHEMA_VERSION and facts.oldest_fleet > SCHEMA_VERSION:
        msg = (
            f"anarchon's tables ({names.table}, ...) in schema {names.schema!r} are of version {facts.version}, this package "
            f"knows version {SCHEMA_VERSION}: pip install --upgrade anarchon-postgres"
        )
        raise StoreSetupError(msg)


def _check_rights(facts: Facts, names: Names) -> None:
    _check_versions(facts, names)
    if not facts.may_use_schema or not facts.may_write:
        granted = f"GRANT USAGE ON SCHEMA {names.schema}, GRANT SELECT ON {names.schema}.{names.table}_schema"
        tables = ", ".join(f"{names.schema}.{names.table}{ending}" for ending in ("", "_jobs", "_attempts"))
        msg = (
            f"user {facts.user!r} may not read and write anarchon's tables: {granted} and "
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {facts.user}"
        )
        raise StoreSetupError(msg)


def setup_sql(table: str = "runs", schema: str = "public") -> str:
    """Return the statements that make the tables and the function, for an owner who runs them by hand."""
    names = Names(schema, table)
    versions = [PUT_VERSION.replace("%s, %s", f"{version}, {OLDEST_FLEET}") for version in range(1, SCHEMA_VERSION + 1)]
    statements = [MAKE_VERSIONS, *(statement for step in SCHEMA for statement in step), *versions, FUNCTION]
    return "".join(f"{names.fill(statement)};\n" for statement in statements)
