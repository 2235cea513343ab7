"""The names and arguments of our queues."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Any, Final

from anarchon.errors import BackendError
from anarchon.types import RunKey

__all__ = ["NOBODY", "Names", "gate_arguments", "holder_of", "stream_arguments", "token_arguments"]

SPACE: Final = re.compile(r"[A-Za-z0-9_-]{0,13}")
NOBODY: Final = "nobody"
"""Whom a declaration names that only asks who holds a run."""
HOLDER_BYTES_MAX: Final = 250
RECORD_BYTES: Final = 640
"""A record of the history with what the broker adds to it: 200 to 245 bytes, an error text of 100 characters included."""
RECORDS_A_RUN: Final = 2
SEGMENTS: Final = 10
SEGMENT_LEAST_BYTES: Final = 4_096
SEGMENT_MOST_BYTES: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class Names:
    """The queues of one prefix. A prefix ends with a dot and a job has none, so no two of them share a queue (C7)."""

    prefix: str

    def run(self, key: RunKey) -> str:
        """Return the queue that decides a run.

        Raises:
            BackendError: the key space cannot be part of a queue's name.
        """
        if not SPACE.fullmatch(key.space):
            msg = f"the key space {key.space!r:.40} is refused: it may hold A-Z, a-z, 0-9, _ and -"
            raise BackendError(msg)
        return f"{self.prefix}{key.job}.slot.{key.slot_ms}" + (f".{key.space}" if key.space else "")

    def history(self, job: str) -> str:
        """Return the stream that holds a job's history."""
        return f"{self.prefix}{job}.history"

    def trial(self) -> str:
        """Return a throw-away gate for the self-test; no job has such a name, and policies see a gate like any other."""
        return f"{self.prefix}@{secrets.token_hex(6)}.slot.0"

    @property
    def canary(self) -> str:
        """The gate that stays full for ever, unless something empties gates behind our back."""
        return f"{self.prefix}@canary.slot.0"


def gate_arguments(expires_ms: int | None) -> dict[str, Any]:
    """Return the arguments of a gate: one message, later ones are refused. The type is stated: a quorum queue lets several in."""
    arguments = {"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish"}
    return arguments if expires_ms is None else {**arguments, "x-expires": expires_ms}


def token_arguments(expires_ms: int | None, holder: str) -> dict[str, Any]:
    """Return the arguments of a run that a holder takes by declaring it. Nothing is ever dead-lettered from it."""
    return {**gate_arguments(expires_ms), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": holder}


def holder_of(token: str, instance: str) -> str:
    """Return what stands in the queue for the holder of a run: for machines the token, for people the instance."""
    plain = "".join(char if char.isascii() and char.isprintable() and char != "'" else "?" for char in instance)
    return f"{token}:{plain}"[:HOLDER_BYTES_MAX]


def stream_arguments(history_size: int) -> dict[str, Any]:
    """Return the arguments of a stream that keeps at least so many runs; it is trimmed by whole segments."""
    size = history_size * RECORDS_A_RUN * RECORD_BYTES * (SEGMENTS + 2) // SEGMENTS
    segment = min(max(SEGMENT_LEAST_BYTES, size // SEGMENTS), SEGMENT_MOST_BYTES)
    return {"x-queue-type": "stream", "x-max-length-bytes": size + segment, "x-stream-max-segment-size-bytes": segment}
