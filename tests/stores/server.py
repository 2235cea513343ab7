"""One private server process: started on a free port, killed, frozen and restarted by pid, with its data kept."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

from stores import guard
from stores.system import find

__all__ = ["Server", "ServerFailed", "free_port", "halt"]

START_LIMIT_S = 60.0
STOP_LIMIT_S = 30.0
STARTS_MAX = 3
HALT_LIMIT_S = 30.0
POLL_S = 0.02
STILL = frozenset("TtZX")
"""The kernel's letters for a thread that is stopped, or over."""


class ServerFailed(Exception):
    """A server did not come up, or went away by itself; the message ends with its log."""


def free_port() -> int:
    """Return a port of the loopback that is free now; `Server.start` tries another if somebody takes it first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def halt(pid: int) -> None:
    """Stop a process (SIGSTOP) and return when each of its threads stands still; one that is gone does so.

    The signal alone is no more than a request: until the kernel has run one thread of the process to tell the others,
    they go on, and on a busy machine a server still answers what is asked right after it.
    """
    threads = Path(f"/proc/{pid}/task")
    deadline = time.monotonic() + HALT_LIMIT_S
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    while not all(state in STILL for state in _states(threads)):
        assert time.monotonic() < deadline, f"process {pid} did not stop within {HALT_LIMIT_S:g} s"
        time.sleep(POLL_S / 10)


def _states(threads: Path) -> Iterator[str]:
    """Yield the state letter of each thread that is there."""
    with suppress(FileNotFoundError):
        for thread in threads.iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                yield (thread / "stat").read_text().rpartition(") ")[2][:1]


class Server(ABC):
    """A server of one kind. `start` after `kill` or `stop` comes up on the same port with the same data.

    All methods block until what they say has happened; in a coroutine call them through `asyncio.to_thread`.
    """

    name: ClassVar[str]
    programs: ClassVar[tuple[str, ...]]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = "127.0.0.1"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    # --- what a kind says about itself ---

    @classmethod
    def absent(cls) -> str | None:
        """Return why this server cannot be started here, or None if it can."""
        gone = [program for program in cls.programs if find(program) is None]
        return f"{cls.name}: {', '.join(gone)} not installed; ./tests/run setup installs it (as root)" if gone else None

    @abstractmethod
    def prepare(self) -> None:
        """Lay the data folder; called once, before the first start."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the words that become the server process itself (its pid is ours to kill)."""

    @abstractmethod
    def answers(self) -> bool:
        """Return whether the server answers in its own protocol; OSError counts as no."""

    def environment(self) -> dict[str, str]:
        """Return the variables of the server process."""
        return {**os.environ, "HOME": str(self.folder)}

    def pids(self) -> list[int]:
        """Return every process that must be frozen so that the server is."""
        return [self.pid]

    # --- what a test does with it ---

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there (frozen counts)."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        """What the server printed, over all its starts."""
        return self.folder / "log"

    def start(self) -> Self:
        """Start and wait until the server answers; a port taken in the meantime is replaced on the very first start.

        Raises:
            ServerFailed: it ended by itself or did not answer in time.
        """
        assert not self.running, f"{self.name} is running already"
        first = self.port == 0
        if first:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.prepare()
        for attempt in range(1, STARTS_MAX + 1):
            if first:
                self.port = free_port()
            try:
                self._start_once()
            except ServerFailed:
                if not first or attempt == STARTS_MAX:
                    raise
            else:
                break
        return self

    def stop(self) -> None:
        """End it cleanly (SIGTERM), by force after a while."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL): nothing is flushed, as in a crash of the process."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """End it cleanly and start it again on the same port and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and nothing answers. Undone by `resume`."""
        halt(self.pid)  # before its children are listed: now it makes no further ones
        for pid in self.pids():
            halt(pid)

    def resume(self) -> None:
        """Let a frozen server go on (SIGCONT)."""
        for pid in self.pids():
            os.kill(pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(self, *exc: object) -> None:
        self.kill()

    # --- how ---

    def _start_once(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is for the tests, not for the servers
            )
        guard.watch(self._process.pid)
        deadline = time.monotonic() + START_LIMIT_S
        while not self._ready():
            try:
                code = self._process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
                self.kill()
                raise ServerFailed(f"{self.name} did not answer within {START_LIMIT_S:g} s\n{self._log_end()}") from None
            raise ServerFailed(f"{self.name} ended at its start with code {code}\n{self._log_end()}")

    def _ready(self) -> bool:
        try:
            return self.answers()
        except OSError:
            return False

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_LIMIT_S)
        guard.forget(process.pid)

    def _log_end(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-20:])
