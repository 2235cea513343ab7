"""Running the command of a crontab line as a handler."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from anarchon.clock import SystemClock
from anarchon.crontab.parser import CrontabLine
from anarchon.errors import AnarchonError, OptionError
from anarchon.run import Run

__all__ = ["CommandFailed", "command_handler"]

LOOK_MS: Final = 20
TERM_MS: Final = 500
"""From SIGTERM to SIGKILL. Short, since by then another host may start the same run, and a stop leaves 1 s (K6)."""
KILL_MS: Final = 200
OUTPUT_MS: Final = 500
"""How long output is read after the command's end, if something it left running holds it."""
LINE_MAX: Final = 2_000
PATH_DEFAULT: Final = "/usr/bin:/bin"
SHELL_DEFAULT: Final = "/bin/sh"

_clock = SystemClock()


class CommandFailed(AnarchonError):
    """The command of a crontab line ended with an exit status other than 0, or could not be started."""


@dataclass(frozen=True, slots=True)
class _Account:
    """Whose command it is; `switch` if we have to become that user first."""

    name: str
    home: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    switch: bool = False


def _account(line: CrontabLine) -> _Account:
    try:
        mine = pwd.getpwuid(os.getuid())
        own = _Account(mine.pw_name, mine.pw_dir, mine.pw_uid, mine.pw_gid)
    except KeyError:  # a container may run under a number without a name
        own = _Account(str(os.getuid()), os.environ.get("HOME", "/"), os.getuid(), os.getgid())
    if line.user is None or line.user == own.name:
        return own
    try:
        other = pwd.getpwnam(line.user)
    except KeyError:
        msg = f"{line.file}:{line.line}: there is no user {line.user!r} on this host"
        raise OptionError(msg) from None
    if os.getuid() != 0:
        msg = f"{line.file}:{line.line}: only root can run a command as {line.user!r}: run this as root, or as that user"
        raise OptionError(msg)
    groups = tuple(os.getgrouplist(other.pw_name, other.pw_gid))
    return _Account(other.pw_name, other.pw_dir, other.pw_uid, other.pw_gid, groups, switch=True)


def command_handler(line: CrontabLine) -> Callable[[Run], Coroutine[Any, Any, None]]:
    """Return the handler of a line: it runs the command, logs its output, and raises `CommandFailed` if it fails.

    The command has a process group of its own. A cancelled handler (its run is lost, timed out or handed over) ends the
    whole group before it lets go.

    Raises:
        OptionError: the user of the line does not exist, or is not ours to become.
    """
    account = _account(line)

    async def handler(run: Run) -> None:
        output = _Output(run)
        async with _started(line, _environment(line, account, run), account, output=output) as process:
            try:
                status = await process.wait()
            except asyncio.CancelledError:
                run.log.warning("its command is ended: the run is lost, timed out or handed over")
                await _end_group(process.pid)
                raise
            if not await _clock.wait(output.closed, OUTPUT_MS):
                run.log.info("the command left something running that holds its output: it is not read any further")
        if status:
            what = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            raise CommandFailed(f"{what}: {output.last}" if output.last else what)

    handler.__name__ = line.name
    return handler


def _environment(line: CrontabLine, account: _Account, run: Run) -> dict[str, str]:
    """Return what cron gives a command, the lines of its file, and which run this is."""
    of_run = {
        "ANARCHON_JOB": run.job,
        "ANARCHON_SLOT": f"{run.slot:%Y-%m-%dT%H:%M:%SZ}",
        "ANARCHON_ATTEMPT": str(run.attempt),
        "ANARCHON_FENCE": str(run.fence),
    }
    given = {"PATH": PATH_DEFAULT, "SHELL": SHELL_DEFAULT, "HOME": account.home, **line.environment}
    return given | {"LOGNAME": account.name, "USER": account.name} | of_run


@asynccontextmanager
async def _started(
    line: CrontabLine, environment: dict[str, str], account: _Account, *, output: _Output
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a command with its input in a file, which cannot block, and its output in a pipe of ours."""
    home, shell = environment["HOME"], environment["SHELL"]
    switch: dict[str, Any] = {}
    if account.switch:
        switch = {"user": account.uid, "group": account.gid, "extra_groups": account.groups}
    reading, writing = os.pipe()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: output, os.fdopen(reading, "rb", 0))
    try:
        with tempfile.TemporaryFile() as source, os.fdopen(writing, "wb", 0) as sink:
            source.write((line.stdin or "").encode(errors="surrogateescape"))
            source.seek(0)
            process = await asyncio.create_subprocess_exec(
                shell,
                "-c",
                line.command,
                stdin=subprocess.DEVNULL if line.stdin is None else source,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=_folder(home),
                env=environment,
                start_new_session=True,
                **switch,
            )
        yield process
    except OSError as error:
        msg = f"{shell} cannot be started: {error.strerror or error}"
        raise CommandFailed(msg) from error
    finally:
        transport.close()


def _folder(home: str) -> str:
    return home if os.path.isdir(home) else "/"


class _Output(asyncio.Protocol):
    """Logs what a command writes, line by line; `last` is the newest line."""

    def __init__(self, run: Run) -> None:
        self.last = ""
        self.closed = asyncio.Event()
        self._run = run
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        """Take a piece of output; a very long line is cut into pieces."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for each in lines:
            self._say(each)
        while len(self._rest) > LINE_MAX:
            self._say(self._rest[:LINE_MAX])
            self._rest = self._rest[LINE_MAX:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Take the end of the output."""
        del exc
        self._say(self._rest)
        self.closed.set()

    def _say(self, output: bytes) -> None:
        text = output.decode(errors="replace").rstrip()[:LINE_MAX]
        if text:
            self.last = text
            self._run.log.info("%s", text)


async def _end_group(group: int) -> None:
    """End every process of a group: SIGTERM, then SIGKILL, whatever happens to this task meanwhile."""
    try:
        for number, limit_ms in ((signal.SIGTERM, TERM_MS), (signal.SIGKILL, KILL_MS)):
            _signal(group, number)
            begun_ms = _clock.monotonic_ms()
            while _signal(group, 0) and _clock.monotonic_ms() - begun_ms < limit_ms:
                await _clock.sleep_ms(LOOK_MS)
    finally:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Send a signal (0 only looks) and return whether the group has a process that we can reach."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
