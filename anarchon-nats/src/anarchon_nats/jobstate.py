"""What one key of the bucket holds of a job: its live runs, the last that ended, and where the older ones are (C6, C19)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from anarchon.errors import StoreDamaged
from anarchon.types import RunKey, RunRecord, RunStatus, RunView

from anarchon_nats.names import run_of

__all__ = ["Chunk", "JobState", "Packed", "Run", "records_of", "runs_from"]

VERSION: Final = 1
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
Packed = list[Any]
"""A run as it is written: slot, space, status, attempt, uncounted, how the last token holds it, end, records.

An end that this very message sets stands as `[duration]` and counts from the time at which the server stores the message: a
write that is under way for long takes nothing from the lease (C14).
"""
FREE, HELD, FINISHED = 0, 1, 2


@dataclass(slots=True)
class Run:
    """One run and the records of its attempts: attempt, token, instance, status, claimed, finished, error."""

    key: RunKey
    status: RunStatus
    attempt: int
    uncounted: int
    token: str | None
    finisher: str | None
    end_ms: int
    instance: str
    records: list[Packed] = field(default_factory=list)
    lasts_ms: int | None = None
    """How long it is from its writing to its end, if that was set and is not written yet."""

    @classmethod
    def unpack(cls, job: str, packed: Packed, stored_ms: int = 0) -> Run:
        """Read a run from a message that was stored at a time."""
        slot_ms, space, status, attempt, uncounted, held, end_ms, records = packed
        key, last = RunKey(job, int(slot_ms), str(space)), records[-1]
        token, finisher = (last[1] if held == by else None for by in (HELD, FINISHED))
        end_ms = stored_ms + int(end_ms[0]) if isinstance(end_ms, list) else int(end_ms)
        return cls(key, RunStatus(status), int(attempt), int(uncounted), token, finisher, end_ms, last[2], records)

    def pack(self) -> Packed:
        """Return the run as it is written: its token and instance stand in the record of its attempt."""
        held = HELD if self.token else FINISHED if self.finisher else FREE
        return [
            *(self.key.slot_ms, self.key.space, str(self.status), self.attempt, self.uncounted),
            *(held, self.end_ms if self.lasts_ms is None else [self.lasts_ms], self.records),
        ]

    def last(self, now_ms: int, duration_ms: int) -> None:
        """Let the lease or the delay begin when this is written."""
        self.end_ms, self.lasts_ms = now_ms + duration_ms, duration_ms

    def alive(self, now_ms: int) -> bool:
        """Whether the lease or the release delay holds: C11 says a lease that ends now is alive, C16 that a delay is not."""
        return now_ms < self.end_ms or (self.status is RunStatus.RUNNING and now_ms == self.end_ms)

    def close(self, status: RunStatus, now_ms: int, error: str | None = None) -> None:
        """End the record of the attempt."""
        record = self.records[-1]
        record[3], record[5], record[6] = str(status), max(now_ms, record[4]), error

    def view(self, now_ms: int) -> RunView:
        """Return the run as a backup sees it (C17)."""
        left_ms = self.end_ms - now_ms
        left_ms = max(1, left_ms) if self.alive(now_ms) else min(0, left_ms)
        return RunView(self.key, self.status, self.attempt, self.instance, left_ms)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where ended runs lie that the key no longer holds: the name of their message, their slots, how many."""

    name: str
    low_ms: int
    high_ms: int
    count: int

    def may_hold(self, slot_ms: int) -> bool:
        """Whether a run of this slot can be there."""
        return self.low_ms <= slot_ms <= self.high_ms


@dataclass(slots=True)
class JobState:
    """One job. It is written as lines: first all but the ended runs, then each of those, unread until somebody asks for it.

    `final` holds these lines by the name of their run.
    """

    job: str
    first_ms: int
    info: str = ""
    paused_ms: int | None = None
    resumed_ms: int | None = None
    floor_ms: int | None = None
    live: dict[str, Run] = field(default_factory=dict)
    final: dict[str, bytes] = field(default_factory=dict)
    chunks: list[Chunk] = field(default_factory=list)

    @classmethod
    def unpack(cls, data: bytes, stored_ms: int) -> JobState:
        """Read a job from a message that was stored at a time.

        Raises:
            StoreDamaged: somebody else wrote there.
        """
        head, *lines = data.split(b"\n")
        try:
            told = json.loads(head)
            if told["v"] != VERSION:
                msg = (
                    f"a job is written in version {told['v']} of its form, this instance knows {VERSION}: upgrade every instance"
                )
                raise StoreDamaged(msg)
            job = str(told["job"])
            live = {run_of(run.key): run for run in (Run.unpack(job, packed, stored_ms) for packed in told["live"])}
            names = told["final"].split() if told["final"] else []
            chunks = [Chunk(*words) for words in told["chunks"]]
            dates = (told["paused"], told["resumed"], told["floor"])
            return cls(job, told["first"], told["info"], *dates, live, dict(zip(names, lines, strict=True)), chunks)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            msg = f"a key of the bucket holds no job of anarchon but {data[:60]!r}: use another prefix"
            raise StoreDamaged(msg) from error

    def pack(self) -> bytes:
        """Return the job as it is written."""
        told = {
            "v": VERSION,
            "job": self.job,
            "first": self.first_ms,
            "info": self.info,
            "paused": self.paused_ms,
            "resumed": self.resumed_ms,
            "floor": self.floor_ms,
            "live": [run.pack() for run in self.live.values()],
            "final": " ".join(self.final),
            "chunks": [[chunk.name, chunk.low_ms, chunk.high_ms, chunk.count] for chunk in self.chunks],
        }
        return b"\n".join((written(told), *self.final.values()))

    def get(self, key: RunKey) -> Run | None:
        """Return a run that the key holds."""
        name = run_of(key)
        line = self.final.get(name)
        return self.live.get(name) if line is None else Run.unpack(self.job, json.loads(line))

    def ended(self) -> list[tuple[int, str]]:
        """Return the slot and the name of each ended run that the key holds, oldest first."""
        return sorted((int(name.partition(":")[0]), name) for name in self.final)

    def elsewhere(self, key: RunKey) -> list[Chunk]:
        """Return where a run may lie that the key does not hold."""
        if run_of(key) in self.live or run_of(key) in self.final:
            return []
        return [chunk for chunk in self.chunks if chunk.may_hold(key.slot_ms)]

    def end(self, run: Run) -> None:
        """Move a run to those that ended."""
        run.lasts_ms = None  # nothing of it lasts any more
        name = run_of(run.key)
        self.live.pop(name, None)
        self.final[name] = written(run.pack())


def written(told: object) -> bytes:
    """Return a value as one line."""
    return _ENCODER.encode(told).encode()


def runs_from(job: str, data: bytes) -> list[Run]:
    """Read ended runs, one a line: what a key holds of them, or the message of a chunk.

    Raises:
        StoreDamaged: somebody else wrote there.
    """
    try:
        return [Run.unpack(job, json.loads(line)) for line in data.split(b"\n") if line]
    except (ValueError, TypeError) as error:
        msg = f"a part of the history of job {job!r} cannot be read: it holds {data[:60]!r}"
        raise StoreDamaged(msg) from error


def records_of(run: Run) -> list[RunRecord]:
    """Return the history of a run, one record an attempt (C19)."""
    key = run.key
    return [
        RunRecord(key.job, key.slot_ms, key.space, attempt, token, instance, RunStatus(status), claimed_ms, finished_ms, error)
        for attempt, token, instance, status, claimed_ms, finished_ms, error in run.records
    ]
