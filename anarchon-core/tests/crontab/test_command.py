"""The command of a line: output, input, environment, failure, and its end when the run is lost, late or handed over."""

from __future__ import annotations

import asyncio
import os
import pwd
import time
from pathlib import Path

import pytest
from anarchon import Run, Scheduler
from anarchon.crontab import CommandFailed, add_crontab, command_handler, parse_crontab
from anarchon.errors import OptionError
from anarchon.plugins import new_manager
from anarchon.registry import create_backend
from anarchon.types import RunKey

DEADLINE_S = 20.0


def run_of(name: str = "line") -> Run:
    return Run(RunKey(name, 1_800_000_000_000), 1, "t" * 32, "here")


async def carry_out(text: str, *, system: bool = False) -> None:
    (line,) = parse_crontab(text, file="f", system=system).lines
    await command_handler(line)(run_of())


def call(text: str, *, system: bool = False) -> None:
    asyncio.run(carry_out(text, system=system))


async def words_in(file: Path, count: int) -> list[str]:
    """Wait until a file has so many words."""
    deadline = time.monotonic() + DEADLINE_S
    while not (file.exists() and len(file.read_text().split()) >= count):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    return file.read_text().split()


async def gone(pid: str) -> None:
    """Wait until a process has ended; a zombie has, whoever should reap it."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            if "zombie" in Path(f"/proc/{pid}/status").read_text():
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_environment_input_and_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKED", "yes")
    out = tmp_path / "out"
    call(f"COLOUR=blue\nHOME={tmp_path}\n* * * * * (echo $COLOUR; pwd; echo [$LEAKED]; cat) > {out}%line one%line two")
    assert out.read_text().split("\n") == ["blue", str(tmp_path), "[]", "line one", "line two", ""]


def test_a_command_knows_its_run_and_its_page_says_how(tmp_path: Path) -> None:
    call(f"* * * * * env > {tmp_path}/out")
    told = dict(line.split("=", 1) for line in (tmp_path / "out").read_text().splitlines())
    ours = {name: value for name, value in told.items() if name.startswith("ANARCHON_")}
    assert ours == {
        "ANARCHON_JOB": "line",
        "ANARCHON_SLOT": "2027-01-15T08:00:00Z",
        "ANARCHON_ATTEMPT": "1",
        "ANARCHON_FENCE": str(1_800_000_000_000 * 1024 + 1),
    }
    page = (Path(__file__).parents[2] / "docs" / "crontab.md").read_text()
    for name in [*ours, "PATH", "HOME", "SHELL", "LOGNAME", "USER"]:
        assert f"`{name}" in page


def test_the_shell_of_the_file_runs_the_command(tmp_path: Path) -> None:
    shell, out = tmp_path / "shell", tmp_path / "out"
    shell.write_text(f'#!/bin/sh\necho "$0 $1 $2" > {out}\n')
    shell.chmod(0o755)
    call(f"SHELL={shell}\n* * * * * the command")
    assert out.read_text() == f"{shell} -c the command\n"


def test_a_shell_that_is_not_there_is_a_failure_that_names_it() -> None:
    with pytest.raises(CommandFailed, match="/no/such/shell cannot be started: No such file"):
        call("SHELL=/no/such/shell\n* * * * * true")


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("exit 3", "^exit status 3$"),
        ("echo starting; echo 'no space left' >&2; exit 3", "^exit status 3: no space left$"),
        ("kill -KILL $$", "^ended by SIGKILL$"),
        ("no-such-command-here", "^exit status 127: .*not found"),
    ],
)
def test_a_failure_names_the_status_and_the_last_output(command: str, text: str) -> None:
    with pytest.raises(CommandFailed, match=text):
        call(f"* * * * * {command}")


def test_output_goes_to_the_log_line_by_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "anarchon.job"):
        call("* * * * * printf 'one\\ntwo\\n\\nthree'; printf '\\n\\377\\n'")
    said = [record.getMessage().partition("] ")[2] for record in caplog.records]
    assert said == ["one", "two", "three", "�"]


def test_a_long_line_is_cut_into_pieces(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "anarchon.job"):
        call("* * * * * head -c 5000 /dev/zero | tr '\\0' x")
    assert [len(record.getMessage().partition("] ")[2]) for record in caplog.records] == [2000, 2000, 1000]


def test_input_that_nobody_reads_blocks_nothing() -> None:
    call(f"* * * * * true%{'x' * 90_000}")


def test_bytes_that_are_no_utf8_reach_the_command_as_they_are(tmp_path: Path) -> None:
    text = b"* * * * * (printf '\xe9'; cat) > " + str(tmp_path / "out").encode() + b"%\xe8"
    call(text.decode(errors="surrogateescape"))
    assert (tmp_path / "out").read_bytes() == b"\xe9\xe8\n"


def test_what_a_command_leaves_running_does_not_hold_its_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "anarchon.job"):
        call(f"* * * * * sleep 60 & echo $! > {tmp_path}/pid")
    assert "left something running" in caplog.text
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 9)


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_a_cancelled_handler_ends_the_whole_process_group(tmp_path: Path, trap: str) -> None:
    pids = tmp_path / "pids"

    async def story() -> None:
        task = asyncio.create_task(carry_out(f"* * * * * {trap}sleep 60 & echo $! >> {pids}; echo $$ >> {pids}; wait"))
        ours = await words_in(pids, 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for pid in ours:
            await gone(pid)

    asyncio.run(story())


def test_a_leader_that_ends_in_order_leaves_nothing_of_its_group(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = f"* * * * * (trap '' TERM; echo x >> {pids}; sleep 60) & echo $! >> {pids}; trap 'exit 0' TERM; wait"

    async def story() -> None:
        task = asyncio.create_task(carry_out(text))
        ours = [pid for pid in await words_in(pids, 2) if pid != "x"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone(ours[0])

    asyncio.run(story())


def test_a_user_that_does_not_exist_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^f:1: there is no user 'nobody-of-that-name' on this host$"):
        call("* * * * * nobody-of-that-name true", system=True)


def test_only_root_becomes_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = next(entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid != 0 and entry.pw_name != "nobody")
    monkeypatch.setattr(os, "getuid", lambda: mine)
    with pytest.raises(OptionError, match=r"only root can run a command as 'nobody': run this as root, or as that user"):
        call("* * * * * nobody true", system=True)


def test_a_command_runs_as_the_user_of_its_line(tmp_path: Path) -> None:
    user = "nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    for folder in [tmp_path, *list(tmp_path.parents)[:3]] if os.getuid() == 0 else []:
        folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "who").touch()
    (tmp_path / "who").chmod(0o666)
    call(f"* * * * * {user} (id -un; echo $LOGNAME) > {tmp_path}/who", system=True)
    assert (tmp_path / "who").read_text().split() == [user, user]


def scheduler_of(name: str, text: str) -> Scheduler:
    scheduler = Scheduler(f"memory://crontab-{name}", grace=1)
    crontab = parse_crontab(text, file="f")
    assert (crontab.problems, add_crontab(scheduler, crontab)) == ((), [])
    return scheduler


@pytest.mark.parametrize(
    ("command", "options", "status", "error"),
    [
        ("true", "", "success", ""),
        ("echo went wrong; exit 9", "", "failed", "exit status 9: went wrong"),
        ("sleep 60", "timeout=0.2", "timeout", "not done after 0.2 s"),
    ],
)
def test_the_history_has_the_exit_status(command: str, options: str, status: str, error: str) -> None:
    async def story() -> None:
        async with scheduler_of(status, f"# anarchon: name=line {options}\n0 3 * * * {command}") as scheduler:
            record = await scheduler.run_now("line")
        assert record.status == status
        assert error in (record.error or "")

    asyncio.run(story())


def test_a_stop_ends_the_command_and_hands_its_run_over(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    async def story() -> None:
        text = f"# anarchon: name=line\n0 3 * * * echo $$ > {pids}; sleep 60 & wait"
        other = create_backend("memory://crontab-stop", new_manager())
        await other.open()
        async with scheduler_of("stop", text) as scheduler:
            await scheduler.run_now("line", wait=False)
            (pid,) = await words_in(pids, 1)
        await gone(pid)
        (record,) = await other.history("line", limit=10)
        assert record.status == "handed_over"
        await other.close()

    asyncio.run(story())
