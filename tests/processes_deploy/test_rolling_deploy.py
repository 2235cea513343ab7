"""A rolling deploy of three real processes on SQLite, from one schedule to another: the union of slots, each once."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

INSTANCE = Path(__file__).with_name("instance.py")
INSTANCES = 3
SPAN_S = {"default": 18.0, "nightly": 60.0}
DEADLINE_S = 60.0
CLAIM_MS = 1_500
"""How long before its end an instance may still be relied on for a slot: jitter, claim, a busy machine."""
PERIODS_MS = {"a": 2_000, "b": 3_000}


def now_ms() -> float:
    return time.time() * 1000


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:g} s for: {what}"
        time.sleep(0.02)


@dataclass(slots=True)
class Deployed:
    """A process of the fleet; `ready_ms` is when it said that it works."""

    process: subprocess.Popen[bytes]
    ready_ms: float = 0.0

    def stop(self) -> float:
        """Stop in order and return when that was asked for."""
        asked_ms = now_ms()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(DEADLINE_S) == 0
        return asked_ms


class Site:
    """The folder of a fleet, and every process started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()
        self.started: list[Deployed] = []

    def start(self, version: str) -> Deployed:
        """Start an instance and wait until it works."""
        ready = self.folder / f"ready-{len(self.started)}"
        words = [sys.executable, str(INSTANCE), version, f"sqlite:///{self.folder}/cron.db", str(self.log), str(ready)]
        deployed = Deployed(subprocess.Popen(words))
        self.started.append(deployed)
        until(lambda: ready.exists() and ready.read_text() != "", f"instance {len(self.started)} is ready")
        deployed.ready_ms = float(ready.read_text())
        return deployed

    def runs(self) -> list[tuple[str, int, int]]:
        """Return version, slot and attempt of each handler call."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [(version, int(slot_ms), int(attempt)) for version, slot_ms, attempt in lines]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for deployed in site.started:
        deployed.process.kill()
        deployed.process.wait()


def slots(version: str, begin_ms: float, end_ms: float) -> set[int]:
    """Return the slots of a version in a span."""
    period_ms = PERIODS_MS[version]
    return {slot for slot in range(int(begin_ms) // period_ms * period_ms, int(end_ms), period_ms) if slot > begin_ms}


def test_a_rolling_deploy_runs_the_slots_of_both_versions_each_once(site: Site, profile: str) -> None:
    span_s = SPAN_S[profile]
    old = [site.start("a") for _ in range(INSTANCES)]
    begun_ms, new, last_a_ms = now_ms(), [], 0.0
    for number, instance in enumerate(old, 1):
        until(lambda n=number: now_ms() > begun_ms + n * span_s * 1000 / (INSTANCES + 1), "its turn")  # type: ignore[misc]  # binds the loop's value
        last_a_ms = instance.stop()
        new.append(site.start("b"))
    end_ms = begun_ms + span_s * 1000
    until(lambda: now_ms() > end_ms + CLAIM_MS, "the deploy is over")
    for instance in new:
        instance.stop()
    runs = site.runs()
    wanted = slots("a", old[0].ready_ms, last_a_ms - CLAIM_MS) | slots("b", new[0].ready_ms, end_ms)
    counts = Counter(slot_ms for _, slot_ms, _ in runs)
    assert {slot_ms: count for slot_ms, count in counts.items() if count > 1} == {}
    assert sorted(wanted - set(counts)) == []
    assert {attempt for _, _, attempt in runs} == {1}
    assert all(slot_ms % PERIODS_MS[version] == 0 for version, slot_ms, _ in runs)
    assert {version for version, _, _ in runs} == {"a", "b"}
    with closing(sqlite3.connect(f"file:{site.folder}/cron.db?mode=ro", uri=True)) as reader:
        statuses = reader.execute("SELECT status, count(*) FROM runs_history GROUP BY status").fetchall()
    assert json.dumps(sorted(statuses)) == json.dumps([["success", len(counts)]])
