"""A process that outlives the tests by a moment: whatever they leave running when they die, it kills.

It hears of servers through a pipe. When the pipe closes (the test process ended, however), it kills by pid what is
left and removes the folders. Run as a program, it is that process; imported, it talks to it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["forget", "keep_clean", "watch"]

_guards: dict[int, subprocess.Popen[str]] = {}
"""The guard of each process of ours, by pid: a forked child must not talk through its parent's."""


def watch(pid: int) -> None:
    """Have a process killed when this one is gone."""
    _say(f"watch {pid} {_birth(pid)}")


def forget(pid: int) -> None:
    """Take back `watch`: the process has ended and its pid may belong to somebody else soon."""
    _say(f"forget {pid} -")


def keep_clean(folder: Path) -> None:
    """Have a folder removed when this process is gone."""
    _say(f"folder 0 {folder}")


def _say(line: str) -> None:
    guard = _guards.get(os.getpid())
    if guard is None:
        guard = subprocess.Popen(
            [sys.executable, "-S", "-E", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        _guards[os.getpid()] = guard
        atexit.register(_close, guard)
    assert guard.stdin is not None
    guard.stdin.write(f"{line}\n")
    guard.stdin.flush()


def _close(guard: subprocess.Popen[str]) -> None:
    if _guards.get(os.getpid()) is guard and guard.stdin is not None:
        guard.stdin.close()
        guard.wait()


def _birth(pid: int) -> str:
    """Return when a process was started, in the kernel's ticks: with the pid it names one process for ever."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "gone"


def _main() -> None:
    alive: dict[int, str] = {}
    folders: list[str] = []
    for line in sys.stdin:
        verb, pid, rest = line.rstrip("\n").split(" ", 2)
        if verb == "watch":
            alive[int(pid)] = rest
        elif verb == "forget":
            alive.pop(int(pid), None)
        else:
            folders.append(rest)
    for process, birth in alive.items():
        if _birth(process) == birth != "gone":
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main()
