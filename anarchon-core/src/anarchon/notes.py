"""Notes: every slot that does not run leaves one record of why, and its reason is told once a fleet (K13)."""

from __future__ import annotations

import logging

from anarchon.context import Context
from anarchon.errors import BackendError
from anarchon.job import Job
from anarchon.types import NOTE, ClaimRequest, Outcome, RunKey, RunResult, RunStatus, new_token

__all__ = ["Notes"]

TRIES_MAX = 3
RETRY_MS = 500

_log = logging.getLogger("anarchon.slot")


class Notes:
    """Claims and finishes the notes of slots; the instance that wins a note tells the observers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store = context.store

    async def skipped(self, job: Job, key: RunKey, reason: str) -> None:
        """Note that a slot was refused: overlap, paused."""
        await self._note(job, key, RunStatus.SKIPPED, reason)

    async def missed(self, job: Job, key: RunKey, reason: str) -> None:
        """Note that a slot passed without a run."""
        await self._note(job, key, RunStatus.MISSED, reason)

    async def _note(self, job: Job, key: RunKey, status: RunStatus, reason: str) -> None:
        request = ClaimRequest(
            key=RunKey(key.job, key.slot_ms, NOTE),
            token=new_token(),
            instance=self._context.instance,
            attempt_limit=job.max_attempts,
            lease_ms=job.lease_ms,
            max_late_ms=job.max_late_ms,
            exclusive=False,
            keep_ms=job.keep_ms,
            history_size=job.history_size,
            history_ttl_ms=job.history_ttl_ms,
        )
        for attempt in range(TRIES_MAX):
            if attempt:
                await self._context.clock.sleep_ms(RETRY_MS * attempt)
            try:
                claim = await self._store.claim(request)
                if claim.outcome is not Outcome.WON:
                    return
                await self._store.finish(request.key, request.token, RunResult(status, reason))
            except BackendError as error:
                _log.debug("%s: the note of slot %d was not taken: %s", key.job, key.slot_ms, error)
                if not self._store.limits.resolves_unknown:
                    break
                continue
            self._tell(key, status, reason)
            return
        # Better told twice than never: nobody may have been able to write it down.
        self._tell(key, status, f"{reason} (not recorded)")

    def _tell(self, key: RunKey, status: RunStatus, reason: str) -> None:
        missed = status is RunStatus.MISSED
        _log.log(logging.WARNING if missed else logging.INFO, "%s: slot %d was %s: %s", key.job, key.slot_ms, status, reason)
        event = "run_missed" if missed else "slot_skipped"
        self._context.tell(event, key=key, reason=reason)
