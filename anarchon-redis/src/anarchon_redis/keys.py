"""The names of keys: one job, one hash slot; no two jobs and no two prefixes ever share a key (C7)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from anarchon.types import RunKey

__all__ = ["Names", "field_of", "key_of"]

_SPECIAL: Final = re.compile(r"[%:{}]")


class Names:
    """Spells the keys of a prefix: `cron:sync:runs`, in cluster mode `cron:{sync}:runs`.

    A prefix ends with a colon and a job's name is written without any (`%3A`), so the last two parts of a key tell suffix
    and job apart whatever they are called. Braces are escaped as well: they would move the hash tag.
    """

    def __init__(self, prefix: str, *, cluster: bool) -> None:
        self.prefix = prefix
        self._frame = "{%s}" if cluster else "%s"
        self.job = lru_cache(maxsize=4_096)(self._job)

    @property
    def registry(self) -> str:
        """The set of jobs that were ever claimed."""
        return f"{self.prefix}jobs"

    @property
    def strategy(self) -> str:
        """The key that says which strategy this prefix is used with."""
        return f"{self.prefix}strategy"

    def _job(self, job: str, *suffixes: str) -> tuple[str, ...]:
        """Return the keys of a job with these suffixes."""
        name = self._frame % _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", job)
        return tuple(f"{self.prefix}{name}:{suffix}" for suffix in suffixes)


def field_of(key: RunKey) -> str:
    """Return how a run is written within its job's keys: `1791633610000`, `1791633610000:n`."""
    return f"{key.slot_ms}:{key.space}" if key.space else str(key.slot_ms)


def key_of(job: str, field: str) -> RunKey:
    """Read a run back from `field_of`."""
    slot, _, space = field.partition(":")
    return RunKey(job, int(slot), space)
