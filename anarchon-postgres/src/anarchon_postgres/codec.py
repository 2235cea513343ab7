"""Between the core's records and what travels to and from the server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from anarchon.types import Claim, ClaimRequest, Outcome, RunKey, RunRecord, RunResult, RunStatus, RunView

__all__ = ["arguments", "claim_of", "clean", "key_values", "many_arguments", "record_of", "result_values", "setting", "view_of"]

NULL = "\\N"


def clean(text: str) -> str:
    """Return a text that PostgreSQL can store: no NUL, no lone surrogate. For what people read, never for names."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def arguments(request: ClaimRequest, lock_wait_ms: int, *, skip_locked: bool) -> tuple[object, ...]:
    """Return the arguments of the decision, in its order."""
    key = request.key
    return (
        key.job,
        key.slot_ms,
        key.space,
        request.token,
        clean(request.instance),
        request.attempt_limit,
        request.lease_ms,
        request.max_late_ms,
        request.exclusive,
        request.keep_ms,
        request.history_size,
        request.history_ttl_ms,
        clean(request.info),
        str(lock_wait_ms),
        skip_locked,
    )


def many_arguments(names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> str:
    """Return rows as a JSON array of objects."""
    return json.dumps([dict(zip(names, row, strict=True)) for row in rows], ensure_ascii=False)


def setting(value: object) -> str:
    """Return an argument as the text of a setting."""
    return NULL if value is None else str(value)


def claim_of(answer: str) -> Claim | None:
    """Return the claim that the decision answered; None where it met a lock that it was told to skip."""
    outcome, attempt, now_ms, wait_ms, left_ms, other_slot_ms, other_space, winner, other_info, job = json.loads(answer)
    if outcome == "busy":
        return None
    other = None if other_slot_ms is None else RunKey(job, other_slot_ms, other_space)
    return Claim(
        Outcome(outcome),
        attempt,
        store_now_ms=now_ms,
        wait_ms=wait_ms,
        left_ms=left_ms,
        other=other,
        winner=winner,
        other_info=other_info,
    )


def key_values(key: RunKey, token: str) -> dict[str, Any]:
    """Return the parameters that name a run and its holder."""
    return {"job": key.job, "slot_ms": key.slot_ms, "space": key.space, "token": token}


def result_values(result: RunResult) -> dict[str, Any]:
    """Return the parameters that say how a run ended."""
    error = None if result.error is None else clean(result.error)
    return {"status": str(result.status), "live": not result.status.final, "error": error}


def view_of(key: RunKey, row: Sequence[Any]) -> RunView:
    """Return a view from status, attempt, instance and the time left; at most 0 only once the run may be claimed (C17)."""
    status_text, attempt, instance, left_ms = row
    status = RunStatus(status_text)
    # C11: a lease that ends now is alive; C16: a release delay that ends now has passed.
    alive = left_ms > 0 or (status is RunStatus.RUNNING and left_ms == 0)
    return RunView(key, status, attempt, instance, max(1, left_ms) if alive else min(0, left_ms))


def record_of(row: Sequence[Any]) -> RunRecord:
    """Return a record of the history."""
    job, slot_ms, space, attempt, token, instance, status, claimed_ms, finished_ms, error = row
    return RunRecord(
        job,
        slot_ms,
        space,
        attempt=attempt,
        token=token,
        instance=instance,
        status=RunStatus(status),
        claimed_ms=claimed_ms,
        finished_ms=finished_ms,
        error=error,
    )
