"""Whole lives of the commands that stay: run, crontab, demo."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

Anarchon = Callable[..., subprocess.CompletedProcess[str]]
Begin = Callable[..., subprocess.Popen[str]]

DEADLINE_S = 60.0


def until(met: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for something that a process makes true."""
    deadline = time.monotonic() + DEADLINE_S
    while not met():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def stopped(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str, str]:
    """End a process and return its code and what it said."""
    process.send_signal(number)
    out, errors = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, errors


def words(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return "zombie" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_whole_life_run_history_why_orphans(anarchon: Anarchon, begin: Begin, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/cron.db"
    (tmp_path / "app.py").write_text(
        "from anarchon import Scheduler, Every\n"
        "scheduler = Scheduler(grace=1)\n"
        "@scheduler.job(Every(seconds=1), jitter=0)\n"
        "def beat(): open('beats', 'a').write('x ')\n"
    )
    with begin("run", "app:scheduler", ANARCHON_URL=url) as process:
        until(lambda: len(words(tmp_path / "beats")) >= 2, process)
        assert stopped(process)[0] == 0
    records = json.loads(anarchon("history", url, "beat", "--json").stdout)
    wanted = {"job", "slot", "slot_ms", "attempt", "instance", "status", "claimed_at", "finished_at", "error"}
    assert wanted <= set(records[0])
    done = next(record for record in records if record["status"] == "success")
    assert done["slot"].endswith("Z")
    assert "success" in anarchon("history", url, "beat").stdout
    answer = json.loads(anarchon("why", url, "beat", done["slot"], "--json").stdout)
    assert answer["verdict"] == "ran"
    assert anarchon("why", url, "beat", str(done["slot_ms"] + 500)).stdout.startswith("The schedule has no such slot")
    assert anarchon("orphans", url).returncode == 0
    assert anarchon("orphans", url, "--days", "0").returncode == 1
    assert anarchon("orphans", url, "--days", "0", "--forget", "beat").returncode == 0


@pytest.mark.parametrize(("level", "tracebacks"), [("INFO", 1), ("DEBUG", 2)])
def test_a_drivers_warning_of_a_lost_connection_is_one_line(begin: Begin, tmp_path: Path, level: str, tracebacks: int) -> None:
    (tmp_path / "app.py").write_text(
        "import logging\n"
        "from anarchon import Scheduler, Every\n"
        "scheduler = Scheduler('memory://')\n"
        "@scheduler.job(Every(seconds=1), jitter=0)\n"
        "def beat():\n"
        "    driver = logging.getLogger('driver')\n"
        "    driver.warning('reader of %s exited', 'db', exc_info=ConnectionResetError(104, 'reset by peer'))\n"
        "    driver.error('a defect', exc_info=ValueError('of the driver'))\n"
        "    scheduler.request_stop()\n"
    )
    with begin("run", "app:scheduler", "--log-level", level) as process:
        _, errors = process.communicate(timeout=DEADLINE_S)
    lines = errors.splitlines()
    assert sum(line.startswith("ConnectionResetError: ") for line in lines) == tracebacks - 1
    assert sum(line.startswith("ValueError: ") for line in lines) == 1
    if level == "INFO":
        assert [line for line in lines if line.endswith("WARNING driver: reader of db exited: [Errno 104] reset by peer")]


def test_a_crontab_is_checked_and_run_and_its_failures_are_in_the_history(
    anarchon: Anarchon, begin: Begin, tmp_path: Path
) -> None:
    file, out = tmp_path / "crontab", tmp_path / "out"
    file.write_bytes(
        b"\xef\xbb\xbfMAILTO=ops\n"
        b"# anarchon: name=beat seconds=true jitter=0\n"
        b"*/1 * * * * * echo x >> " + str(out).encode() + b"; echo caf\xe9; exit 4\n"
        b"* * * * bad\n"
    )
    checked = anarchon("crontab", str(file), "--check", "--json")
    assert checked.returncode == 1
    told = json.loads(checked.stdout)
    assert [(job["name"], job["tz"], job["line"]) for job in told["jobs"]] == [("beat", "UTC", 3)]
    assert [(problem["file"], problem["line"]) for problem in told["problems"]] == [(str(file), 4)]
    assert [note["line"] for note in told["notes"]] == [1]
    strict = anarchon("crontab", str(file), "--url", "memory://", "--strict")
    assert strict.returncode == 1
    assert f"{file}:4: " in strict.stderr
    url = f"sqlite:///{tmp_path}/cron.db"
    with begin("crontab", str(file), ANARCHON_URL=url) as process:
        until(lambda: len(words(out)) >= 2, process)
        code, _, errors = stopped(process)
    assert code == 0
    assert f"anarchon: {file}:4: " in errors
    assert "caf\ufffd" in errors
    assert "Traceback" not in errors
    records = json.loads(anarchon("history", url, "beat", "--json").stdout)
    failed = next(record for record in records if record["status"] == "failed")
    assert failed["error"] == "CommandFailed: exit status 4: caf\ufffd"


@pytest.mark.timeout(200)
def test_a_fleet_runs_each_slot_of_a_crontab_once_although_an_instance_is_killed(begin: Begin, tmp_path: Path) -> None:
    file, out = tmp_path / "crontab", tmp_path / "out"
    file.write_text(
        "# anarchon: name=beat seconds=true jitter=0.2 overlap=allow lease=2\n"
        f"*/1 * * * * * echo $ANARCHON_SLOT,$ANARCHON_ATTEMPT >> {out}\n"
    )
    url = f"sqlite:///{tmp_path}/cron.db"
    fleet = [begin("crontab", str(file), ANARCHON_URL=url) for _ in range(3)]
    until(lambda: len(words(out)) >= 4, fleet[0])
    stopped(fleet[0], signal.SIGKILL)
    after = len(words(out))
    until(lambda: len(words(out)) >= after + 6, fleet[1])
    for process in fleet[1:]:
        assert stopped(process)[0] == 0
    runs = words(out)
    assert len(runs) == len(set(runs))
    slots = sorted(map(datetime.fromisoformat, {run.partition(",")[0] for run in runs}))
    assert slots == [slots[0] + timedelta(seconds=each) for each in range(len(slots))]
    # Attempt 2 only where the killed one left off; its commands, if any were under way, went on.
    assert sum(not run.endswith(",1") for run in runs) <= 2


@pytest.mark.parametrize("text", ["", "# only a comment\n", "* * * * bad\n"])
def test_a_crontab_without_a_line_that_can_run_says_so(anarchon: Anarchon, tmp_path: Path, text: str) -> None:
    (tmp_path / "crontab").write_text(text)
    done = anarchon("crontab", "crontab", "--url", "memory://")
    assert done.returncode == 1
    assert "anarchon: crontab has no line that can run" in done.stderr


@pytest.mark.timeout(200)
def test_the_demonstration_kills_an_instance_and_loses_nothing(anarchon: Anarchon) -> None:
    done = anarchon("demo", "--seconds", "12", "--instances", "3", "--json")
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert set(verdict) == {"slots", "won", "duplicates", "missed", "takeovers", "handovers", "verdict"}
    assert (done.returncode, verdict["verdict"], done.stderr) == (0, "ok", ""), (verdict, done.stderr)
    assert verdict["takeovers"] >= 1
    assert verdict["slots"] == verdict["won"] > 0


@pytest.mark.timeout(200)
def test_the_demonstration_says_what_happens_and_leaves_nothing_in_a_store_of_ours(anarchon: Anarchon, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ours.db"
    done = anarchon("demo", "--seconds", "8", "--instances", "2", "--url", url)
    assert done.returncode == 0
    said = done.stdout
    for part in ("2 instances start", "SIGKILL: instance-", "again, as attempt 2", " starts\n", "verdict: ok"):
        assert part in said
    assert json.loads(anarchon("orphans", url, "--days", "0", "--json").stdout) == []


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_no_instance_outlives_the_demonstration(begin: Begin, number: int, code: int) -> None:
    with begin("demo", "--seconds", "60", "--instances", "2", "--json") as process:
        until(lambda: len(children(process.pid)) == 2, process)
        ours = children(process.pid)
        assert stopped(process, number)[0] == code
    deadline = time.monotonic() + DEADLINE_S
    while not all(gone(pid) for pid in ours):
        assert time.monotonic() < deadline, ours
        time.sleep(0.02)
