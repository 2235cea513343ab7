"""C11 to C14: when a lease ends, who takes over, how often, and how it is renewed."""

from __future__ import annotations

import asyncio

from anarchon.types import ATTEMPTS_MAX, Claim, Outcome, RunKey, RunStatus

from anarchon_conformance.arena import Arena
from anarchon_conformance.clauses.bench import LEASE_MS, LONG_MS, Bench
from anarchon_conformance.clauses.client import Client
from anarchon_conformance.suite import Suite
from anarchon_conformance.target import NotClaimed

__all__ = ["LeasingTests"]

POLLS_MAX = 2_000
CHEAP_MS = 1_500.0
SAMPLE = 10


class LeasingTests(Suite):
    """The life of a lease."""

    async def test_c11_a_live_lease_is_not_taken(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c11")
        await bench.won(a, bench.ask(key))
        claim = await b.claim(bench.ask(key))
        bench.expect(claim.outcome, Outcome.RUNNING, "a claim of a run whose lease is alive")
        if claim.left_ms is None or not 0 < claim.left_ms <= LONG_MS:
            raise bench.fail(f"RUNNING says {claim.left_ms} ms are left of a lease of {LONG_MS} ms")

    async def test_c11_a_lease_ends_when_its_last_millisecond_is_over(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c11")
        grant = await bench.won(a, bench.ask(key, lease_ms=LEASE_MS))
        end_ms = _store_ms(grant) + LEASE_MS
        for _ in range(POLLS_MAX):
            claim = await b.claim(bench.ask(key))
            now_ms = _store_ms(claim)
            # A backend may round what it reports: 1 ms of doubt here, none on a store whose clock the kit owns (duels).
            if claim.won and now_ms < end_ms:
                raise bench.fail(f"a lease that ends at {end_ms} was taken at {now_ms} on the store's clock")
            if not claim.won and now_ms > end_ms + 1:
                raise bench.fail(f"a lease that ended at {end_ms} answers {claim.outcome.value} at {now_ms}")
            if claim.won:
                return
            await bench.clock.sleep_ms(1 if end_ms - now_ms < 20 else 10)
        raise bench.fail("the lease did not end")

    async def test_c11_answers_carry_the_stores_clock(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        key = bench.key("c11")
        for _ in range(3):
            before_ms = await bench.now_ms(a)
            claim = await a.claim(bench.ask(key))
            after_ms = await bench.now_ms(a)
            if not before_ms - 1 <= _store_ms(claim) <= after_ms + 1:
                raise bench.fail(f"store_now_ms {claim.store_now_ms} lies outside {before_ms}..{after_ms}")

    async def test_c11_the_clients_own_clock_does_not_matter(self, arena: Arena) -> None:
        arena.target.require("make_skewed")
        bench = await Bench.of(arena)
        ahead = Client("F", await arena.client(arena.target.make_skewed(3_600_000)), bench.story)
        behind = Client("S", await arena.client(arena.target.make_skewed(-3_600_000)), bench.story)
        first, second = bench.key("c11"), bench.key("c11")
        await bench.won(behind, bench.ask(first), "a fresh slot, asked for by a host whose clock is an hour behind")
        bench.expect_refused(await ahead.claim(bench.ask(first)), "a live run, asked for by a host an hour ahead")
        await bench.won(ahead, bench.ask(second), "a fresh slot, asked for by a host whose clock is an hour ahead")
        bench.expect_refused(await behind.claim(bench.ask(second)), "a live run, asked for by a host an hour behind")

    async def test_c12_a_run_whose_lease_is_over_is_taken(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c12")
        await bench.won(a, bench.ask(key, lease_ms=LEASE_MS))
        await bench.lease_over(a)
        bench.expect_won(await b.claim(bench.ask(key)), 2, "the first claim after the lease's end")

    async def test_c12_takeover_has_one_winner(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 4)
        a = bench.clients[0]
        keys = [bench.key("c12") for _ in range(6)]
        for key in keys:
            await bench.won(a, bench.ask(key, lease_ms=LEASE_MS))
        await bench.lease_over(a)
        for key in keys:
            answers = await asyncio.gather(*(client.claim_surely(bench.ask(key)) for client in bench.clients))
            found = sorted((claim.outcome.value, claim.attempt) for claim in answers)
            bench.expect(found, [("running", 0)] * 3 + [("won", 2)], "four claims of one ended run at once")

    async def test_c12_takeover_in_batches_has_one_winner(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        keys = [bench.key("c12") for _ in range(8)]
        await a.claim_many([bench.ask(key, lease_ms=LEASE_MS) for key in keys])
        await bench.lease_over(a)
        rows = await asyncio.gather(*(client.claim_many([bench.ask(key) for key in keys]) for client in (a, b)))
        for one, two in zip(*rows, strict=True):
            won = [claim.attempt for claim in (one, two) if isinstance(claim, Claim) and claim.won]
            if isinstance(one, Claim) and isinstance(two, Claim):
                bench.expect(won, [2], "attempts won by two batches that meet at an ended run")
            else:
                bench.expect_in(won, [[], [2]], "attempts won by two batches, one of which failed")

    async def test_c12_a_takeover_is_in_the_history(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c12")
        await bench.won(a, bench.ask(key, lease_ms=LEASE_MS, instance="one"))
        await bench.lease_over(a)
        await b.claim(bench.ask(key, instance="two"))
        found = [(record.attempt, record.instance, record.status) for record in await a.history(key.job)]
        bench.expect(found, [(2, "two", RunStatus.RUNNING), (1, "one", RunStatus.LOST)], "the history after a takeover")

    async def test_c12_the_holder_may_be_the_one_who_takes_over(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        key = bench.key("c12")
        await bench.won(a, bench.ask(key, lease_ms=LEASE_MS))
        await bench.lease_over(a)
        bench.expect_won(await a.claim(bench.ask(key)), 2, "the same client with a new token after the lease's end")

    async def test_c04_an_ended_lease_that_nobody_took_is_still_its_tokens(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        request = bench.ask(bench.key("c04"), lease_ms=LEASE_MS)
        await bench.won(a, request)
        await bench.lease_over(a)
        bench.expect_won(await a.claim(bench.ask(request.key, token=request.token)), 1, "the own claim after the lease's end")
        bench.expect_refused(await b.claim(bench.ask(request.key)), "a stranger's claim after that")

    async def test_c04_asking_again_sets_the_lease_end_anew(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        longer = bench.ask(bench.key("c04"), lease_ms=LEASE_MS)
        await bench.won(a, longer)
        await a.claim(bench.ask(longer.key, token=longer.token))
        shorter = bench.ask(bench.key("c04"))
        await bench.won(a, shorter)
        await a.claim(bench.ask(shorter.key, token=shorter.token, lease_ms=LEASE_MS))
        await bench.lease_over(a)
        bench.expect_refused(await b.claim(bench.ask(longer.key)), "a run whose claim was sent again with a longer lease")
        bench.expect_won(await b.claim(bench.ask(shorter.key)), 2, "a run whose claim was sent again with a shorter lease")

    async def test_c13_the_last_attempt_is_not_followed(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c13")
        await bench.won(a, bench.ask(key, lease_ms=LEASE_MS, limit=1))
        await bench.lease_over(a)
        bench.expect((await b.claim(bench.ask(key, limit=1))).outcome, Outcome.DONE, "a claim with no attempt left")
        await bench.expect_status(b, key, RunStatus.INTERRUPTED, "a run that used its only attempt")
        bench.expect((await b.claim(bench.ask(key))).outcome, Outcome.DONE, "a later claim that would allow more attempts")

    async def test_c13_attempts_count_up_to_the_limit(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        key = bench.key("c13")
        for attempt in (1, 2, 3):
            request = bench.ask(key, limit=3)
            bench.expect_won(await a.claim(request), attempt, f"attempt {attempt} of 3")
            await a.release(key, request.token, counted=True, error="failed")
        bench.expect((await a.claim(bench.ask(key, limit=3))).outcome, Outcome.DONE, "a fourth attempt of 3")

    async def test_c13_a_limit_of_nothing_ends_the_run(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c13")
        await bench.won(a, bench.ask(key, lease_ms=LEASE_MS))
        bench.expect((await b.claim(bench.ask(key, limit=0))).outcome, Outcome.RUNNING, "a live run, asked for to end it")
        await bench.lease_over(a)
        bench.expect((await b.claim(bench.ask(key, limit=0))).outcome, Outcome.DONE, "an ended run, asked for to end it")
        await bench.expect_status(a, key, RunStatus.INTERRUPTED, "a run that was asked for with no attempts left")

    async def test_c13_hand_overs_are_not_counted(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        key = bench.key("c13")
        for attempt in range(1, 7):
            client, request = bench.clients[attempt % 2], bench.ask(key, limit=1)
            bench.expect_won(await client.claim(request), attempt, f"attempt {attempt} after hand-overs only")
            await client.release(key, request.token)

    async def test_c13_at_attempt_1000_hand_overs_count(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        key = bench.key("c13")
        start_ms = bench.clock.monotonic_ms()
        await _hand_round(bench, a, key, range(1, SAMPLE + 1))
        guess_ms = (bench.clock.monotonic_ms() - start_ms) * (ATTEMPTS_MAX / SAMPLE)
        if guess_ms > CHEAP_MS:
            msg = f"handing a run over {ATTEMPTS_MAX} times would take {guess_ms / 1000:.0f} s on this store"
            raise NotClaimed(msg)
        await _hand_round(bench, a, key, range(SAMPLE + 1, ATTEMPTS_MAX + 1))
        bench.expect((await a.claim(bench.ask(key))).outcome, Outcome.DONE, f"a claim after attempt {ATTEMPTS_MAX}")

    async def test_c14_renewal_moves_the_lease_end(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        longer, shorter = bench.ask(bench.key("c14"), lease_ms=LEASE_MS), bench.ask(bench.key("c14"))
        await bench.won(a, longer)
        await bench.won(a, shorter)
        bench.expect_yes(await a.renew(longer.key, longer.token, LONG_MS), "renewal by the holder")
        bench.expect_yes(await a.renew(shorter.key, shorter.token, LEASE_MS), "renewal by the holder")
        await bench.lease_over(a)
        bench.expect_refused(await b.claim(bench.ask(longer.key)), "a run renewed past its first lease end")
        bench.expect_won(await b.claim(bench.ask(shorter.key)), 2, "a run renewed for less than was left")

    async def test_c14_an_ended_lease_that_nobody_took_may_be_renewed(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        request = bench.ask(bench.key("c14"), lease_ms=LEASE_MS)
        await bench.won(a, request)
        await bench.lease_over(a)
        bench.expect_yes(await a.renew(request.key, request.token, LONG_MS), "renewal after the end, before any takeover")
        bench.expect_refused(await b.claim(bench.ask(request.key)), "a claim after that renewal")

    async def test_c14_renewal_on_another_connection(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        request = bench.ask(bench.key("c14"))
        await bench.won(a, request)
        bench.expect_yes(await b.renew(request.key, request.token, LONG_MS), "renewal with the holder's token from elsewhere")

    async def test_c14_a_batch_of_renewals_answers_each_by_itself(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        mine = [bench.ask(bench.key("c14"), lease_ms=LEASE_MS) for _ in range(3)]
        for request in mine:
            await bench.won(a, request)
        stranger = bench.ask(mine[1].key)
        items = [
            (mine[0].key, mine[0].token, LONG_MS),
            (stranger.key, stranger.token, LONG_MS),
            (mine[2].key, mine[2].token, LONG_MS),
        ]
        unknown = (bench.key("c14"), stranger.token, LONG_MS)
        bench.expect(await a.renew_many([*items, unknown]), [True, False, True, False], "a batch of four renewals")
        bench.expect(await a.renew_many([]), [], "a batch of no renewals")
        await bench.lease_over(a)
        bench.expect_refused(await b.claim(bench.ask(mine[0].key)), "the first run of the batch")
        bench.expect_won(await b.claim(bench.ask(mine[1].key)), 2, "the run that the batch did not renew")
        bench.expect_refused(await b.claim(bench.ask(mine[2].key)), "the last run of the batch")


def _store_ms(claim: Claim) -> int:
    if claim.store_now_ms is None:
        msg = "claims of this backend do not carry store_now_ms"
        raise NotClaimed(msg)
    return claim.store_now_ms


async def _hand_round(bench: Bench, client: Client, key: RunKey, attempts: range) -> None:
    for attempt in attempts:
        request = bench.ask(key, limit=1)
        bench.expect_won(await client.claim(request), attempt, f"attempt {attempt} after hand-overs only")
        await client.release(key, request.token)
