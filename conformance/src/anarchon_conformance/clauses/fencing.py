"""C15 to C17: what an old token can no longer do, how a run is given back, and what a look may say."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from anarchon.types import ClaimRequest, Outcome, RunKey, RunStatus, RunView, new_token

from anarchon_conformance.arena import Arena
from anarchon_conformance.clauses.bench import LEASE_MS, LONG_MS, Bench
from anarchon_conformance.clauses.client import Client
from anarchon_conformance.clauses.remembering import won_and_finished
from anarchon_conformance.suite import Suite

__all__ = ["FencingTests"]

DELAY_MS = 200
POLLS_MAX = 1_000
LOOKS = 15


class FencingTests(Suite):
    """Tokens that hold no run, and runs that no token holds."""

    async def test_c15_after_a_takeover_the_old_token_changes_nothing(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        old = bench.ask(bench.key("c15"), lease_ms=LEASE_MS, instance="old")
        await bench.won(a, old)
        await bench.lease_over(a)
        new = bench.ask(old.key, instance="new")
        bench.expect_won(await b.claim(new), 2, "the takeover")
        await _powerless(bench, a, old, "the token that was taken over")
        await bench.expect_held(b, new, 2, "the new holder's claim, sent again")

    async def test_c15_after_the_finish_the_token_holds_nothing(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        request = bench.ask(bench.key("c15"))
        await won_and_finished(bench, a, request)
        before = await a.history(request.key.job)
        bench.expect_no(await a.renew(request.key, request.token, LONG_MS), "renew after finish")
        bench.expect_no(await a.release(request.key, request.token), "release after finish")
        bench.expect(await a.history(request.key.job), before, "the history of the finished run")

    async def test_c15_after_a_release_the_token_holds_nothing(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        request = bench.ask(bench.key("c15"))
        await bench.won(a, request)
        bench.expect_yes(await a.release(request.key, request.token, delay_ms=LONG_MS), "release by the holder")
        await _powerless(bench, a, request, "the token that released the run")

    async def test_c15_after_a_release_the_same_claim_is_a_strangers(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        waiting, free = bench.ask(bench.key("c15")), bench.ask(bench.key("c15"))
        for request, delay_ms in ((waiting, LONG_MS), (free, 0)):
            await bench.won(a, request)
            await a.release(request.key, request.token, delay_ms=delay_ms)
        bench.expect((await a.claim(waiting)).outcome, Outcome.RUNNING, "the released claim, sent again before the delay is over")
        bench.expect_won(await a.claim(free), 2, "the released claim, sent again once the run is free")

    async def test_c15_after_an_interruption_the_token_holds_nothing(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        request = bench.ask(bench.key("c15"), lease_ms=LEASE_MS, limit=1)
        await bench.won(a, request)
        await bench.lease_over(a)
        bench.expect((await b.claim(bench.ask(request.key, limit=1))).outcome, Outcome.DONE, "a claim with no attempt left")
        await _powerless(bench, a, request, "the token of an interrupted run")

    async def test_c15_a_token_that_never_won_holds_nothing(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        holder = bench.ask(bench.key("c15"))
        await bench.won(a, holder)
        await _powerless(bench, a, bench.ask(holder.key), "a token that never won")
        await bench.expect_held(a, holder, 1, "the holder's claim, sent again")

    async def test_c15_a_token_holds_its_own_run_only(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        first = bench.ask(bench.key("c15"))
        second = bench.ask(replace(first.key, slot_ms=first.key.slot_ms + 1))
        await bench.won(a, first)
        await bench.won(a, second)
        await _powerless(bench, a, replace(second, token=first.token), "the token of the neighbouring slot")
        await _powerless(bench, a, replace(first, key=replace(first.key, space="m1")), "the token in another key space")

    async def test_c15_a_run_that_nobody_claimed_is_nobodys(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        await _powerless(bench, bench.clients[0], bench.ask(bench.key("c15")), "a token for a run that does not exist")

    async def test_c15_a_late_finish_before_any_takeover_counts(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        request = bench.ask(bench.key("c15"), lease_ms=LEASE_MS)
        await bench.won(a, request)
        await bench.lease_over(a)
        bench.expect_yes(await a.finish(request.key, request.token), "finish after the lease's end, before any takeover")
        bench.expect((await b.claim(bench.ask(request.key))).outcome, Outcome.DONE, "a claim after that finish")

    async def test_c16_a_handed_over_run_is_free_at_once(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        request = bench.ask(bench.key("c16"))
        await bench.won(a, request)
        await a.release(request.key, request.token)
        await bench.expect_status(a, request.key, RunStatus.HANDED_OVER, "a run that was handed over")
        bench.expect_won(await b.claim(bench.ask(request.key)), 2, "a claim right after the hand-over")

    async def test_c16_a_released_run_has_one_next_winner(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 4)
        for _ in range(4):
            request = bench.ask(bench.key("c16"))
            await bench.won(bench.clients[0], request)
            await bench.clients[0].release(request.key, request.token)
            answers = await asyncio.gather(*(client.claim_surely(bench.ask(request.key)) for client in bench.clients))
            found = sorted((claim.outcome.value, claim.attempt) for claim in answers)
            bench.expect(found, [("running", 0)] * 3 + [("won", 2)], "four claims of one released run at once")

    async def test_c16_a_delay_ends_on_the_stores_clock(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        request = bench.ask(bench.key("c16"))
        await bench.won(a, request)
        earliest_ms = await bench.now_ms(a) + DELAY_MS
        await a.release(request.key, request.token, delay_ms=DELAY_MS)
        latest_ms = await bench.now_ms(a) + DELAY_MS
        for _ in range(POLLS_MAX):
            before_ms = await bench.now_ms(b)
            claim = await b.claim(bench.ask(request.key))
            after_ms = await bench.now_ms(b)
            if claim.won and after_ms < earliest_ms - 1:
                raise bench.fail(f"a run released until {earliest_ms} was won before {after_ms} on the store's clock")
            if not claim.won and before_ms > latest_ms + 1:
                raise bench.fail(f"a run released until {latest_ms} answers {claim.outcome.value} after {before_ms}")
            if claim.won:
                return bench.expect_won(claim, 2, "the first claim after the delay")
            bench.expect(claim.outcome, Outcome.RUNNING, "a claim before the delay is over")
            await bench.clock.sleep_ms(5)
        raise bench.fail("the delay did not end")

    async def test_c16_a_delay_counts_for_overlap_until_it_is_over(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        waiting, free = bench.ask(bench.key("c16")), bench.ask(bench.key("c16"))
        for request, delay_ms in ((waiting, LONG_MS), (free, 0)):
            await bench.won(a, request)
            await a.release(request.key, request.token, delay_ms=delay_ms)
        claim = await a.claim(bench.ask(replace(waiting.key, slot_ms=waiting.key.slot_ms + 1), exclusive=True))
        bench.expect((claim.outcome, claim.other), (Outcome.OVERLAP, waiting.key), "a slot beside a run released with a delay")
        beside = bench.ask(replace(free.key, slot_ms=free.key.slot_ms + 1), exclusive=True)
        await bench.won(a, beside, "a slot beside a run that is free")

    async def test_c16_a_retry_is_counted_and_recorded(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        request = bench.ask(bench.key("c16"))
        await bench.won(a, request)
        await a.release(request.key, request.token, counted=True, error="ValueError: no")
        (record,) = await a.history(request.key.job)
        bench.expect((record.status, record.error), (RunStatus.FAILED, "ValueError: no"), "the record of a counted release")
        bench.expect((await a.claim(bench.ask(request.key, limit=1))).outcome, Outcome.DONE, "a second attempt of one")

    async def test_c16_a_hand_over_among_counted_attempts(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        key = bench.key("c16")
        for attempt, counted in enumerate((True, False, True), start=1):
            request = bench.ask(key, limit=2)
            bench.expect_won(await a.claim(request), attempt, f"attempt {attempt}, one of them handed over")
            await a.release(key, request.token, counted=counted)
        bench.expect((await a.claim(bench.ask(key, limit=2))).outcome, Outcome.DONE, "a third counted attempt of two")

    async def test_c17_a_run_that_nobody_claimed_is_unknown(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        key = bench.key("c17")
        bench.expect(await a.check(key), [None], "a look at a run that does not exist")
        bench.expect(await a.job(key.job), None, "the job after the look")

    async def test_c17_a_look_answers_in_the_order_of_the_question(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        keys = [bench.key("c17") for _ in range(3)]
        for key in keys:
            await bench.won(a, bench.ask(key))
        asked = [keys[2], bench.key("c17"), keys[0], keys[1], keys[0]]
        found = [None if view is None else view.key for view in await a.check(*asked)]
        bench.expect(found, [keys[2], None, keys[0], keys[1], keys[0]], "the runs of a look")
        bench.expect(await a.check(), [], "a look at nothing")

    async def test_c17_a_renewed_run_is_never_shown_free(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        request = bench.ask(bench.key("c17"), instance="host-1")
        await bench.won(a, request)

        async def renewals() -> None:
            for _ in range(LOOKS):
                await a.renew(request.key, request.token, LONG_MS)

        async def looks() -> list[RunView]:
            return [await bench.view(b, request.key) for _ in range(LOOKS)]

        _, views = await asyncio.gather(renewals(), looks())
        for view in views:
            found = (view.status, view.attempt, view.instance, view.left_ms >= 1)
            bench.expect(found, (RunStatus.RUNNING, 1, "host-1", True), "a look at a live run")

    async def test_c17_a_live_run_is_not_shown_free_after_a_takeover(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c17")
        await bench.won(a, bench.ask(key, lease_ms=LEASE_MS))
        await bench.lease_over(a)
        await bench.view(a, key)
        bench.expect_won(await b.claim(bench.ask(key)), 2, "the takeover")
        view = await bench.view(a, key)
        if view.left_ms < 1:
            raise bench.fail("the run is shown free right after it was taken over")

    async def test_c17_a_look_writes_nothing(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c17")
        await bench.won(a, bench.ask(key, lease_ms=LEASE_MS))
        await bench.lease_over(a)
        before = await a.history(key.job)
        await b.check(key)
        await b.unfinished(key.job)
        bench.expect(await a.history(key.job), before, "the history after looks at an ended run")
        bench.expect_won(await b.claim(bench.ask(key)), 2, "the claim after looks at an ended run")

    async def test_c17_a_finished_run_is_not_shown_free(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        request = bench.ask(bench.key("c17"))
        await won_and_finished(bench, a, request)
        view = await bench.view(a, request.key)
        if not view.status.final and view.left_ms < 1:
            raise bench.fail("a finished run is shown free")

    async def test_c17_unfinished_lists_oldest_first_without_notes(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        first = bench.key("c17", ago_ms=5_000)
        keys = [replace(first, slot_ms=first.slot_ms + place * 100) for place in range(4)]
        running, released, finished, newest = (bench.ask(key) for key in keys)
        for request in (newest, running, finished, released):
            await bench.won(a, request)
        await a.release(released.key, released.token)
        await a.finish(finished.key, finished.token)
        await bench.won(a, bench.ask(replace(first, space="n")))
        await bench.won(a, bench.ask(bench.key("c17")), "a run of a job that nobody asks about")
        found = [view.key for view in await a.unfinished(first.job)]
        bench.expect(found, [running.key, released.key, newest.key], "the unfinished runs")
        bench.expect(await a.unfinished(), [], "the unfinished runs of no job")


async def _powerless(bench: Bench, client: Client, request: ClaimRequest, what: str) -> None:
    """Insist that a token changes nothing: every call says False, and the store looks the same afterwards."""
    key, token = request.key, request.token
    before = await _picture(client, key)
    bench.expect_no(await client.renew(key, token, LONG_MS), f"renew with {what}")
    bench.expect_no(await client.release(key, token, counted=True, error="no"), f"release with {what}")
    bench.expect_no(await client.finish(key, token, RunStatus.FAILED, "no"), f"finish with {what}")
    bench.expect(await client.renew_many([(key, new_token(), LONG_MS)]), [False], "renew_many with a new token")
    bench.expect(await _picture(client, key), before, f"the store after calls with {what}")


async def _picture(client: Client, key: RunKey) -> tuple[object, ...]:
    (view,) = await client.check(key)
    shown = None if view is None else (view.status, view.attempt, view.instance, view.left_ms > 0)
    return (shown, await client.history(key.job))
