"""Claims: one in a round trip, many in a round trip, and each in a transaction where no function may be made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anarchon.errors import BackendError, BackendUnavailable
from anarchon.types import CLAIM_MANY_MAX, Claim, ClaimRequest

from anarchon_postgres.calls import Calls, Ready, state_of
from anarchon_postgres.codec import arguments, claim_of, many_arguments, setting
from anarchon_postgres.decision import ARGUMENTS
from anarchon_postgres.lanes import Connection, fetch

__all__ = ["Claims"]

BATCH_WAIT_MS = 250
"""How long a batch waits for a locked job, before each job that is left waits for its lock alone."""
LOCK_NOT_AVAILABLE = "55P03"


class Claims:
    """Asks the server to decide claims (C1-C13)."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._options = calls.options

    async def claim(self, request: ClaimRequest) -> Claim:
        """Decide a claim in one round trip, or in one short transaction where no function may be made."""
        values = arguments(request, self._options.lock_wait_ms, skip_locked=False)

        async def act(connection: Connection, ready: Ready) -> str:
            rows = await fetch(connection, ready.statements.claim, values)
            return str(rows[0][0])

        async def act_without_function(connection: Connection, ready: Ready) -> str:
            return await self._claim_in_block(connection, ready, values)

        ready = await self._calls.ready()
        claim = claim_of(await self._calls.write(act if ready.function else act_without_function))
        assert claim is not None, "a claim that waits for its lock meets none to skip"
        return claim

    async def _claim_in_block(self, connection: Connection, ready: Ready, values: Sequence[object]) -> str:
        """Decide with the same text as a DO block. A pause of ours while it holds the job is ended by the server."""
        alone = ready.plain
        if alone:
            await self._calls.begin(connection)
        await fetch(connection, ready.statements.put_arguments, [setting(value) for value in values])
        await connection.execute(ready.block, prepare=False)
        rows = await fetch(connection, ready.statements.get_answer)
        if alone:
            await connection.execute("COMMIT", prepare=False)
        return str(rows[0][0])

    async def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Claim | BackendError]:
        """Decide many claims in one round trip, in the order of their names.

        Jobs whose row is locked are left out; they are asked for once more together, with a short wait, since mostly another
        instance is claiming the same batch and its commit answers them all. What is left then is claimed one by one.
        """
        ready = await self._calls.ready()
        answers: dict[int, Claim | BackendError] = {}
        left = sorted(range(len(requests)), key=lambda place: requests[place].key)
        for wait_ms in (None, min(BATCH_WAIT_MS, self._options.lock_wait_ms)):
            if not ready.function or len(left) < 2:
                break
            for start in range(0, len(left), CLAIM_MANY_MAX):
                answers |= await self._claim_batch(requests, left[start : start + CLAIM_MANY_MAX], wait_ms)
            left = [place for place in left if place not in answers]
        for place in left:
            try:
                answers[place] = await self.claim(requests[place])
            except BackendError as error:
                answers[place] = error
        return [answers[place] for place in range(len(requests))]

    async def _claim_batch(
        self, requests: Sequence[ClaimRequest], places: Sequence[int], wait_ms: int | None
    ) -> dict[int, Claim | BackendError]:
        """Return the answers of one statement; without a wait, those whose job was not locked.

        None at all where one item spoils it for the others: it can be waited for no longer, or cannot be stored.
        """
        rows = [
            arguments(requests[place], wait_ms or self._options.lock_wait_ms, skip_locked=wait_ms is None) for place in places
        ]

        async def act(connection: Connection, ready: Ready) -> list[Any]:
            return await fetch(connection, ready.statements.claim_many, (many_arguments(ARGUMENTS, rows),))

        try:
            found = await self._calls.write(act)
        except BackendError as error:
            if isinstance(error, BackendUnavailable) and state_of(error) != LOCK_NOT_AVAILABLE:
                return dict.fromkeys(places, error)
            return {}
        decided = zip(places, (claim_of(answer) for (answer,) in found), strict=True)
        return {place: claim for place, claim in decided if claim is not None}
