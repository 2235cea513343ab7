"""The hooks that a plugin may implement: one that makes backends, and observers that are told what happens.

An observer is synchronous and runs on the engine's thread: be quick, hand slow work to a queue. Each implementation is
called under a guard of its own; what it raises is logged once and never reaches the scheduler (K5). It may take any
subset of the arguments. `key` is a `RunKey`; durations are milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from anarchon.backend import Backend
    from anarchon.types import RunKey, RunStatus
    from anarchon.url import BackendUrl

__all__ = ["PROJECT", "hookimpl", "hookspec"]

PROJECT = "anarchon"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def anarchon_backend(url: BackendUrl) -> Backend | None:
    """Make the backend for a URL, or return None if its scheme is not yours. Must not touch the store."""


@hookspec
def anarchon_slot_due(instance: str, key: RunKey) -> None:
    """A slot's time has come on this instance, and its jitter is over; it is about to be claimed."""


@hookspec
def anarchon_slot_skipped(instance: str, key: RunKey, reason: str) -> None:
    """A slot will not run, and why: overlap, paused, late, unknown. Told once a fleet (K13)."""


@hookspec
def anarchon_run_started(instance: str, key: RunKey, attempt: int, late_ms: int) -> None:
    """This instance won a run and starts the handler, `late_ms` after the slot on the store's clock."""


@hookspec
def anarchon_run_finished(
    instance: str, key: RunKey, attempt: int, status: RunStatus, error: str | None, duration_ms: int, recorded: bool
) -> None:
    """A handler of this instance ended; `recorded` says whether the store took the result."""


@hookspec
def anarchon_lease_renewed(instance: str, key: RunKey, attempt: int) -> None:
    """The lease of a run of this instance was renewed (C14)."""


@hookspec
def anarchon_lease_lost(instance: str, key: RunKey, attempt: int, why: str) -> None:
    """This instance no longer trusts its lease of a run; the handler is cancelled and nothing is reported (K1)."""


@hookspec
def anarchon_run_taken_over(instance: str, key: RunKey, attempt: int, previous: str | None) -> None:
    """This instance won a later attempt of a run that `previous` held before (C12)."""


@hookspec
def anarchon_run_released(instance: str, key: RunKey, attempt: int, why: str) -> None:
    """This instance gave a run back, for a hand-over or a retry (C16)."""


@hookspec
def anarchon_run_missed(instance: str, key: RunKey, reason: str) -> None:
    """A slot passed without a run, and why. Told once a fleet (K13)."""


@hookspec
def anarchon_schedule_disagreement(instance: str, job: str, mine: str, theirs: str) -> None:
    """Another instance holds another schedule for this job (or other zone data)."""


@hookspec
def anarchon_backend_error(instance: str, operation: str, error: Exception) -> None:
    """A call to the store failed; the scheduler goes on."""
