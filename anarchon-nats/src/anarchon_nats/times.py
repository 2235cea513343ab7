"""The server's time: from its answers where it gives it, else from a message that is published and read back (C9, C11)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from nats import errors as driver

if TYPE_CHECKING:
    from anarchon_nats.link import Link

__all__ = ["Reading", "StoreClock", "text_of", "time_ms"]

TRUST_MS: Final = 1_000
"""How long a reading is advanced by this machine's clock before the server is asked again."""
SPREAD_MS: Final = 10
"""A reading that is less exact than this serves the call that took it, and no other."""
EARLIER_MS: Final = 60_000
DRIFT: Final = 0.0002
"""How much two clocks drift apart, at the most: 200 ppm."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time_ms(text: str) -> int:
    """Return the milliseconds of a time as JetStream writes it, cut off."""
    return micros_of(text) // 1000


def micros_of(text: str) -> int:
    """Return the microseconds of a time as JetStream writes it: up to nine digits of a second, any zone."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)


def text_of(at_ms: int) -> str:
    """Return an instant as JetStream reads it."""
    at_ms = min(max(at_ms, 0), 4_102_444_800_000)
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _boot_ms() -> float:
    """Return a clock that only runs forward and also counts suspend, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) * 1000


@dataclass(frozen=True, slots=True)
class Reading:
    """How far the server's clock is ahead of this machine's, at least and at most, and when that was found."""

    low_ms: float
    high_ms: float
    at_ms: float

    @classmethod
    def between(cls, told_ms: float, sent_ms: float, received_ms: float) -> Reading:
        """Return what a time tells that the server gave between two instants of this machine's."""
        return cls(told_ms - received_ms, told_ms + 1 - sent_ms, received_ms)

    @property
    def age_ms(self) -> float:
        """How long ago it was found."""
        return _boot_ms() - self.at_ms

    def least_ms(self) -> int:
        """Return the earliest that the server's clock can show now: by it nothing is over too early (C12)."""
        return int(_boot_ms() + self.low_ms)

    def most_ms(self) -> int:
        """Return the latest that it can show now: by it no lease is shorter than was asked for (C14)."""
        return int(_boot_ms() + self.high_ms) + 1

    def with_earlier(self, earlier: Reading) -> Reading:
        """Return what both tell; if they contradict each other, the clock was stepped and only this one counts (C25)."""
        drift_ms = (self.at_ms - earlier.at_ms) * DRIFT
        low_ms, high_ms = max(self.low_ms, earlier.low_ms - drift_ms), min(self.high_ms, earlier.high_ms + drift_ms)
        return Reading(low_ms, high_ms, self.at_ms) if low_ms <= high_ms else self


class StoreClock:
    """Reads the clock of the server that leads a stream."""

    def __init__(self, link: Link, stream: str, tick: str) -> None:
        self._link, self._stream, self._tick = link, stream, tick
        self._told: bool | None = None
        self._reading: Reading | None = None

    @property
    def reading(self) -> Reading | None:
        """The last reading while it may be trusted."""
        reading = self._reading
        if reading is None or reading.high_ms - reading.low_ms > SPREAD_MS or not 0 <= reading.age_ms <= TRUST_MS:
            return None
        return reading

    @property
    def age_ms(self) -> float:
        """How long ago the server was asked."""
        return float("inf") if self._reading is None else self._reading.age_ms

    def forget(self) -> None:
        """Trust no reading: another server may lead now."""
        self._reading = None

    async def now(self) -> Reading:
        """Return a reading of this call, or one of the last second that is exact."""
        return self.reading or await self.read()

    async def read(self) -> Reading:
        """Ask the server.

        Raises:
            Error: as the link says it.
        """
        sent_ms = _boot_ms()
        if self._told is not False:
            told = await self._link.api(f"STREAM.INFO.{self._stream}")
            self._told = "ts" in told
            if self._told:
                return self._keep(Reading.between(micros_of(told["ts"]) / 1000, sent_ms, _boot_ms()))
        sequence, _ = await self._link.put(self._tick, b"")
        received_ms = _boot_ms()
        tick = await self._link.get(self._stream, sequence=sequence)
        if tick is None:  # where only the newest of a subject is kept, somebody else's tick may have replaced it
            tick, received_ms = await self._link.get(self._stream, subject=self._tick), _boot_ms()
        if tick is None:
            msg = f"the stream {self._stream} lost a message that was just stored"
            raise driver.Error(msg)
        # It was stored between the question and its acknowledgement; reading it back takes nothing from that.
        return self._keep(Reading.between(tick.time_ms, sent_ms, received_ms))

    def _keep(self, reading: Reading) -> Reading:
        earlier = self._reading
        if earlier is not None and reading.at_ms - earlier.at_ms <= EARLIER_MS:
            reading = reading.with_earlier(earlier)
        self._reading = reading
        return reading
