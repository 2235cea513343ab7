"""The scheduler's now: the monotonic clock plus the offset to the store's clock."""

from __future__ import annotations

from anarchon.clock import Clock

__all__ = ["STEP_MS", "StoreTime"]

STEP_MS = 500
"""When wall minus monotonic time moved by more than this, the wall clock was stepped and the offset is measured anew."""


class StoreTime:
    """Keeps the offset between this machine's monotonic clock and the store's clock.

    Until the store told its time (or where it has no clock) the machine's wall clock stands in for it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._skew_ms = self._offset_ms = clock.wall_ms() - clock.monotonic_ms()
        self._best_trip_ms: float | None = None
        self._told = False

    @property
    def measured(self) -> bool:
        """Whether the store has told its time since the start or the last step."""
        return self._best_trip_ms is not None

    @property
    def offset_to_wall_ms(self) -> float:
        """Return store time minus this machine's wall time."""
        return self.now_ms() - self._clock.wall_ms()

    def now_ms(self) -> float:
        """Return the store's time as this instance knows it."""
        return self._clock.monotonic_ms() + self._offset_ms

    def learn(self, store_now_ms: int, sent_ms: float, received_ms: float) -> None:
        """Take an answer's store time; `sent_ms` and `received_ms` are monotonic. Long round trips teach nothing."""
        self._told = True
        trip_ms = received_ms - sent_ms
        best_ms = self._best_trip_ms
        if best_ms is None or trip_ms <= 2 * best_ms + 5:
            # Half a millisecond: the store's answer is cut to whole milliseconds.
            self._offset_ms = store_now_ms + 0.5 - (sent_ms + received_ms) / 2
        self._best_trip_ms = trip_ms if best_ms is None else min(trip_ms, best_ms * 1.1 + 0.1)

    def stepped(self) -> bool:
        """Whether this machine's wall clock was stepped since `settle`."""
        return abs(self._clock.wall_ms() - self._clock.monotonic_ms() - self._skew_ms) > STEP_MS

    def settle(self) -> None:
        """Take the wall clock as it is now for the standard of later steps; the next answer is believed whatever it took."""
        moved_ms = self._clock.wall_ms() - self._clock.monotonic_ms() - self._skew_ms
        self._skew_ms += moved_ms
        if not self._told:
            self._offset_ms += moved_ms
        self._best_trip_ms = None
