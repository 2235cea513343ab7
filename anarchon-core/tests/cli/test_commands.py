"""The command line: shapes of JSON, exit codes, one sentence for each failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


def anarchon(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from anarchon.cli import main; main()", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=110, **more)  # type: ignore[call-overload,no-any-return]


def test_next_prints_instants_as_json() -> None:
    done = anarchon("next", "*/7 * * * *", "--tz", "UTC", "--after", "2027-01-15T10:50:00Z", "--count", "3", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == ["2027-01-15T10:56:00Z", "2027-01-15T11:00:00Z", "2027-01-15T11:07:00Z"]


def test_next_says_the_rules_in_words() -> None:
    done = anarchon("next", "0 2 * * *", "--tz", "Europe/Berlin")
    assert done.returncode == 0
    assert "clock" in done.stdout


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "* * * * * *", "R * * * *", "61 * * * *", "", "x" * 10_000])
def test_a_bad_expression_is_one_sentence_and_code_2(expression: str) -> None:
    done = anarchon("next", expression)
    assert done.returncode == 2
    assert done.stderr.startswith("anarchon: ")
    assert done.stderr.count("\n") == 1
    assert "write" in done.stderr or "join" in done.stderr


@pytest.mark.parametrize(
    ("dialect", "expression", "written", "words"),
    [
        ("quartz", "0 0/5 14,18 ? * 2-6", "0/5 14,18 ? * 1-5", "1 = Sunday"),
        ("quartz", "*/10 * * * * ? *", "*/10 * * * * ?", "year"),
        ("apscheduler3", "0 9 * * 0-4", "0 9 * * MON-FRI", "0 = Monday"),
        ("apscheduler3", "0 9 1 * 0", "0 9 1 * MON", "both day fields match"),
        ("croniter", "0 9 * * * 30", "30 0 9 * * *", "seconds last"),
        ("croniter", "0 16 */2 * SAT", "0 16 */2 * SAT", "demands both"),
    ],
)
def test_next_from_another_scheduler_rewrites_and_says_what_changes(
    dialect: str, expression: str, written: str, words: str
) -> None:
    after = ("--after", "2027-01-15T10:50:00Z")
    done = anarchon("next", expression, "--from", dialect, *after)
    assert done.returncode == 1
    assert words in done.stdout
    again = anarchon("next", written, *after)
    assert again.stdout.splitlines()[0] == done.stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("check", "redis2://x"), "no backend serves"),
        (("check", "amqp://x"), "pip install anarchon-rabbitmq"),
        (("history", "memory://?a=1", "job"), "unknown option 'a'"),
        (("why", "memory://", "job", "yesterday"), "is no instant"),
        (("run", "no-colon"), "module:name"),
        (("run", "no_such_module_here:scheduler"), "there is no module"),
        (("run", "json:dumps"), "is no Scheduler"),
        (("crontab", "/no/such/file", "--url", "memory://"), "cannot be read"),
        (("frobnicate",), "No such command"),
        (("demo", "--url", "amqp://x"), "pip install anarchon-rabbitmq"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(arguments: tuple[str, ...], words: str) -> None:
    done = anarchon(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_password_is_never_shown() -> None:
    done = anarchon("check", "memory://user:s3cret@host/?a=1")
    assert "s3cret" not in done.stderr + done.stdout


def test_check_and_backends_speak_json() -> None:
    checked = json.loads(anarchon("check", "memory://", "--json").stdout)
    assert (checked["kind"], checked["warnings"]) == ("lease", [])
    assert json.loads(anarchon("backends", "--json").stdout)["installed"]["memory"] == "anarchon-core"


def test_a_whole_life_run_history_why_orphans(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/cron.db"
    (tmp_path / "app.py").write_text(
        "from anarchon import Scheduler, Every\n"
        f"scheduler = Scheduler({url!r}, grace=1)\n"
        "@scheduler.job(Every(seconds=1), jitter=0)\n"
        "def beat(): open('beats', 'a').write('x')\n"
    )
    command = [sys.executable, "-c", "from anarchon.cli import main; main()", "run", "app:scheduler"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "beats").exists() or len((tmp_path / "beats").read_text()) < 2:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    records = json.loads(anarchon("history", url, "beat", "--json").stdout)
    wanted = {"job", "slot", "slot_ms", "attempt", "instance", "status", "claimed_at", "finished_at", "error"}
    assert wanted <= set(records[0])
    done = next(record for record in records if record["status"] == "success")
    assert done["slot"].endswith("Z")
    answer = json.loads(anarchon("why", url, "beat", done["slot"], "--json").stdout)
    assert answer["verdict"] == "ran"
    assert anarchon("why", url, "beat", str(done["slot_ms"] + 500)).stdout.startswith("The schedule has no such slot")
    assert anarchon("orphans", url).returncode == 0
    assert anarchon("orphans", url, "--days", "0").returncode == 1
    assert anarchon("orphans", url, "--days", "0", "--forget", "beat").returncode == 0


def test_a_crontab_is_checked_and_run(tmp_path: Path) -> None:
    file = tmp_path / "crontab"
    out = tmp_path / "out"
    file.write_text(f"# anarchon: name=beat seconds=true jitter=0\n*/1 * * * * * echo x >> {out}\n* * * * bad\n")
    checked = anarchon("crontab", str(file), "--check", "--json")
    assert checked.returncode == 1
    told = json.loads(checked.stdout)
    assert [job["name"] for job in told["jobs"]] == ["beat"]
    assert [problem["line"] for problem in told["problems"]] == [3]
    strict = anarchon("crontab", str(file), "--url", "memory://", "--strict")
    assert strict.returncode == 1
    assert f"{file}:3: " in strict.stderr
    command = [sys.executable, "-c", "from anarchon.cli import main; main()", "crontab", str(file)]
    environment = {**os.environ, "ANARCHON_URL": f"sqlite:///{tmp_path}/cron.db"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not out.exists() or len(out.read_text().split()) < 2:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=40)
    assert f"{file}:3: " in errors


@pytest.mark.timeout(200)
def test_the_demonstration_kills_an_instance_and_loses_nothing() -> None:
    done = anarchon("demo", "--seconds", "12", "--instances", "3", "--json")
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert set(verdict) == {"slots", "won", "duplicates", "missed", "takeovers", "handovers", "verdict"}
    assert (done.returncode, verdict["verdict"]) == (0, "ok"), verdict
    assert verdict["takeovers"] >= 1
    assert verdict["slots"] == verdict["won"] > 0


def test_the_page_names_every_command_and_exit_code() -> None:
    from anarchon.cli.main import COMMANDS

    page = PAGE.read_text()
    for command in COMMANDS:
        assert f"`anarchon {command}" in page
    for row in ("| 0 |", "| 1 |", "| 2 |"):
        assert row in page
