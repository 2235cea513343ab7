"""The stores fleet itself: a private server survives what tests do to it, and never survives the tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from stores import Fleet, MariaDB, Server, ServerFailed
from stores.system import find

TESTS = Path(__file__).parent.parent
LIMIT_S = 60


def query(server: MariaDB, sql: str, limit_s: float = 20) -> str:
    words = [find("mariadb") or "", "--no-defaults", "-N", "-B", f"-h{server.host}", f"-P{server.port}"]
    words += [f"-u{server.user}", f"-p{server.password}", server.database, "-e", sql]
    done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s, check=True, stdin=subprocess.DEVNULL)
    return done.stdout.strip()


def gone(pid: int) -> bool:
    """Return whether a process has ended (a zombie waiting for somebody else's wait counts)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {LIMIT_S} s"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def own(fleet: Fleet, need_store: Callable[[type[Server]], None]) -> MariaDB:
    need_store(MariaDB)
    return fleet.new(MariaDB)


def test_a_killed_server_comes_back_on_its_port_with_its_data(own: MariaDB) -> None:
    query(own, "CREATE OR REPLACE TABLE kept (n INT) ENGINE=InnoDB; INSERT INTO kept VALUES (7)")
    port, pid = own.port, own.pid
    own.kill()
    own.start()
    assert (own.port, own.pid != pid, query(own, "SELECT n FROM kept")) == (port, True, "7")


def test_a_stopped_server_comes_back(own: MariaDB) -> None:
    own.stop()
    assert not own.running
    own.start()
    assert query(own, "SELECT 1") == "1"


def test_a_frozen_server_keeps_silent_until_it_is_resumed(own: MariaDB) -> None:
    own.pause()
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            query(own, "SELECT 1", limit_s=0.5)
    finally:
        own.resume()
    assert query(own, "SELECT 1") == "1"


def test_each_thread_of_a_frozen_server_stands_still_when_pause_returns(own: MariaDB) -> None:
    """SIGSTOP alone is a request: on a busy machine a broker has answered a claim that was sent after it."""
    moving = 0
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        for _ in range(50):
            own.pause()
            threads = list(Path(f"/proc/{own.pid}/task").iterdir())
            moving += sum((thread / "stat").read_text().rpartition(") ")[2][:1] != "T" for thread in threads)
            own.resume()
    finally:
        own.resume()
        for process in busy:
            process.kill()
            process.wait()
    assert moving == 0


def test_a_frozen_server_can_be_killed(own: MariaDB) -> None:
    own.pause()
    own.kill()
    assert not own.running
    own.start()


def test_the_common_server_is_one_and_is_brought_back_if_a_test_killed_it(fleet: Fleet, mariadb: MariaDB) -> None:
    mariadb.kill()
    assert fleet.shared(MariaDB) is mariadb
    assert mariadb.running


class Unwilling(Server):
    """A server that ends at its start."""

    name = "Unwilling"
    programs: ClassVar[tuple[str, ...]] = ()

    def prepare(self) -> None:
        pass

    def command(self) -> list[str]:
        return ["/bin/sh", "-c", "echo no licence; exit 3"]

    def answers(self) -> bool:
        return False


def test_a_server_that_ends_at_its_start_is_told_with_code_and_log(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match=r"Unwilling ended at its start with code 3\nno licence"):
        Unwilling(tmp_path / "u").start()


def test_an_absent_server_is_named_with_the_remedy() -> None:
    class Nowhere(Unwilling):
        name = "Nowhere"
        programs = ("mariadbd", "no-such-program")

    assert "no-such-program not installed; ./tests/run setup installs it" in str(Nowhere.absent())


SESSION = """
import signal, sys
from pathlib import Path
from stores import Fleet, Server

class Patient(Server):
    name = "Patient"
    programs = ()
    def prepare(self): pass
    def command(self): return ["/bin/sleep", "1000"]
    def answers(self): return True

server = Fleet().new(Patient)
print(server.pid, server.folder, flush=True)
signal.pause()
"""


def test_servers_and_data_go_when_the_tests_are_killed() -> None:
    variables = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen([sys.executable, "-c", SESSION], env=variables, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        pid, folder = session.stdout.readline().split()
        assert not gone(int(pid))
        assert Path(folder).is_dir()
        session.kill()
    until(lambda: gone(int(pid)) and not Path(folder).exists())
