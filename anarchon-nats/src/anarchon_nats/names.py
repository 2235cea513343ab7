"""The names of subjects and streams: no two jobs, no two runs and no two prefixes ever share one (C7)."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

from anarchon.types import RunKey

from anarchon_nats.options import Options, Strategy

__all__ = ["CLOCK", "Names", "plain", "run_of", "slot_of"]

_SPECIAL: Final = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST: Final = 160
CLOCK: Final = "=clock"
"""Stands where a job's name would; no name is written like this."""
TEXT_MOST: Final = 2_000


@lru_cache(maxsize=4_096)
def word_of(text: str) -> str:
    """Return any text as one word of a subject: what is special as =XX, what is too long as its digest."""
    word = _SPECIAL.sub(lambda match: "".join(f"={byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass")), text)
    return word if len(word) <= _LONGEST else f"=h{hashlib.sha256(word.encode()).hexdigest()}"


def slot_of(key: RunKey) -> str:
    """Return how a run is written within its job: `1791633610000`, `1791633610000=n`."""
    return f"{key.slot_ms}={word_of(key.space)}" if key.space else str(key.slot_ms)


def run_of(key: RunKey) -> str:
    """Return how a run is written inside a message: `1791633610000`, `1791633610000:n`."""
    return f"{key.slot_ms}:{key.space}" if key.space else str(key.slot_ms)


def plain(text: str | None) -> str:
    """Return a text that a message can carry: bounded, without what UTF-8 cannot write."""
    if not text or (len(text) <= TEXT_MOST and text.isascii()):
        return text or ""
    return text[:TEXT_MOST].encode("utf-8", "replace").decode("utf-8")


class Names:
    """Spells the subjects of one prefix and strategy, and the name of its stream."""

    def __init__(self, options: Options) -> None:
        self.prefix = options.prefix
        self.strategy = options.strategy
        # Dots have no place in a stream's name, and two prefixes must not get the same.
        title = options.prefix.replace("_", "__").replace(".", "_-")
        if options.strategy is Strategy.LEASE:
            self.bucket = options.stream or title
            self.stream = f"KV_{self.bucket}"
        else:
            self.bucket = ""
            self.stream = options.stream or f"{title}-{'slots' if options.strategy is Strategy.CAS else 'claims'}"

    @property
    def subjects(self) -> str:
        """The pattern of every subject that is written."""
        if self.strategy is Strategy.LEASE:
            return f"$KV.{self.bucket}.>"
        return f"{self.prefix}.*.slot.*" if self.strategy is Strategy.CAS else f"{self.prefix}.*.claims"

    @property
    def rivals(self) -> dict[Strategy, str]:
        """The subjects of the strategies that would elect winners of their own under this prefix."""
        found = {
            Strategy.CAS: f"{self.prefix}.*.slot.*",
            Strategy.MSG_ID: f"{self.prefix}.*.claims",
            Strategy.LEASE: f"$KV.{self.prefix.replace('_', '__').replace('.', '_-')}.>",
        }
        del found[self.strategy]
        return found

    @property
    def clock(self) -> str:
        """The subject of ticks: what is published there is read back for its time."""
        if self.strategy is Strategy.LEASE:
            return f"$KV.{self.bucket}.{CLOCK}"
        return f"{self.prefix}.{CLOCK}.slot.0" if self.strategy is Strategy.CAS else f"{self.prefix}.{CLOCK}.claims"

    @property
    def every_job(self) -> str:
        """The pattern of the keys of all jobs (lease)."""
        return f"$KV.{self.bucket}.*.state"

    def job(self, job: str) -> str:
        """Return the subject of a job's claims (msg-id), of all its slots (cas), or of its state (lease)."""
        word = word_of(job)
        if self.strategy is Strategy.LEASE:
            return f"$KV.{self.bucket}.{word}.state"
        return f"{self.prefix}.{word}.slot.*" if self.strategy is Strategy.CAS else f"{self.prefix}.{word}.claims"

    def all_of(self, job: str) -> str:
        """Return the pattern of everything that is kept of a job."""
        return f"$KV.{self.bucket}.{word_of(job)}.>" if self.strategy is Strategy.LEASE else self.job(job)

    def slot(self, key: RunKey) -> str:
        """Return the subject of one run (cas)."""
        return f"{self.prefix}.{word_of(key.job)}.slot.{slot_of(key)}"

    def chunk(self, job: str, number: str) -> str:
        """Return the subject of a part of a job's history (lease)."""
        return f"$KV.{self.bucket}.{word_of(job)}.runs.{number}"

    def message_id(self, key: RunKey) -> str:
        """Return the message ID of a run; the prefix is part of it, because IDs are compared across a whole stream."""
        return f"{self.prefix}:{word_of(key.job)}:{slot_of(key)}"
