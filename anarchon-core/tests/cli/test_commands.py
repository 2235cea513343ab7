"""The command line: shapes of JSON, exit codes, one sentence for each failure."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from anarchon.cli.store import refused_options
from anarchon.job import LEASE_ONLY, JobOptions
from anarchon.types import Limits

Anarchon = Callable[..., subprocess.CompletedProcess[str]]

AFTER = ("--after", "2027-01-15T10:50:00Z")


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    """Return what went to stderr: one line, from us."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.startswith("anarchon: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_without_arguments_it_lists_the_commands(quick: Anarchon) -> None:
    done = quick()
    assert done.returncode == 2
    assert "crontab" in done.stdout
    assert "Exit codes: 0" in done.stdout


def test_next_prints_instants_as_json(quick: Anarchon) -> None:
    done = quick("next", "*/7 * * * *", "--tz", "UTC", *AFTER, "--count", "3", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == ["2027-01-15T10:56:00Z", "2027-01-15T11:00:00Z", "2027-01-15T11:07:00Z"]


def test_next_says_the_rules_in_words(quick: Anarchon) -> None:
    done = quick("next", "0 2 13 * 5", "--tz", "Europe/Berlin", *AFTER)
    assert done.returncode == 0
    for words in ("Wall-clock schedule", "Days: OR", "Next gap: 2027-03-28 02:00", "2027-01-22T01:00:00Z"):
        assert words in done.stdout


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "* * * * * *", "R * * * *", "61 * * * *", "", "x" * 10_000])
def test_a_bad_expression_is_one_sentence_and_code_2(quick: Anarchon, expression: str) -> None:
    sentence = one_sentence(quick("next", expression))
    assert "write" in sentence or "join" in sentence


def test_next_from_another_scheduler_says_what_to_write(quick: Anarchon) -> None:
    done = quick("next", "0 0 9 ? * 2", "--from", "quartz", *AFTER, "--count", "1")
    assert done.returncode == 1
    assert "1 = Sunday" in done.stdout
    assert "Write '0 9 ? * MON'." in done.stdout
    assert done.stdout.splitlines()[-1] == "2027-01-18T09:00:00Z"


def test_next_from_another_scheduler_as_json_keeps_its_shape(quick: Anarchon) -> None:
    done = quick("next", "0 9 1 * 0", "--from", "apscheduler3", *AFTER, "--count", "2", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == ["2027-02-01T09:00:00Z", "2027-03-01T09:00:00Z"]
    assert "Write Cron('0 9 1 * *', tz='UTC').excluding(" in done.stderr


def test_next_from_another_scheduler_may_mean_the_same(quick: Anarchon) -> None:
    done = quick("next", "0 9 * * mon", "--from", "apscheduler3", *AFTER)
    assert done.returncode == 0
    assert "It means the same here." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("next", "0 0 9 ? * 8", "--from", "quartz"), "quartz has no weekday 8"),
        (("next", "0 9 * * *", "--tz", "localtime"), "tz 'localtime' depends on the machine"),
        (("next", "0 9 * * *", "--after", "2027-01-01T00:00:00"), "is no instant: write 2027-01-15T10:00:00Z"),
        (("next", "0 9 * * *", "--count", "0"), "Invalid value for '--count'"),
        (("next", "0 9 * * *", "--from", "spring"), "Invalid value for '--from'"),
        (("next",), "Missing argument 'EXPRESSION'"),
        (("check", "redis2://x"), "no backend serves"),
        (("check", "cron.db"), "'cron.db' is no backend URL: write scheme://..., for example sqlite:///cron.db"),
        (("check",), "no store: write its URL, for example sqlite:///cron.db, or set ANARCHON_URL"),
        (("history", "job"), "no store: write its URL, for example sqlite:///cron.db, or set ANARCHON_URL"),
        (("history", "memory://"), "Missing argument 'JOB'"),
        (("history", "memory://?a=1", "job"), "unknown option 'a'"),
        (("history", "memory://", "job", "--limit", "0"), "Invalid value for '--limit'"),
        (("why", "memory://", "job", "yesterday"), "is no instant"),
        (("check", "sqlite:////no/such/folder/cron.db"), "the folder /no/such/folder does not exist: make it first"),
        (("run", "no-colon"), "'no-colon' names no scheduler: write module:name, for example app:scheduler"),
        (("run", "no_such_module_here:scheduler"), "there is no module 'no_such_module_here' here: run this in the folder"),
        (("run", "json.no_such_part:scheduler"), "there is no module 'json.no_such_part' here"),
        (("run", "json:dumps"), "'json:dumps' is no Scheduler: the module holds a function there"),
        (("run", "json:nothing"), "'json:nothing' is no Scheduler: the module has no such name"),
        (("crontab", "/no/such/file", "--url", "memory://"), "/no/such/file cannot be read: No such file or directory"),
        (("crontab", ".", "--url", "memory://"), ". cannot be read: Is a directory"),
        (("crontab", "/dev/null"), "no store: write --url sqlite:///cron.db, or set ANARCHON_URL; --check needs none"),
        (("frobnicate",), "No such command"),
        (("demo", "--url", "memory://"), "memory:// is a store of one process"),
        (("demo", "--url", "redis2://x"), "no backend serves"),
        (("demo", "--instances", "1"), "Invalid value for '--instances'"),
        (("demo", "--seconds", "1"), "Invalid value for '--seconds'"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(quick: Anarchon, arguments: tuple[str, ...], words: str) -> None:
    assert words in one_sentence(quick(*arguments))


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("import nothing_like_it\n", "1", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("def f(:\n", "1", "SyntaxError"),
        ("x = 1\ny = 1 / 0\n", "2", "ZeroDivisionError: division by zero"),
        ("from anarchon import Scheduler\nscheduler = Scheduler('memory://u:s3cret@h/?a=1')\n", "2", "unknown option 'a'"),
        ("from anarchon import Scheduler\n\nScheduler('memory://', grace=-1)\n", "3", "grace=-1 is refused"),
    ],
)
def test_a_module_that_fails_is_one_sentence_with_its_place(
    anarchon: Anarchon, tmp_path: Path, text: str, place: str, words: str
) -> None:
    (tmp_path / "app.py").write_text(text)
    sentence = one_sentence(anarchon("run", "app:scheduler"))
    assert f"app.py:{place}: " in sentence
    assert words in sentence
    assert "s3cret" not in sentence
    shown = anarchon("run", "app:scheduler", "--log-level", "DEBUG")
    assert "Traceback" in shown.stderr
    assert shown.returncode == 2


def test_a_password_is_never_shown(quick: Anarchon) -> None:
    done = quick("check", "memory://user:s3cret@host/?a=1")
    assert "s3cret" not in done.stderr + done.stdout


def test_the_variable_stands_in_for_the_url(quick: Anarchon, tmp_path: Path) -> None:
    url = {"ANARCHON_URL": f"sqlite:///{tmp_path}/cron.db"}
    assert quick("check", **url).returncode == 0
    assert json.loads(quick("check", "--json", **url).stdout)["backend"] == "SQLiteBackend"
    assert json.loads(quick("history", "job", "--json", **url).stdout) == []
    assert json.loads(quick("orphans", "--json", **url).stdout) == []
    assert quick("why", "job", "2027-01-15T10:00:00Z", **url).returncode == 0
    assert json.loads(quick("check", "memory://", "--json", **url).stdout)["backend"] == "MemoryBackend"


def test_check_says_what_the_store_promises(quick: Anarchon) -> None:
    checked = json.loads(quick("check", "memory://", "--json").stdout)
    keys = {"backend", "kind", "round_trip_ms", "clock_offset_ms", "limits", "does_not", "options_refused", "warnings"}
    assert set(checked) == keys
    assert (checked["kind"], checked["does_not"], checked["options_refused"], checked["warnings"]) == ("lease", [], [], [])
    text = quick("check", "memory://").stdout
    for words in (
        "a lease backend",
        "round trip",
        "median of 7",
        "not across a restart of the store",
        "judged by",
        "no warnings",
    ):
        assert words in text


def test_check_names_the_options_that_a_claim_only_backend_refuses() -> None:
    refused = refused_options(Limits(remembers_ms=60_000, history_ttl=False), leased=False)
    assert {option.partition("=")[0] for option in refused} == set(LEASE_ONLY) | {"history_ttl"}
    assert {option.partition("=")[0] for option in refused} <= set(JobOptions.__annotations__)
    assert "overlap='allow'" not in refused


def test_backends_lists_what_is_there_and_what_to_install(quick: Anarchon) -> None:
    listed = json.loads(quick("backends", "--json").stdout)
    assert listed["installed"]["memory"] == "anarchon-core"
    assert not listed["installed"].keys() & listed["missing"].keys()
    text = quick("backends").stdout
    for scheme, package in listed["missing"].items():
        assert f"{scheme + '://':14} not installed: pip install {package}" in text
