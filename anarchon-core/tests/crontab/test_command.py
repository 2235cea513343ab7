"""The command of a line: output, input, environment, failure, and its end when the run is lost."""

from __future__ import annotations

import os
import pwd
import threading
import time
from pathlib import Path

import pytest
from anarchon import Run
from anarchon.crontab import CommandFailed, command_handler, parse_crontab
from anarchon.errors import OptionError
from anarchon.types import RunKey


def run_of(name: str = "line") -> Run:
    return Run(RunKey(name, 1_800_000_000_000), 1, "t" * 32, "here")


def handler(text: str, *, system: bool = False) -> object:
    (line,) = parse_crontab(text, file="f", system=system).lines
    return command_handler(line)


def call(text: str, run: Run | None = None) -> None:
    function = handler(text)
    assert callable(function)
    function(run or run_of())


def test_environment_input_and_shell(tmp_path: Path) -> None:
    out = tmp_path / "out"
    call(f"COLOUR=blue\nHOME={tmp_path}\n* * * * * (echo $COLOUR; pwd; cat) > {out}%line one%line two")
    assert out.read_text().split("\n")[:4] == ["blue", str(tmp_path), "line one", "line two"]


def test_a_failure_names_the_status_and_the_last_output() -> None:
    with pytest.raises(CommandFailed, match="exit status 3: no space left"):
        call("* * * * * echo starting; echo 'no space left' >&2; exit 3")


def test_output_goes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "anarchon.job"):
        call("* * * * * echo hello from cron")
    assert "hello from cron" in caplog.text


def test_a_lost_run_ends_the_whole_process_group(tmp_path: Path) -> None:
    pids, run = tmp_path / "pids", run_of()
    failed: list[BaseException] = []

    def body() -> None:
        try:
            call(f"* * * * * sleep 60 & echo $! > {pids}; echo $$ >> {pids}; wait", run)
        except CommandFailed as error:
            failed.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    deadline = time.monotonic() + 20
    while not (pids.exists() and len(pids.read_text().split()) == 2):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run.lost.set()
    thread.join(20)
    assert not thread.is_alive()
    assert "ended by anarchon" in str(failed[0])
    for pid in pids.read_text().split():
        while Path(f"/proc/{pid}").exists() and "zombie" not in Path(f"/proc/{pid}/status").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_user_that_does_not_exist_is_refused() -> None:
    with pytest.raises(OptionError, match="there is no user 'nobody-of-that-name'"):
        handler("* * * * * nobody-of-that-name true", system=True)


@pytest.mark.parametrize("user", ["nobody"])
def test_a_command_runs_as_the_user_of_its_line(user: str, tmp_path: Path) -> None:
    if os.getuid() == 0:
        tmp_path.chmod(0o777)
        for parent in list(tmp_path.parents)[:3]:
            parent.chmod(parent.stat().st_mode | 0o055)
        function = handler(f"* * * * * {user} id -un > {tmp_path}/who", system=True)
        assert callable(function)
        function(run_of())
        assert (tmp_path / "who").read_text().strip() == user
    else:
        assert pwd.getpwnam(user)
        with pytest.raises(OptionError, match="only root"):
            handler(f"* * * * * {user} true", system=True)
