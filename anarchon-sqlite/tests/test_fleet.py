"""Eight processes on one file: first opening, claims, and claims while one process is stopped and another killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest

CLAIMER = Path(__file__).with_name("claimer.py")
PROCESSES = 8
SLOTS = list(range(1_700_000_000_000 - 500_000, 1_700_000_000_000, 1000))
STOP_S = float(os.environ.get("ANARCHON_TEST_STOP_S", "1"))
"""How long the stopped process stays stopped after the others have met its lock; 10 for the long form."""


class Claimer:
    """A claiming process; killed at the end whatever happens."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, str(CLAIMER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, **command: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line else {"ended": True}

    def hear_until(self, *words: str) -> dict[str, Any]:
        """Skip what was said until one of the words, or the end."""
        for _ in range(100_000):
            said = self.hear()
            if any(word in said for word in (*words, "ended", "error")):
                return said
        raise AssertionError(words)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def fleet() -> Iterator[list[Claimer]]:
    claimers = [Claimer() for _ in range(PROCESSES)]
    yield claimers
    for claimer in claimers:
        claimer.end()


def open_all(fleet: list[Claimer], path: Path, busy_timeout: float = 5) -> list[dict[str, Any]]:
    for claimer in fleet:
        claimer.tell(do="open", path=str(path), busy_timeout=busy_timeout)
    return [claimer.hear() for claimer in fleet]


def rows(path: Path) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(path)) as reader:
        return reader.execute("SELECT slot_ms, attempt FROM runs_history ORDER BY slot_ms").fetchall()


def test_c21_eight_processes_open_a_new_file_at_once(fleet: list[Claimer], tmp_path: Path) -> None:
    for number in range(40):
        assert open_all(fleet, tmp_path / f"{number}.db") == [{"opened": True}] * PROCESSES
        for claimer in fleet:
            claimer.tell(do="close")
        assert [claimer.hear() for claimer in fleet] == [{"closed": True}] * PROCESSES


def test_c1_eight_processes_and_500_slots_make_500_wins_and_no_error(fleet: list[Claimer], path: Path) -> None:
    open_all(fleet, path)
    for claimer in fleet:
        claimer.tell(do="claim", slots=SLOTS)
    said = [claimer.hear() for claimer in fleet]
    assert all(list(answer) == ["won"] for answer in said), said
    assert Counter(slot for answer in said for slot in answer["won"]) == Counter(SLOTS)
    assert rows(path) == [(slot, 1) for slot in SLOTS]


def test_c1_500_wins_although_one_process_stops_and_one_dies_inside_its_transaction(fleet: list[Claimer], path: Path) -> None:
    open_all(fleet, path, busy_timeout=0.3)
    stopped, killed, others = fleet[0], fleet[1], fleet[2:]
    # Slots of their own first, so that both are sure to meet their trap.
    own = {stopped: [slot + 1 for slot in SLOTS[:3]], killed: [slot + 2 for slot in SLOTS[:3]]}
    stopped.tell(do="claim", slots=own[stopped] + SLOTS, stop_at=2)
    assert stopped.hear_until("trap") == {"trap": signal.SIGSTOP}
    for claimer in (killed, *others):
        claimer.tell(do="claim", slots=own.get(claimer, []) + SLOTS, kill_at=2 if claimer is killed else None)
    assert all("timeout" in claimer.hear_until("timeout", "won") for claimer in others)  # each met the stopped process's lock
    Event().wait(STOP_S)
    os.kill(stopped.process.pid, signal.SIGCONT)
    assert killed.hear_until("trap") == {"trap": signal.SIGKILL}
    assert killed.hear_until("won") == {"ended": True}
    said = [claimer.hear_until("won") for claimer in (stopped, *others)]
    assert all(list(answer) == ["won"] for answer in said), said
    assert Counter(slot for answer in said for slot in answer["won"] if slot in set(SLOTS)) == Counter(SLOTS)
    # The stopped transaction went through, the killed one left nothing.
    assert rows(path) == [(slot, 1) for slot in sorted([*SLOTS, *own[stopped], *own[killed][:2]])]
