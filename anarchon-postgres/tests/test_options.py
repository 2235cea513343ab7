"""The URL, the options, and the page of the documentation that lists them."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import anarchon_postgres
import pytest
from anarchon.backend import CONTRACT_VERSION, JoinsTransactions, LeaseBackend, TransactionalBackend
from anarchon.errors import OptionError, UrlError
from anarchon.plugins import new_manager
from anarchon.registry import create_backend
from anarchon.url import BackendUrl
from anarchon_postgres import PostgresBackend
from anarchon_postgres.options import PASSED_ON, Options, options_from_url

PAGE = (Path(__file__).parents[2] / "anarchon-core" / "docs" / "backends" / "postgres.md").read_text()
SECRET = "geh@im/'x"
URL = "postgresql://app:geh%40im%2F%27x@db.internal:5433/app"


def options(url: str) -> Options:
    return options_from_url(BackendUrl(url))


def test_every_part_and_option_of_a_url_arrives() -> None:
    found = options(f"{URL}?table=cron&schema=Ops&max=7&call_timeout=2.5&sslmode=require&application_name=x%20y")
    assert found == Options(
        parameters=(
            ("host", "db.internal"),
            ("user", "app"),
            ("password", SECRET),
            ("dbname", "app"),
            ("port", "5433"),
            ("application_name", "x y"),
            ("sslmode", "require"),
        ),
        table="cron",
        schema="Ops",
        max_connections=7,
        call_timeout_ms=2500,
    )


def test_what_arrives_reaches_the_driver_unchanged() -> None:
    backend = create_backend(URL, new_manager())
    assert isinstance(backend, PostgresBackend)
    assert dict(backend._options.parameters) == dict(options(URL).parameters)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_both_schemes_are_served_through_the_plugin_hook(scheme: str) -> None:
    backend = create_backend(f"{scheme}://localhost/app", new_manager())
    assert isinstance(backend, PostgresBackend)
    assert isinstance(backend, LeaseBackend)
    assert isinstance(backend, TransactionalBackend)
    assert isinstance(backend, JoinsTransactions)
    assert anarchon_postgres.CONTRACT_VERSION == CONTRACT_VERSION
    assert anarchon_postgres.anarchon_backend(BackendUrl("redis://x")) is None


def test_the_password_is_in_no_repr() -> None:
    found = options(URL)
    for text in (repr(found), str(found), found.place, repr(PostgresBackend.from_url(BackendUrl(URL)))):
        assert SECRET not in text
        assert "geh" not in text
    assert found.place == "PostgreSQL at db.internal:5433/app"


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("table=Runs", "table='Runs' is refused: write 1 to 48 of a-z, 0-9 and _"),
        ("table=a%22;--", "is refused"),
        ("table=%25s", "is refused"),
        ("table=runs_jobs", "names ending in _jobs"),
        ("table=runs_pkey", "names ending in"),
        ("schema=pg_temp", "schema='pg_temp' is refused"),
        ("schema=a.b", "is refused: write 1 to 63"),
        ("schema=a%22b", "is refused: write 1 to 63"),
        ("schema=%7Bruns%7D", "is refused: write 1 to 63"),
        ("max=0", "max='0' is refused: write a whole number from 1 to 64"),
        ("call_timeout=0.1", "write seconds from 0.25 to 60"),
        ("pool=5", "unknown option 'pool'"),
        ("tabel=runs", "did you mean 'table'?"),
        ("host=other", "host stands before the question mark and behind it"),
        ("password=x", "password stands before the question mark and behind it"),
        ("options=-c%20x", "unknown option 'options'"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(query: str, word: str) -> None:
    with pytest.raises(UrlError, match=re.escape(word)) as caught:
        options(f"{URL}?{query}")
    assert "\n" not in str(caught.value)
    assert "geh" not in str(caught.value)


def test_a_fragment_is_refused() -> None:
    with pytest.raises(UrlError, match="write %23 for a #"):
        options("postgresql://app:secret@db/app#x")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"conninfo": "host=db geheim"}, "conninfo is refused: write a libpq URL"),
        ({"conninfo": 7}, "conninfo is refused"),
        ({"table": ""}, "table"),
        ({"table": None}, "table"),
        ({"table": "x" * 49}, "table"),
        ({"schema": "1a"}, "schema"),
        ({"max_connections": 65}, "max"),
        ({"max_connections": True}, "max"),
        ({"call_timeout": float("nan")}, "call_timeout"),
        ({"call_timeout": "5"}, "call_timeout"),
        ({"call_timeout": timedelta(minutes=2)}, "call_timeout"),
        ({"conninfo": "host=db", "pool": object()}, "exclude each other: write one of them"),
    ],
)
def test_arguments_are_checked_like_a_url(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(OptionError, match=word) as caught:
        PostgresBackend(**arguments)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("seconds", [0.25, 1, 5, 60])
def test_c23_waits_nest_within_the_call_timeout(seconds: float) -> None:
    found = options(f"postgresql:///app?call_timeout={seconds}")
    assert 0 < found.lock_wait_ms < found.limit_ms < found.call_timeout_ms == seconds * 1000


def test_the_documented_options_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`|) ?\| ([^|]*)\| ([^|]+) \| `([^`]+)` \|$", PAGE, re.MULTILINE)
    plain = [(name, key, default.strip("` ")) for name, key, default, _, _ in rows]
    assert plain == [
        ("table", "table", "runs"),
        ("schema", "schema", "the first schema of the user's search_path"),
        ("max_connections", "max", "4"),
        ("call_timeout", "call_timeout", "5"),
        ("connection", "", ""),
        ("pool", "", ""),
    ]
    accepted = {"table": ("a", "x" * 48), "schema": ("A", "x" * 63), "max": ("1", "64"), "call_timeout": ("0.25", "60")}
    refused = {
        "table": ("", "x" * 49, "9a", "a_jobs", "a_attempts", "a_schema", "a_live", "a_pkey", "a_id_seq"),
        "schema": ("x" * 64, "9a", "pg_a"),
        "max": ("0", "65"),
        "call_timeout": ("0.249", "60.001"),
    }
    for _, key, _, limits, error in rows[:4]:
        for value in accepted[key]:
            options(f"postgresql:///app?{key}={value}")
        for value in refused[key]:
            with pytest.raises(UrlError) as caught:
                options(f"postgresql:///app?{key}={value}")
            assert error in str(caught.value) or "names ending in" in str(caught.value), key
            if "names ending in" in str(caught.value):
                assert f"`_{value.partition('_')[2]}`" in limits
    found = options("postgresql:///app")
    assert (found.table, found.schema, found.max_connections, found.call_timeout_ms) == ("runs", None, 4, 5000)
    for name in ("connection", "pool"):
        with pytest.raises(OptionError, match=rows[4][4]):
            PostgresBackend("host=x", **{name: object()})  # type: ignore[arg-type]  # refused before it is looked at


def test_the_documented_options_of_libpq_are_those_passed_on() -> None:
    paragraph = re.search(r"options of libpq, passed on as they are: (.*?)\. Several", PAGE, re.DOTALL)
    assert paragraph is not None
    assert tuple(re.findall(r"`(\w+)`", paragraph[1])) == PASSED_ON


def test_the_page_says_what_a_failover_can_lose_and_how_a_pooler_must_be_set() -> None:
    for words in ("asynchronous failover", "server_login_retry", "setup_sql", "run.finish_in(session)", "_claim_v1"):
        assert words in PAGE
