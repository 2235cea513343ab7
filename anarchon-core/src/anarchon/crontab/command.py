"""Running the command of a crontab line as a handler."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from anarchon.crontab.parser import CrontabLine
from anarchon.errors import AnarchonError, OptionError
from anarchon.run import Run

__all__ = ["CommandFailed", "command_handler"]

LOOK_S = 0.2
TERM_S = 5.0
KILL_S = 5.0
LINE_MAX = 2_000
PATH_DEFAULT = "/usr/bin:/bin"


class CommandFailed(AnarchonError):
    """The command of a crontab line ended with an exit status other than 0, or was ended."""


@dataclass(frozen=True, slots=True)
class _Account:
    name: str
    home: str
    uid: int
    gid: int
    switch: bool


def _account(line: CrontabLine) -> _Account:
    mine = pwd.getpwuid(os.getuid())
    if line.user is None or line.user == mine.pw_name:
        return _Account(mine.pw_name, mine.pw_dir, mine.pw_uid, mine.pw_gid, switch=False)
    try:
        other = pwd.getpwnam(line.user)
    except KeyError:
        msg = f"{line.file}:{line.line}: there is no user {line.user!r} on this host"
        raise OptionError(msg) from None
    if os.getuid() != 0:
        msg = f"{line.file}:{line.line}: only root can run a command as {line.user!r}: run this as root, or as that user"
        raise OptionError(msg)
    return _Account(other.pw_name, other.pw_dir, other.pw_uid, other.pw_gid, switch=True)


def command_handler(line: CrontabLine) -> Callable[[Run], None]:
    """Return the handler of a line: it runs the command, logs its output, and raises if it fails.

    The command has a process group of its own, which is ended when the run is lost, times out or is handed over.

    Raises:
        OptionError: the user of the line does not exist, or is not ours to become.
    """
    account = _account(line)
    home = line.environment.get("HOME", account.home)
    environment = {"PATH": PATH_DEFAULT, "SHELL": "/bin/sh", **line.environment}
    environment |= {"HOME": home, "LOGNAME": account.name, "USER": account.name}
    switch: dict[str, object] = {"user": account.uid, "group": account.gid, "extra_groups": []} if account.switch else {}

    def handler(run: Run) -> None:
        with subprocess.Popen(  # noqa: S603 - running the operator's command is the purpose
            [environment["SHELL"], "-c", line.command],
            stdin=subprocess.PIPE if line.stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=home if os.path.isdir(home) else "/",
            env=environment,
            start_new_session=True,
            text=True,
            errors="replace",
            **switch,  # type: ignore[call-overload]  # user, group and extra_groups, or nothing
        ) as process:
            last: deque[str] = deque(maxlen=1)
            reader = threading.Thread(target=_read, args=(process, run, last), daemon=True)
            reader.start()
            _feed(process, line.stdin)
            ended = _wait(process, run)
            reader.join(LOOK_S * 5)
        if ended:
            msg = f"{line.name}: ended by anarchon because its run was lost, timed out or handed over"
            raise CommandFailed(msg)
        if process.returncode != 0:
            said = f": {last[0]}" if last else ""
            msg = f"exit status {process.returncode}{said}"
            raise CommandFailed(msg)

    handler.__name__ = line.name
    return handler


def _feed(process: subprocess.Popen[str], text: str | None) -> None:
    if process.stdin is None:
        return
    try:
        process.stdin.write(text or "")
        process.stdin.close()
    except BrokenPipeError:
        return  # the command did not want its input


def _read(process: subprocess.Popen[str], run: Run, last: deque[str]) -> None:
    for output in process.stdout or ():
        text = output.rstrip()[:LINE_MAX]
        if text:
            last.append(text)
            run.log.info("%s", text)


def _wait(process: subprocess.Popen[str], run: Run) -> bool:
    """Wait for the end; True if we had to end it."""
    while True:
        try:
            process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            if not run.lost.is_set():
                continue
            for number, wait_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                try:
                    process.wait(wait_s)
                except subprocess.TimeoutExpired:
                    continue
                break
            return True
        else:
            return False
