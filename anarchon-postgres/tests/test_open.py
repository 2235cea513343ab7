"""Opening: tables, rights, versions, and what is said when it cannot be done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from anarchon.errors import AnarchonError, BackendUnavailable, StoreSetupError
from anarchon.types import ClaimRequest, Outcome, RunKey, RunResult, RunStatus, new_token
from anarchon_postgres import PostgresBackend, decision, schema, setup_sql, store

Database = Any
Use = Callable[..., None]


def ask(key: RunKey, token: str | None = None, **changes: Any) -> ClaimRequest:
    return replace(ClaimRequest(key=key, token=token or new_token(), instance="test", lease_ms=5000, exclusive=False), **changes)


def fails(backend: PostgresBackend, kind: type[AnarchonError]) -> str:
    """Open, and return the sentence of the failure."""

    async def main() -> str:
        with pytest.raises(kind) as caught:
            await backend.open()
        await backend.close()
        return str(caught.value)

    text = asyncio.run(main())
    assert "\n" not in text
    assert "geheim" not in text
    assert "postgresql://" not in text
    return text


def test_c21_many_instances_open_an_empty_store_at_once(database: Database, pgbouncer: Any) -> None:
    async def main() -> None:
        for base in (database.base, pgbouncer.url()):
            database.base = base
            database.table += "x"
            fleet = [database.make(schema=f"s{database.table}") for _ in range(12)]
            await asyncio.gather(*(backend.open() for backend in fleet))
            await asyncio.gather(*(backend.open() for backend in fleet))
            assert len({backend.limits for backend in fleet}) == 1
            await asyncio.gather(*(backend.close() for backend in fleet))
            await fleet[0].open()
            await fleet[0].close()
            await fleet[0].close()

    asyncio.run(main())


def test_a_closed_backend_says_so(database: Database) -> None:
    async def main() -> None:
        backend = database.make()
        for call in (backend.now_ms, lambda: backend.claim(ask(RunKey("a", 1))), lambda: backend.forget("a")):
            with pytest.raises(BackendUnavailable, match=r"not open: call open\(\) first"):
                await call()

    asyncio.run(main())


def test_a_wrong_password_is_one_sentence(database: Database) -> None:
    database.base = database.server.url(user="cron:geheim")
    assert "refuses the user or the password" in fails(database.make(), StoreSetupError)


def test_an_unknown_user_is_one_sentence(database: Database) -> None:
    database.base = database.server.url(user="nobody_here:geheim")
    assert "refuses the user or the password" in fails(database.make(), StoreSetupError)


def test_a_missing_database_is_one_sentence(database: Database) -> None:
    database.base = database.server.url(database="nowhere")
    assert "/nowhere has no such database: CREATE DATABASE" in fails(database.make(), StoreSetupError)


def test_an_unreachable_port_is_one_sentence(database: Database) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening
        database.base = f"postgresql://cron:geheim@127.0.0.1:{taken.getsockname()[1]}/cron"
        assert "is not listening there" in fails(database.make(), BackendUnavailable)


def test_an_unknown_host_is_one_sentence(database: Database) -> None:
    database.base = "postgresql://cron:geheim@no-such-host.invalid/cron"
    assert "host name that is not known" in fails(database.make(), BackendUnavailable)


def test_a_read_only_user_is_one_sentence(database: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        await backend.now_ms()

    play(database.make(), act)
    user = database.role(create=False)
    name = user.partition(":")[0]
    database.sql(f"GRANT SELECT ON {database.table}, {database.table}_jobs, {database.table}_attempts TO {name}")
    database.sql(f"GRANT SELECT ON {database.table}_schema TO {name}")
    database.base = database.server.url(user=user)
    text = fails(database.make(), StoreSetupError)
    assert (
        f"user {name!r} may not read and write anarchon's tables: GRANT USAGE ON SCHEMA public, GRANT SELECT ON public." in text
    )


def test_a_user_set_to_read_only_is_one_sentence(database: Database) -> None:
    user = database.role(create=True)
    database.sql(f"ALTER ROLE {user.partition(':')[0]} SET default_transaction_read_only = on")
    database.base = database.server.url(user=user)
    assert "is set to read-only transactions" in fails(database.make(), StoreSetupError)


def test_a_user_without_create_on_an_empty_store_is_one_sentence(database: Database) -> None:
    database.base = database.server.url(user=database.role(create=False))
    assert "may not create any: GRANT CREATE ON SCHEMA public TO" in fails(database.make(), StoreSetupError)


def test_a_schema_that_may_not_be_made_is_one_sentence(database: Database) -> None:
    database.base = database.server.url(user=database.role(create=False))
    assert "CREATE SCHEMA nothere AUTHORIZATION" in fails(database.make(schema="nothere"), StoreSetupError)


def test_a_search_path_into_nothing_is_one_sentence(database: Database) -> None:
    user = database.role(create=True)
    database.sql(f"ALTER ROLE {user.partition(':')[0]} SET search_path = nowhere")
    database.base = database.server.url(user=user)
    assert "has no schema in its search_path" in fails(database.make(), StoreSetupError)


def test_a_table_that_is_not_ours_is_one_sentence_and_stays(database: Database) -> None:
    database.sql(f"CREATE TABLE {database.table} (mine int)")
    database.sql(f"INSERT INTO {database.table} VALUES (7)")
    assert "choose other names with ?table=NAME" in fails(database.make(), StoreSetupError)
    assert database.sql(f"SELECT * FROM {database.table}") == [(7,)]
    assert database.sql("SELECT count(*) FROM pg_class WHERE relname LIKE %s", f"{database.table}%") == [(1,)]


def test_a_newer_fleets_tables_are_used_if_it_says_so_and_refused_if_not(database: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        assert (await backend.claim(ask(RunKey("a", await backend.now_ms())))).won

    play(database.make(), act)
    database.sql(f"INSERT INTO {database.table}_schema VALUES (9, 1)")
    play(database.make(), act)
    database.sql(f"INSERT INTO {database.table}_schema VALUES (10, 9)")
    text = fails(database.make(), StoreSetupError)
    assert "are of version 10, this package knows version 1: pip install --upgrade anarchon-postgres" in text


def test_setup_sql_makes_what_open_makes(database: Database, play: Use) -> None:
    user = database.role(create=False)
    database.sql(setup_sql(database.table))
    for ending in ("", "_jobs", "_attempts", "_schema"):
        database.sql(f"GRANT ALL ON {database.table}{ending} TO {user.partition(':')[0]}")
    database.base = database.server.url(user=user)

    async def act(backend: PostgresBackend) -> None:
        assert not [line for line in await backend.warnings() if "may not create functions" in line]
        assert (await backend.claim(ask(RunKey("a", await backend.now_ms())))).won

    play(database.make(), act)


def test_a_schema_of_ones_own_is_made(database: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        assert (await backend.claim(ask(RunKey("a", await backend.now_ms())))).won

    play(database.make(schema=f"Own_{database.table}"), act)
    assert database.sql(f'SELECT job FROM "Own_{database.table}".{database.table}') == [("a",)]


def test_tables_dropped_under_an_open_backend_are_made_again(database: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        await backend.claim(ask(RunKey("a", await backend.now_ms())))
        names = ", ".join(f"{database.table}{ending}" for ending in ("", "_jobs", "_attempts", "_schema"))
        database.sql(f"DROP TABLE {names}")
        with pytest.raises(BackendUnavailable, match="looked for again"):
            await backend.claim(ask(RunKey("a", await backend.now_ms())))
        assert (await backend.claim(ask(RunKey("a", await backend.now_ms())))).won

    play(database.make(), act)


def test_an_upgrade_under_a_running_fleet_loses_and_doubles_nothing(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old code goes on claiming while new code with a further schema step and another function opens beside it."""

    async def main() -> None:
        old = database.make()
        await old.open()
        start_ms = await old.now_ms()
        keys = [RunKey(f"job{number % 5}", start_ms - 20_000 + number) for number in range(150)]
        wins: dict[RunKey, int] = {}

        async def work(backend: PostgresBackend) -> None:
            for key in keys:
                token = new_token()
                claim = await backend.claim(ask(key, token))
                if claim.won:
                    wins[key] = wins.get(key, 0) + 1
                    assert await backend.finish(key, token, RunResult(RunStatus.SUCCESS))
                else:
                    assert claim.outcome in {Outcome.RUNNING, Outcome.DONE}

        working = asyncio.create_task(work(old))
        step = ("ALTER TABLE {runs} ADD COLUMN note text NOT NULL DEFAULT ''",)
        with monkeypatch.context() as patch:
            patch.setattr(store, "SCHEMA", (*schema.SCHEMA, step))
            patch.setattr(store, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
            patch.setattr(schema, "DECISION_VERSION", decision.DECISION_VERSION + 1)
            new = database.make()
            await new.open()
        await asyncio.gather(working, work(new))
        assert wins == dict.fromkeys(keys, 1)
        functions = database.sql("SELECT proname FROM pg_proc WHERE proname LIKE %s ORDER BY 1", f"{database.table}%")
        assert functions == [(f"{database.table}_claim_v1",), (f"{database.table}_claim_v2",)]
        assert database.sql(f"SELECT max(version) FROM {database.table}_schema") == [(2,)]
        again = database.make()  # old code that starts anew after the upgrade
        await again.open()
        assert (await again.claim(ask(RunKey("late", await again.now_ms())))).won
        for backend in (old, new, again):
            await backend.close()

    asyncio.run(main())


def test_check_warns_of_what_weakens_the_promises(database: Database, play: Use) -> None:
    user = database.role(create=True)
    database.sql(f"ALTER ROLE {user.partition(':')[0]} SET synchronous_commit = off")
    database.base = database.server.url(user=user)

    async def act(backend: PostgresBackend) -> None:
        (warning,) = await backend.warnings()
        assert "synchronous_commit is off: a crash of the server can lose acknowledged claims" in warning
        assert "asynchronous replica" in backend.limits.notes[0]

    play(database.make(), act)


def test_check_is_quiet_about_a_sound_server(database: Database, play: Use) -> None:
    async def act(backend: PostgresBackend) -> None:
        assert await backend.warnings() == []

    play(database.make(), act)


def test_warnings_cover_standby_replicas_clock_fsync_and_encoding() -> None:
    from anarchon_postgres.advice import advice

    facts = store.Facts(
        server_version=150_000,
        user="app",
        database="app",
        schema="public",
        has_schema=True,
        may_use_schema=True,
        may_create=False,
        may_create_schema=False,
        standby=True,
        read_only=True,
        isolation="read committed",
        synchronous_commit="local",
        fsync=False,
        encoding="LATIN1",
        synchronous_standby=True,
        replicas=2,
        tables=3,
        may_write=True,
        has_versions=True,
        has_function=True,
    )
    text = advice(facts, schema.Names("public", "runs"), 5_000)
    for words in ("hot standby", "fsync is off", "asynchronous", "LATIN1", "5.0 s ahead of"):
        assert sum(words in line for line in text) == 1, words
    assert "5.0 s behind" in advice(facts, schema.Names("public", "runs"), -5_000)[-1]


def test_a_standby_is_refused_with_the_primary_named_as_the_way_out(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_LOOK", store._LOOK.replace("pg_is_in_recovery()", "true"))
    assert "is a hot standby, where nothing can be written: connect to the primary" in fails(database.make(), BackendUnavailable)


def test_an_old_server_is_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SERVER_LEAST", 990_000)
    assert f"is version {database.server.version}: anarchon needs 99 or later" in fails(database.make(), StoreSetupError)


def test_a_driver_error_outside_the_table_is_still_one_sentence() -> None:
    from anarchon_postgres.failures import explain, explain_connect

    text = str(explain_connect(psycopg.OperationalError("odd\nsecond line"), "PostgreSQL at x"))
    assert text == "PostgreSQL at x cannot be reached (odd)"
    assert "DataError" in str(explain(psycopg.DataError("odd"), "PostgreSQL at x"))
