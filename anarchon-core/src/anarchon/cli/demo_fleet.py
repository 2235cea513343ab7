"""The processes of the demonstration, and the verdict from what they wrote themselves."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from anarchon.cli.demo_jobs import JOBS, Entry, Tail
from anarchon.errors import AnarchonError

__all__ = ["Fleet", "Verdict", "expected_slots", "judge"]

REPLACE_AFTER_MS = 3_000
STOP_S = 10.0


@dataclass(slots=True)
class Worker:
    """One process; `ended` is how we ended it, or empty."""

    number: int
    name: str
    process: subprocess.Popen[bytes]
    errors: Path
    tail: Tail
    ended: str = ""
    ended_ms: float = 0.0


@dataclass(slots=True)
class Fleet:
    """Starts, ends and replaces workers; the process ids are those of our own children only."""

    url: str
    prefix: str
    folder: Path
    workers: list[Worker] = field(default_factory=list)
    seen: list[Entry] = field(default_factory=list)

    def start(self, number: int) -> Worker:
        """Start an instance; a replacement gets a name of its own."""
        lives = sum(worker.number == number for worker in self.workers)
        name = f"instance-{number}" + (f".{lives + 1}" if lives else "")
        file = self.folder / f"{name}.jsonl"
        arguments = [sys.executable, "-m", "anarchon.cli.demo_worker", self.url, name, self.prefix, str(file)]
        errors = self.folder / f"{name}.err"
        # Its input ends with us, and it with that; a group of its own, since Ctrl-C is for us to pass on.
        with errors.open("wb") as stderr:
            process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stderr=stderr, process_group=0)  # noqa: S603 - ourselves
        worker = Worker(number, name, process, errors, Tail(file))
        self.workers.append(worker)
        return worker

    def alive(self) -> list[Worker]:
        """Return the workers that run."""
        return [worker for worker in self.workers if worker.process.poll() is None]

    def kill(self, worker: Worker, now_ms: float) -> None:
        """End a worker with SIGKILL."""
        worker.ended, worker.ended_ms = "killed", now_ms
        worker.process.kill()
        worker.process.wait(STOP_S)

    def terminate(self, worker: Worker, now_ms: float) -> None:
        """Ask a worker to stop in order."""
        worker.ended, worker.ended_ms = "stopped", now_ms
        worker.process.terminate()

    def replace_ended(self, now_ms: float) -> list[Worker]:
        """Start a replacement for every worker that has been gone for a while."""
        gone = [w for w in self.workers if w.ended and w.process.poll() is not None and now_ms - w.ended_ms >= REPLACE_AFTER_MS]
        started = []
        for worker in gone:
            if not any(w.number == worker.number and not w.ended for w in self.workers):
                started.append(self.start(worker.number))
        return started

    def refuse_broken(self) -> None:
        """Raise if a worker ended by itself: the sentence it left."""
        for worker in self.workers:
            if not worker.ended and worker.process.poll() is not None:
                said = worker.errors.read_text(errors="replace").strip()
                msg = f"{worker.name} ended by itself: {said.splitlines()[-1] if said else 'it said nothing'}"
                raise AnarchonError(msg)

    def stop_all(self) -> None:
        """Stop every worker, and kill what does not stop."""
        for worker in self.alive():
            worker.process.terminate()
        for worker in self.workers:
            try:
                worker.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            if worker.process.stdin:
                worker.process.stdin.close()

    def entries(self) -> list[Entry]:
        """Return everything that every worker wrote, in the order of its time."""
        self.seen.extend(entry for worker in self.workers for entry in worker.tail.read_new())
        self.seen.sort(key=lambda entry: entry.at_ms)
        return self.seen


def expected_slots(begin_ms: int, end_ms: int) -> set[tuple[str, int]]:
    """Return (job, slot) of every slot in [begin_ms, end_ms), from the schedules alone."""
    slots: set[tuple[str, int]] = set()
    for name, job in JOBS.items():
        at_ms = job.schedule.next_after(begin_ms - 1)
        while at_ms is not None and at_ms < end_ms:
            slots.add((name, at_ms))
            at_ms = job.schedule.next_after(at_ms)
    return slots


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the workers' own files add up to."""

    slots: int
    won: int
    duplicates: int
    missed: int
    takeovers: int
    handovers: int
    verdict: str


def judge(entries: Iterable[Entry], slots: set[tuple[str, int]], killed: Iterable[str]) -> Verdict:
    """Count: a duplicate is an attempt that began twice, or one after an attempt that was done and not killed.

    An attempt after one that began on a killed instance, or that never ended, is a takeover; after one that was
    cancelled, a hand-over.
    """
    killed = set(killed)
    starts = Counter[tuple[str, int, int]]()
    where: dict[tuple[str, int, int], str] = {}
    ends: dict[tuple[str, int, int], str] = {}
    for entry in entries:
        key = (entry.job, entry.slot_ms, entry.attempt)
        if (entry.job, entry.slot_ms) not in slots:
            continue
        if entry.event == "start":
            starts[key] += 1
            where[key] = entry.instance
        elif entry.event in {"done", "cancelled"}:
            ends[key] = entry.event
    duplicates = sum(count - 1 for count in starts.values())
    takeovers = handovers = 0
    for job, slot_ms, attempt in starts:
        before = (job, slot_ms, attempt - 1)
        if attempt == 1 or before not in starts:
            continue
        if where[before] in killed or before not in ends:
            takeovers += 1
        elif ends[before] == "cancelled":
            handovers += 1
        else:
            duplicates += 1
    done = {(job, slot_ms) for (job, slot_ms, _), event in ends.items() if event == "done"}
    missed = len(slots - done)
    won = len({(job, slot_ms) for job, slot_ms, _ in starts})
    verdict = "ok" if not duplicates and not missed else "violated"
    return Verdict(len(slots), won, duplicates, missed, takeovers, handovers, verdict)
