"""The URL, the options, and the table of them in the documentation."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import anarchon_sqlite
import pytest
from anarchon.backend import CONTRACT_VERSION, LeaseBackend
from anarchon.errors import OptionError, UrlError
from anarchon.plugins import new_manager
from anarchon.registry import create_backend
from anarchon.url import BackendUrl
from anarchon_sqlite import SQLiteBackend
from anarchon_sqlite.options import Options, Synchronous, options_from_url

PAGE = Path(__file__).parents[2] / "anarchon-core" / "docs" / "backends" / "sqlite.md"


def options(url: str) -> Options:
    return options_from_url(BackendUrl(url))


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///cron.db", "cron.db"),
        ("sqlite:///data/cron.db", "data/cron.db"),
        ("sqlite:////var/lib/cron.db", "/var/lib/cron.db"),
        ("sqlite:////a%20b/%23cron%3F.db", "/a b/#cron?.db"),
    ],
)
def test_three_slashes_are_relative_and_four_absolute(url: str, path: str) -> None:
    assert options(url).path == str(Path(path).absolute())


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("sqlite://cron.db", "three slashes"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite://", "memory://"),
        ("sqlite:///", "memory://"),
        ("sqlite:///folder/", "names no database file"),
        ("sqlite:///a%00b", "names no database file"),
        ("sqlite:///cron.db#x", "%23"),
        ("sqlite:///cron.db?busy_timeout=0", "busy_timeout='0' is refused: write seconds from 0.01 to 60"),
        ("sqlite:///cron.db?busy_timeout=61", "busy_timeout"),
        ("sqlite:///cron.db?synchronous=off", "write one of full, normal"),
        ("sqlite:///cron.db?table=Runs", "table='Runs' is refused"),
        ("sqlite:///cron.db?table=runs_jobs", "table='runs_jobs' is refused"),
        ("sqlite:///cron.db?table=runs_live", "table='runs_live' is refused"),
        ("sqlite:///cron.db?table=sqlite_runs", "is refused"),
        ("sqlite:///cron.db?table=a%22;--", "is refused"),
        ("sqlite:///cron.db?max=2", "max='2' is refused: write a whole number from 3 to 64"),
        ("sqlite:///cron.db?timeout=5", "unknown option 'timeout'"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(url: str, word: str) -> None:
    with pytest.raises(UrlError, match=re.escape(word)) as caught:
        options(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"path": ":memory:"}, "memory://"),
        ({"path": ""}, "path"),
        ({"path": "folder/"}, "path"),
        ({"path": "a\0b"}, "path"),
        ({"busy_timeout": 0}, "busy_timeout"),
        ({"busy_timeout": float("nan")}, "busy_timeout"),
        ({"busy_timeout": True}, "busy_timeout"),
        ({"busy_timeout": "5"}, "busy_timeout"),
        ({"busy_timeout": timedelta(minutes=2)}, "busy_timeout"),
        ({"synchronous": "extra"}, "synchronous"),
        ({"table": ""}, "table"),
        ({"table": "x" * 49}, "table"),
        ({"max_connections": 65}, "max"),
        ({"max_connections": True}, "max"),
    ],
)
def test_arguments_are_checked_like_a_url(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(OptionError, match=word):
        SQLiteBackend(**({"path": "cron.db"} | arguments))


def test_every_option_of_a_url_arrives() -> None:
    assert options("sqlite:////x.db?busy_timeout=0.25&synchronous=normal&table=cron_runs&max=7") == Options(
        path="/x.db", busy_timeout_ms=250, synchronous=Synchronous.NORMAL, table="cron_runs", max_connections=7
    )


@pytest.mark.parametrize(("busy_timeout", "wait_ms", "call_ms"), [(1, 1000, 5000), (5, 4750, 5000), (30, 29_750, 30_000)])
def test_c23_a_wait_for_the_lock_always_ends_before_the_call_timeout(busy_timeout: float, wait_ms: int, call_ms: int) -> None:
    backend = SQLiteBackend("cron.db", busy_timeout=timedelta(seconds=busy_timeout))
    assert backend.limits.call_timeout_ms == call_ms
    assert backend._database.options.lock_wait_ms == wait_ms


def test_synchronous_normal_is_said_in_the_limits() -> None:
    assert any("power failure" in note for note in SQLiteBackend("cron.db", synchronous="normal").limits.notes)
    assert not any("power failure" in note for note in SQLiteBackend("cron.db").limits.notes)


def test_the_scheme_is_served_through_the_plugin_hook() -> None:
    backend = create_backend("sqlite:///cron.db?table=mine", new_manager())
    assert isinstance(backend, SQLiteBackend)
    assert isinstance(backend, LeaseBackend)
    assert anarchon_sqlite.CONTRACT_VERSION == CONTRACT_VERSION
    assert anarchon_sqlite.anarchon_backend(BackendUrl("redis://x")) is None


def test_the_documented_options_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `?([^|`]+)`? \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert [(name, key, default) for name, key, default, _, _ in rows] == [
        ("busy_timeout", "busy_timeout", "5"),
        ("synchronous", "synchronous", "full"),
        ("table", "table", "runs"),
        ("max_connections", "max", "4"),
    ]
    accepted = {"busy_timeout": ("0.01", "60"), "synchronous": ("full", "normal"), "table": ("a", "x" * 48), "max": ("3", "64")}
    refused = {"busy_timeout": ("0.009", "60.001"), "synchronous": ("off",), "table": ("", "x" * 49), "max": ("2", "65")}
    for _, key, default, limits, error in rows:
        for value in (default, *accepted[key]):
            options(f"sqlite:///x.db?{key}={value}")
        for value in refused[key]:
            with pytest.raises(UrlError) as caught:
                options(f"sqlite:///x.db?{key}={value}")
        assert error.strip("` ").rstrip("…") in str(caught.value), key
        assert all(bound in limits for bound in accepted[key] if len(bound) < 8 and bound != "a"), key
