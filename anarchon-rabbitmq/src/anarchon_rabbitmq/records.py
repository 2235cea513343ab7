"""A record of the history as it lies in the stream, and runs put together from their records."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from anarchon.types import RunKey, RunRecord, RunStatus

__all__ = ["decoded", "encoded", "merged"]


def encoded(record: RunRecord) -> bytes:
    """Return a record as JSON; both records of a run are whole, so that one of them may be trimmed or lost."""
    fields = {
        "slot": record.slot_ms,
        "space": record.space,
        "token": record.token,
        "instance": record.instance,
        "status": str(record.status),
        "at": record.claimed_ms,
    }
    if record.finished_ms is not None:
        fields |= {"end": record.finished_ms}
    if record.error is not None:
        fields |= {"error": record.error}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def decoded(job: str, body: bytes) -> RunRecord | None:
    """Return what a message says, or None if it is none of ours."""
    try:
        fields = json.loads(body)
        return RunRecord(
            job=job,
            slot_ms=int(fields["slot"]),
            space=str(fields["space"]),
            attempt=1,
            token=str(fields["token"]),
            instance=str(fields["instance"]),
            status=RunStatus(fields["status"]),
            claimed_ms=int(fields["at"]),
            finished_ms=int(fields["end"]) if "end" in fields else None,
            error=str(fields["error"]) if "error" in fields else None,
        )
    except (ValueError, KeyError, TypeError):
        return None


def merged(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return one record a claim, newest slot first: the earliest start and the first end that was written (C18, C19)."""
    found: dict[tuple[RunKey, str], RunRecord] = {}
    for record in records:
        name = (record.key, record.token)
        known = found.get(name)
        if known is None or not known.status.final:
            claimed_ms = record.claimed_ms if known is None else min(known.claimed_ms, record.claimed_ms)
            found[name] = replace(record, claimed_ms=claimed_ms)
    return sorted(found.values(), key=lambda record: (record.slot_ms, record.space, record.claimed_ms), reverse=True)
