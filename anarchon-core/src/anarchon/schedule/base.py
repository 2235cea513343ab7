"""What the schedules of the core share: identity by digest, `|` and `excluding`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from datetime import date, datetime
from functools import lru_cache
from hashlib import sha256
from typing import Final

from anarchon.schedule.protocol import POLICY, Schedule

__all__ = ["DIGEST_CHARS", "BaseSchedule", "short_hash"]

DIGEST_CHARS: Final = 16
"""64 bits: enough to tell schedules apart, short enough to stand in every row of a store."""
DIGEST_CACHE_LIMIT: Final = 4096


def short_hash(*parts: str) -> str:
    """Return a stable short hash of some texts."""
    return sha256("\0".join(parts).encode()).hexdigest()[:DIGEST_CHARS]


@lru_cache(maxsize=DIGEST_CACHE_LIMIT)
def _digest(text: str, zones: tuple[str, ...]) -> str:
    return short_hash(str(POLICY), text, *zones)


class BaseSchedule(ABC):
    """A schedule of the core: immutable, hashable, equal to another one exactly if both have the same digest."""

    __slots__ = ()

    @property
    @abstractmethod
    def text(self) -> str:
        """Return the canonical text, an anchor included."""

    @property
    @abstractmethod
    def zones(self) -> tuple[str, ...]:
        """Return the names of the zones whose data the slots depend on."""

    @property
    def zone(self) -> str:
        """Return the name of the zone in which local dates are meant."""
        return self.zones[0] if self.zones else "UTC"

    @property
    def digest(self) -> str:
        """Return the hash of the policy, the canonical text and the zone names."""
        return _digest(self.text, self.zones)

    @abstractmethod
    def next_after(self, t_ms: int, /) -> int | None:
        """Return the smallest slot strictly after `t_ms`, or None if there is none."""

    def excluding(
        self, what: Iterable[date | datetime] | Callable[[datetime], bool], *, digest: str | None = None
    ) -> BaseSchedule:
        """Return this schedule without some slots.

        `what` is a collection of dates (every slot on that local date) and aware datetimes (that very slot), or a
        callable that gets each slot as an aware datetime of the schedule's zone and returns True to leave it out. A
        callable must be the same on all instances, so it needs a `digest` that changes when its answers do.
        """
        from anarchon.schedule.combine import excluding

        return excluding(self, what, digest=digest)

    def __or__(self, other: Schedule | str) -> BaseSchedule:
        """Return the schedule that has the slots of both; a text is an expression in UTC."""
        from anarchon.schedule.combine import any_of

        joined = any_of(self, other)
        return joined if isinstance(joined, BaseSchedule) else self

    __ror__ = __or__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BaseSchedule) and (self is other or self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)
