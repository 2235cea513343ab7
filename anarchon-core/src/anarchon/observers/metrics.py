"""Counters of what an instance did, as numbers and in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from collections import Counter

from anarchon.hookspecs import hookimpl
from anarchon.types import RunKey, RunStatus

__all__ = ["Metrics"]

SERIES_MAX = 10_000

_HELP = {
    "anarchon_runs_started_total": "Attempts that this instance began.",
    "anarchon_runs_finished_total": "Attempts that ended here, by status.",
    "anarchon_run_seconds_total": "Seconds that handlers took.",
    "anarchon_runs_taken_over_total": "Attempts taken over from another instance.",
    "anarchon_runs_released_total": "Attempts given back, for a hand-over or a retry.",
    "anarchon_leases_lost_total": "Leases that this instance stopped trusting.",
    "anarchon_slots_skipped_total": "Slots refused for overlap or pause, told once a fleet.",
    "anarchon_slots_missed_total": "Slots that passed without a run, told once a fleet.",
    "anarchon_store_errors_total": "Calls to the store that failed.",
}


class Metrics:
    """Counts by job; `text` is what a metrics endpoint returns. At most 10,000 series are kept (K9)."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self._lock = threading.Lock()

    def _add(self, name: str, amount: float = 1, **labels: str) -> None:
        series = (name, tuple(labels.items()))
        with self._lock:
            if series in self._counts or len(self._counts) < SERIES_MAX:
                self._counts[series] += amount  # type: ignore[assignment]  # seconds are fractions

    def value(self, name: str, **labels: str) -> float:
        """Return one counter, 0 if it never moved."""
        with self._lock:
            return self._counts[name, tuple(labels.items())]

    def text(self) -> str:
        """Return every counter in the Prometheus text format."""
        with self._lock:
            counts = sorted(self._counts.items())
        lines: list[str] = []
        for name, about in _HELP.items():
            rows = [(labels, value) for (series, labels), value in counts if series == name]
            if rows:
                lines += [f"# HELP {name} {about}", f"# TYPE {name} counter"]
                lines += [f"{name}{{{_labels(labels)}}} {_number(value)}" for labels, value in rows]
        return "\n".join([*lines, ""])

    @hookimpl
    def anarchon_run_started(self, key: RunKey) -> None:
        """Count."""
        self._add("anarchon_runs_started_total", job=key.job)

    @hookimpl
    def anarchon_run_finished(self, key: RunKey, status: RunStatus, duration_ms: int) -> None:
        """Count."""
        self._add("anarchon_runs_finished_total", job=key.job, status=str(status))
        self._add("anarchon_run_seconds_total", duration_ms / 1000, job=key.job)

    @hookimpl
    def anarchon_run_taken_over(self, key: RunKey) -> None:
        """Count."""
        self._add("anarchon_runs_taken_over_total", job=key.job)

    @hookimpl
    def anarchon_run_released(self, key: RunKey) -> None:
        """Count."""
        self._add("anarchon_runs_released_total", job=key.job)

    @hookimpl
    def anarchon_lease_lost(self, key: RunKey) -> None:
        """Count."""
        self._add("anarchon_leases_lost_total", job=key.job)

    @hookimpl
    def anarchon_slot_skipped(self, key: RunKey) -> None:
        """Count."""
        self._add("anarchon_slots_skipped_total", job=key.job)

    @hookimpl
    def anarchon_run_missed(self, key: RunKey) -> None:
        """Count."""
        self._add("anarchon_slots_missed_total", job=key.job)

    @hookimpl
    def anarchon_backend_error(self, operation: str) -> None:
        """Count."""
        self._add("anarchon_store_errors_total", operation=operation)


def _number(value: float) -> str:
    """Return a count with all its digits: counters grow for years."""
    return str(int(value)) if value == int(value) else repr(round(value, 3))


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    def quoted(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return ",".join(f'{name}="{quoted(value)}"' for name, value in labels)
