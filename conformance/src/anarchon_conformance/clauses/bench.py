"""What a clause test works with: named clients, slots and jobs of its own, the store's clock, and ways to fail well."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final, TypeVar

from anarchon.errors import BackendError
from anarchon.types import Claim, ClaimRequest, Outcome, RunKey, RunStatus, RunView, new_token

from anarchon_conformance.arena import Arena
from anarchon_conformance.clauses.client import Client, Story
from anarchon_conformance.suite import Violation
from anarchon_conformance.target import NotClaimed

__all__ = ["LEASE_MS", "LONG_MS", "REFUSED", "Bench"]

LEASE_MS: Final = 150
"""The lease of a run whose end a test waits for."""
LONG_MS: Final = 60_000
"""The lease of a run that must stay alive however slow the machine is."""
WAIT_ROUNDS_MAX: Final = 50
ENDS_MS: Final = 2_000.0

REFUSED: Final = frozenset({Outcome.LOST, Outcome.RUNNING, Outcome.DONE})
"""What a claim of somebody else's run is told."""

T = TypeVar("T")


class Bench:
    """One test's clients and story; made by `Bench.of` from the test's arena."""

    def __init__(self, arena: Arena, clients: list[Client], story: Story) -> None:
        self.arena, self.clients, self.story = arena, clients, story
        self.clock = arena.target.clock

    @classmethod
    async def of(cls, arena: Arena, count: int = 1) -> Bench:
        """Return a bench with `count` clients named A, B, ..."""
        bench = cls(arena, [], Story())
        bench.clients.append(Client("A", arena.first, bench.story))
        for _ in range(count - 1):
            await bench.another()
        return bench

    async def another(self) -> Client:
        """Open one more client."""
        client = Client(chr(ord("A") + len(self.clients)), await self.arena.client(), self.story)
        self.clients.append(client)
        return client

    # -- jobs, slots, requests

    def key(self, hint: str, *, ago_ms: int = 500, space: str = "") -> RunKey:
        """Return a recent slot of a new job."""
        return self.arena.key(self.arena.job(hint), ago_ms=ago_ms, space=space)

    def ask(  # noqa: PLR0913 - the knobs of a claim, all by name
        self,
        key: RunKey,
        *,
        token: str | None = None,
        lease_ms: int = LONG_MS,
        limit: int = 10,
        exclusive: bool = False,
        max_late_ms: int = 120_000,
        keep_ms: int = 127_000,
        history_size: int = 100,
        history_ttl_ms: int | None = None,
        info: str = "",
        instance: str = "kit",
    ) -> ClaimRequest:
        """Return a claim of a run, with a new token unless one is given."""
        return ClaimRequest(
            key=key,
            token=token or new_token(),
            instance=instance,
            attempt_limit=limit,
            lease_ms=lease_ms,
            max_late_ms=max_late_ms,
            exclusive=exclusive,
            keep_ms=keep_ms,
            history_size=history_size,
            history_ttl_ms=history_ttl_ms,
            info=info,
        )

    # -- judging

    def fail(self, sentence: str) -> Violation:
        """Return the violation to raise, with the story so far."""
        return Violation(sentence, story=self.story.lines())

    def expect(self, found: object, wanted: object, what: str) -> None:
        """Insist on a value.

        Raises:
            Violation: it is another one.
        """
        if found != wanted:
            raise self.fail(f"{what}: expected {_shown(wanted)}, found {_shown(found)}")

    def expect_in(self, found: T, wanted: Iterable[T], what: str) -> None:
        """Insist on one of several values.

        Raises:
            Violation: it is none of them.
        """
        choices = list(wanted)
        if found not in choices:
            raise self.fail(f"{what}: expected {' or '.join(map(_shown, choices))}, found {_shown(found)}")

    def expect_yes(self, found: object, what: str) -> None:
        """Insist on True."""
        self.expect(found, True, what)  # noqa: FBT003 - the value itself

    def expect_no(self, found: object, what: str) -> None:
        """Insist on False."""
        self.expect(found, False, what)  # noqa: FBT003 - the value itself

    def expect_won(self, claim: Claim | BackendError, attempt: int, what: str) -> None:
        """Insist on a win of one attempt."""
        if isinstance(claim, BackendError):
            raise self.fail(f"{what}: expected won, found {type(claim).__name__}: {claim}") from claim
        self.expect((claim.outcome, claim.attempt), (Outcome.WON, attempt), what)

    def expect_refused(self, claim: Claim, what: str) -> None:
        """Insist that a claim of somebody else's run is refused: by RUNNING or DONE from a lease backend, else also LOST."""
        self.expect_in(claim.outcome, REFUSED - ({Outcome.LOST} if self.arena.lease else set()), what)

    async def won(self, client: Client, request: ClaimRequest, what: str = "a fresh slot that nobody else asks for") -> Claim:
        """Claim and insist on attempt 1 (C2)."""
        claim = await client.claim(request)
        self.expect_won(claim, 1, what)
        return claim

    async def view(self, client: Client, key: RunKey) -> RunView:
        """Look at a run that must be known."""
        view = (await client.check(key))[0]
        if view is None:
            raise self.fail("check does not know a run that was won")
        return view

    async def expect_held(self, client: Client, request: ClaimRequest, attempt: int, what: str) -> None:
        """Insist that a token still holds its run, by asking again with it (C4)."""
        self.expect_won(await client.claim_surely(request), attempt, what)

    async def expect_status(self, client: Client, key: RunKey, wanted: RunStatus, what: str) -> None:
        """Insist on the status of the newest attempt in the history."""
        records = [record for record in await client.history(key.job) if record.key == key]
        self.expect(records[0].status if records else None, wanted, what)

    def needs_own_claims_known(self) -> None:
        """Leave a test that asks again with the same token where that is not promised (C4)."""
        if not self.arena.limits.resolves_unknown:
            msg = "limits.resolves_unknown is False"
            raise NotClaimed(msg)

    # -- time

    async def now_ms(self, client: Client) -> int:
        """Return the store's clock now; a store without one is on the host's."""
        now_ms = await client.now_ms()
        return int(self.clock.wall_ms()) if now_ms is None else now_ms

    async def until(self, client: Client, store_ms: int) -> None:
        """Wait until the store's clock is past an instant."""
        for _ in range(WAIT_ROUNDS_MAX):
            left_ms = store_ms - await self.now_ms(client)
            if left_ms < 0:
                return
            await self.clock.sleep_ms(left_ms + 1)
        raise self.fail(f"the store's clock does not reach {store_ms}")

    async def lease_over(self, client: Client, lease_ms: int = LEASE_MS) -> None:
        """Wait until every lease of this length that was granted before this call is over on the store's clock (C11)."""
        await self.until(client, await self.now_ms(client) + lease_ms)

    async def cancel_after(self, steps: int, call: Coroutine[Any, Any, T]) -> bool:
        """Start a call, let the loop take `steps` turns, cancel it; False if it had ended before.

        Raises:
            Violation: the cancelled call does not end (C22).
        """
        task = asyncio.ensure_future(call)
        for _ in range(steps):
            await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, not a duration
            if task.done():
                break
        ended = task.done()
        task.cancel()
        _, stuck = await asyncio.wait({task}, timeout=ENDS_MS / 1000)
        if stuck:
            raise self.fail(f"a call cancelled after {steps} turns of the loop had not ended {ENDS_MS:g} ms later")
        with suppress(asyncio.CancelledError):
            task.result()
        return not ended


def _shown(value: object) -> str:
    if isinstance(value, Outcome | RunStatus):
        return value.value
    if isinstance(value, tuple | frozenset | set):
        return "(" + ", ".join(map(_shown, value)) + ")"
    return f"{value!r:.300}"
