"""The slots that wait because of `overlap="queue"`: at most one a job, the earliest that was refused."""

from __future__ import annotations

__all__ = ["SlotQueue"]


class SlotQueue:
    """Keeps the earliest refused slot of each job; nothing of it is stored anywhere."""

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}

    def keep(self, job: str, slot_ms: int) -> int | None:
        """Queue a slot if it is the earliest; return the slot that is refused instead, or None."""
        kept = self._slots.get(job)
        if kept is None or kept == slot_ms:
            self._slots[job] = slot_ms
            return None
        self._slots[job] = min(kept, slot_ms)
        return max(kept, slot_ms)

    def get(self, job: str) -> int | None:
        """Return the queued slot of a job."""
        return self._slots.get(job)

    def drop(self, job: str) -> None:
        """Forget the queued slot of a job."""
        self._slots.pop(job, None)
