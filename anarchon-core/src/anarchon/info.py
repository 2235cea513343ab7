"""What a job's row in the store says about its schedule, and how instances find out that they disagree."""

from __future__ import annotations

import json
import logging
from typing import Any

from anarchon.context import Context
from anarchon.job import Job
from anarchon.schedule import schedule_digest, text_of, zones_of

__all__ = ["Disagreements", "job_info"]

PAIRS_MAX = 1_000
YEAR_MS = 31_556_952_000

_log = logging.getLogger("anarchon.schedule")


def job_info(job: Job, slot_ms: int) -> str:
    """Return the canonical schedule, its zones and the digest around a slot, as JSON."""
    facts = {
        "schedule": text_of(job.schedule),
        "tz": "+".join(zones_of(job.schedule)),
        "digest": schedule_digest(job.schedule, slot_ms),
        "year": 1970 + slot_ms // YEAR_MS,
    }
    return json.dumps(facts, separators=(",", ":"))


class Disagreements:
    """Tells, once a process and pair, that another instance computes other slots for a job."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told: set[tuple[str, str, str]] = set()

    def found(self, job: Job, mine: str, theirs: str) -> None:
        """Compare two infos of a job, this instance's and the one that it replaced in the store."""
        me, them = _read(mine), _read(theirs)
        if me == them or (me[:2] == them[:2] and me[3] != them[3]):
            return  # another year's digest of the same schedule is no disagreement
        pair = (job.name, mine, theirs)
        if pair in self._told or len(self._told) >= PAIRS_MAX:
            return
        self._told.add(pair)
        _log.warning("%s: another instance holds another schedule: %s here, %s there", job.name, mine, theirs)
        self._context.tell("schedule_disagreement", job=job.name, mine=mine, theirs=theirs)


def _read(info: str) -> tuple[Any, Any, Any, Any]:
    try:
        facts = json.loads(info)
        return facts.get("schedule"), facts.get("tz"), facts.get("digest"), facts.get("year")
    except (ValueError, AttributeError):
        return info, None, None, None
