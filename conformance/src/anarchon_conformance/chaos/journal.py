"""What a worker process did, line by line in a file of its own that outlives its death."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from anarchon.clock import SystemClock

__all__ = ["Event", "Journal", "Tail", "What"]


class What(StrEnum):
    """Kinds of events."""

    READY = "ready"
    WON = "won"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    EARLY = "early"
    RENEWED = "renewed"
    FINISHED = "finished"
    FENCED = "fenced"
    RELEASED = "released"
    GAVE_UP = "gave up"
    HUNG = "hung"
    STARTED = "started"
    ENDED = "ended"
    CANCELLED = "cancelled"
    RECORDED = "recorded"
    NOTED = "noted"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `at_ms` and `sent_ms` are the host's monotonic clock, which all processes share; `wall_ms` is the host's.

    `sent_ms` is when the request left whose answer this is.
    """

    what: What
    instance: str
    at_ms: float
    wall_ms: float
    slot_ms: int = 0
    attempt: int = 0
    token: str = ""
    sent_ms: float = 0.0
    note: str = ""


class Journal:
    """Appends events with one write each: a killed process loses nothing that it had told."""

    def __init__(self, path: Path, instance: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._instance = instance
        self._clock = SystemClock()

    def tell(
        self,
        what: What,
        *,
        slot_ms: int = 0,
        attempt: int = 0,
        token: str = "",
        sent_ms: float = 0.0,
        note: str = "",
    ) -> None:
        """Write one event."""
        moment = self._clock.moment()
        event = Event(
            what,
            self._instance,
            moment.monotonic_ms,
            moment.wall_ms,
            slot_ms=slot_ms,
            attempt=attempt,
            token=token,
            sent_ms=sent_ms,
            note=note,
        )
        os.write(self._file, (json.dumps(asdict(event)) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Tail:
    """Reads a journal while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.events: list[Event] = []

    def read(self) -> list[Event]:
        """Return the events that are new since the last call; a line that is not whole yet waits."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        fresh = [_event(line) for line in data[:whole].splitlines()]
        self.events += fresh
        return fresh


def _event(line: bytes) -> Event:
    fields = json.loads(line)
    return Event(**{**fields, "what": What(fields["what"])})
