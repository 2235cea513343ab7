"""C1 to C5: who wins, and what a claim that was sent again is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from anarchon.errors import BackendError
from anarchon.types import Claim, ClaimRequest, Outcome, RunKey

from anarchon_conformance.arena import Arena
from anarchon_conformance.clauses.bench import Bench
from anarchon_conformance.clauses.client import Client
from anarchon_conformance.gate import Gate, Mode, reroute
from anarchon_conformance.suite import Suite
from anarchon_conformance.target import MissingMethod

__all__ = ["STEPS", "ClaimingTests", "answer_of", "gate_of", "gated_client"]

RACERS = 4
RACES = 6
STEPS = 4
"""How many messages of a call are lost in turn; a claim in one transaction has up to four."""


@asynccontextmanager
async def gated_client(bench: Bench, gate: Gate) -> AsyncIterator[Client]:
    """Open a client whose connections go through the gate; it is closed before the gate is."""
    target = bench.arena.target
    backend = target.make(reroute(target.url, gate.host, gate.port))
    try:
        await backend.open()
        yield Client("G", backend, bench.story)
    finally:
        gate.heal()
        await backend.close()


def gate_of(arena: Arena) -> Gate:
    """Return an unstarted gate before the target's store.

    Raises:
        MissingMethod: the store has no wire that a gate may stand before.
    """
    wire = arena.target.wire()
    if wire is None:
        msg = "wire"
        raise MissingMethod(msg)
    return Gate(*wire, ungated=arena.target.ungated, clock=arena.target.clock)


async def race(bench: Bench, keys: list[RunKey], *, exclusive: bool = False) -> list[list[Claim]]:
    """Let every client claim each key at the same moment, each with a token of its own; answers by key."""

    async def one(client: Client, key: RunKey) -> Claim:
        return await client.claim_surely(bench.ask(key, exclusive=exclusive))

    answers: list[list[Claim]] = []
    for key in keys:
        answers.append(list(await asyncio.gather(*(one(client, key) for client in bench.clients))))
    return answers


class ClaimingTests(Suite):
    """The claims that every backend decides."""

    async def test_c01_many_clients_at_once_get_one_winner(self, arena: Arena) -> None:
        bench = await Bench.of(arena, RACERS)
        for answers in await race(bench, [bench.key("c01") for _ in range(RACES)]):
            bench.expect(sum(claim.won for claim in answers), 1, f"winners among {RACERS} clients that claim one slot at once")

    async def test_c01_many_claims_of_one_client_at_once_get_one_winner(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        for _ in range(4):
            key = bench.key("c01")
            answers = await asyncio.gather(*(a.claim_surely(bench.ask(key)) for _ in range(RACERS)))
            bench.expect(sum(claim.won for claim in answers), 1, "winners among claims that share one client")

    async def test_c01_batches_that_meet_get_one_winner_a_run(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 3)
        keys = [bench.key("c01") for _ in range(10)]
        requests = [[bench.ask(key) for key in keys] for _ in bench.clients]
        rows = await asyncio.gather(*(client.claim_many(mine) for client, mine in zip(bench.clients, requests, strict=True)))
        for place, key in enumerate(keys):
            claims = [answer for row in rows if isinstance(answer := row[place], Claim)]
            winners = sum(claim.won for claim in claims)
            bench.expect_in(winners, {1} if len(claims) == len(rows) else {0, 1}, f"winners of {key.job} among three batches")

    async def test_c01_a_later_claim_is_refused(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c01")
        await bench.won(a, bench.ask(key))
        bench.expect_refused(await b.claim(bench.ask(key)), "a claim of a run that somebody else won")

    async def test_c01_the_winners_own_client_is_refused_with_a_new_token(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        key = bench.key("c01")
        await bench.won(a, bench.ask(key))
        bench.expect_refused(await a.claim(bench.ask(key)), "a claim by the same client with another token")

    async def test_c01_a_manual_run_has_one_winner(self, arena: Arena) -> None:
        bench = await Bench.of(arena, RACERS)
        for answers in await race(bench, [bench.key("c01", space="m7f") for _ in range(3)]):
            bench.expect(sum(claim.won for claim in answers), 1, "winners of one manual run")

    async def test_c01_a_note_has_one_winner(self, arena: Arena) -> None:
        bench = await Bench.of(arena, RACERS)
        for answers in await race(bench, [bench.key("c01", space="n") for _ in range(3)]):
            bench.expect(sum(claim.won for claim in answers), 1, "winners of one note")

    async def test_c02_a_fresh_slot_is_won(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        await bench.won(bench.clients[0], bench.ask(bench.key("c02")))

    async def test_c02_many_jobs_at_once_are_all_won(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 4)
        requests = [(client, bench.ask(bench.key("c02"))) for client in bench.clients for _ in range(8)]
        answers = await asyncio.gather(*(client.claim_surely(request) for client, request in requests))
        bench.expect({claim.outcome for claim in answers}, {Outcome.WON}, "claims of jobs that nobody else asks for")

    async def test_c02_a_batch_of_fresh_slots_is_all_won(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        answers = await bench.clients[0].claim_many([bench.ask(bench.key("c02")) for _ in range(20)])
        for answer in answers:
            bench.expect_won(answer, 1, "an item of a batch of fresh slots")

    async def test_c02_an_empty_batch_is_empty(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        bench.expect(await bench.clients[0].claim_many([]), [], "the answer to a batch of nothing")

    async def test_c02_rising_slots_of_one_job_are_all_won(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        first = bench.key("c02", ago_ms=9_000)
        for number in range(6):
            key = replace(first, slot_ms=first.slot_ms + number * 1_000)
            await bench.won(bench.clients[number % 2], bench.ask(key), "a slot newer than every claimed one")

    async def test_c02_an_older_slot_is_won_or_refused_for_good(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        newer = bench.key("c02", ago_ms=1_000)
        await bench.won(a, bench.ask(newer))
        older = replace(newer, slot_ms=newer.slot_ms - 1_000)
        claim = await a.claim(bench.ask(older))
        if arena.limits.ordered:
            bench.expect_in(claim.outcome, {Outcome.LATE, Outcome.LOST}, "an older slot of a store with ordered slots")
        else:
            bench.expect_won(claim, 1, "an older slot that nobody has claimed")

    async def test_c03_a_race_has_a_winner(self, arena: Arena) -> None:
        bench = await Bench.of(arena, RACERS)
        for answers in await race(bench, [bench.key("c03") for _ in range(RACES)]):
            bench.expect_in(Outcome.WON, {claim.outcome for claim in answers}, "the first of some claims in whatever order")

    async def test_c03_whoever_did_not_win_a_race_is_refused(self, arena: Arena) -> None:
        bench = await Bench.of(arena, RACERS)
        for answers in await race(bench, [bench.key("c03") for _ in range(RACES)]):
            for claim in answers:
                if not claim.won:
                    bench.expect_refused(claim, "a claim that met the winner's")

    async def test_c03_a_win_is_seen_by_everybody_at_once(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 4)
        for number in range(8):
            key = bench.key("c03")
            await bench.won(bench.clients[number % 4], bench.ask(key))
            claim = await bench.clients[(number + 1) % 4].claim(bench.ask(key))
            bench.expect_refused(claim, "a claim that was sent after somebody else's win was answered")

    async def test_c04_the_same_token_is_told_won_again(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        bench.needs_own_claims_known()
        (a,) = bench.clients
        request = bench.ask(bench.key("c04"))
        await bench.won(a, request)
        for _ in range(3):
            bench.expect_won(await a.claim(request), 1, "the holder's claim, sent again")

    async def test_c04_the_same_token_is_known_on_another_connection(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        bench.needs_own_claims_known()
        a, b = bench.clients
        request = bench.ask(bench.key("c04"))
        await bench.won(a, request)
        bench.expect_won(await b.claim(request), 1, "the holder's claim, sent again on another connection")

    async def test_c04_the_same_token_sent_many_times_at_once_wins_once(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 4)
        bench.needs_own_claims_known()
        request = bench.ask(bench.key("c04"))
        for claim in await asyncio.gather(*(client.claim_surely(request) for client in bench.clients)):
            bench.expect_won(claim, 1, "one claim sent four times at once")

    async def test_c04_asking_again_lets_nobody_else_in(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        bench.needs_own_claims_known()
        a, b = bench.clients
        request = bench.ask(bench.key("c04"))
        await bench.won(a, request)
        await a.claim(request)
        bench.expect_refused(await b.claim(bench.ask(request.key)), "a stranger's claim after the holder asked again")

    async def test_c04_a_batch_recognises_its_own_claims(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        bench.needs_own_claims_known()
        a, b = bench.clients
        requests = [bench.ask(bench.key("c04")) for _ in range(5)]
        await a.claim_many(requests)
        for answer in await b.claim_many(requests):
            bench.expect_won(answer, 1, "an item of a batch that was sent again")

    async def test_c05_a_lost_reply_is_no_refusal(self, arena: Arena) -> None:
        await _claims_through(arena, Mode.CUT_AFTER, "a claim whose reply was lost")

    async def test_c05_a_lost_request_is_no_refusal(self, arena: Arena) -> None:
        await _claims_through(arena, Mode.CUT_BEFORE, "a claim whose request was lost")

    async def test_c05_a_refused_claim_with_a_lost_reply_is_no_win(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        async with gate_of(arena) as gate, gated_client(bench, gate) as guarded:
            for step in range(STEPS):
                key = bench.key("c05")
                await bench.won(a, bench.ask(key))
                async with gate.fault(Mode.CUT_AFTER, count=1, after=step):
                    claim = await answer_of(guarded, bench.ask(key))
                if claim is not None:
                    bench.expect_refused(claim, "a claim of somebody else's run whose reply was lost")


async def answer_of(client: Client, request: ClaimRequest) -> Claim | None:
    """Claim once, within the deadline that the core would set; None for an unknown outcome."""
    try:
        async with asyncio.timeout(client.limits.call_timeout_ms / 1000):
            claim = await client.claim(request)
    except (BackendError, TimeoutError):
        return None
    return None if claim.outcome is Outcome.UNKNOWN else claim


async def _claims_through(arena: Arena, mode: Mode, what: str) -> None:
    """Lose each of the first messages of a claim in turn, and insist on the truth then and afterwards."""
    bench = await Bench.of(arena, 2)
    a, b = bench.clients
    async with gate_of(arena) as gate, gated_client(bench, gate) as guarded:
        for step in range(STEPS):
            request = bench.ask(bench.key("c05"))
            async with gate.fault(mode, count=1, after=step):
                claim = await answer_of(guarded, request)
            if claim is not None:  # nothing was lost, or the driver asked again by itself: only the truth will do
                bench.expect_won(claim, 1, what)
            if arena.limits.resolves_unknown:
                bench.expect_won(await guarded.claim_surely(request), 1, "the same claim, asked again after the fault")
            else:
                await a.claim(bench.ask(request.key))  # may win, if the lost claim never arrived
            bench.expect_refused(await b.claim(bench.ask(request.key)), "a stranger's claim afterwards")
