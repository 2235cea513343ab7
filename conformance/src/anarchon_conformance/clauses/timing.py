"""C9 and C10: early, late, paused, overlapping: what a fresh claim is refused for."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from anarchon.types import Claim, Outcome, RunStatus

from anarchon_conformance.arena import Arena
from anarchon_conformance.clauses.bench import LEASE_MS, Bench
from anarchon_conformance.clauses.remembering import won_and_finished
from anarchon_conformance.suite import Suite
from anarchon_conformance.target import NotClaimed

__all__ = ["LeaseTimingTests", "TimingTests"]

AHEAD_MS = 30_000
BEHIND_MS = 30_000
POLLS_MAX = 2_000


def _needs_store_clock(arena: Arena) -> None:
    if not arena.limits.store_clock:
        msg = "limits.store_clock is False"
        raise NotClaimed(msg)


class TimingTests(Suite):
    """Early and late, where the store judges them."""

    async def test_c09_a_slot_in_the_future_is_early(self, arena: Arena) -> None:
        _needs_store_clock(arena)
        bench = await Bench.of(arena)
        (a,) = bench.clients
        key = bench.key("c09", ago_ms=-AHEAD_MS)
        claim = await a.claim(bench.ask(key))
        bench.expect(claim.outcome, Outcome.EARLY, f"a slot {AHEAD_MS} ms ahead of the store's clock")
        if claim.wait_ms is None or not 0 < claim.wait_ms <= AHEAD_MS + 1_000:
            raise bench.fail(f"EARLY says to wait {claim.wait_ms} ms for a slot {AHEAD_MS} ms ahead")

    async def test_c09_an_old_slot_is_late(self, arena: Arena) -> None:
        _needs_store_clock(arena)
        bench = await Bench.of(arena)
        claim = await bench.clients[0].claim(bench.ask(bench.key("c09", ago_ms=BEHIND_MS), max_late_ms=BEHIND_MS // 2))
        bench.expect(claim.outcome, Outcome.LATE, f"a slot {BEHIND_MS} ms old with max_late_ms {BEHIND_MS // 2}")

    async def test_c09_a_refused_claim_writes_nothing(self, arena: Arena) -> None:
        _needs_store_clock(arena)
        bench = await Bench.of(arena)
        (a,) = bench.clients
        late = bench.key("c09", ago_ms=BEHIND_MS)
        early = replace(late, slot_ms=late.slot_ms + BEHIND_MS + AHEAD_MS)
        await a.claim(bench.ask(late, max_late_ms=1_000))
        await a.claim(bench.ask(early))
        bench.expect(await a.history(late.job), [], "the history after an early and a late claim")
        await bench.won(a, bench.ask(late), "the slot that was late for somebody less patient")

    async def test_c09_manual_runs_and_notes_are_never_early_or_late(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        for space in ("m1", "n"):
            for ago_ms in (BEHIND_MS, -AHEAD_MS):
                key = bench.key("c09", ago_ms=ago_ms, space=space)
                await bench.won(bench.clients[0], bench.ask(key, max_late_ms=1_000), f"key space {space!r}, {ago_ms} ms ago")

    async def test_c09_early_ends_at_the_slot_on_the_stores_clock(self, arena: Arena) -> None:
        _needs_store_clock(arena)
        bench = await Bench.of(arena)
        (a,) = bench.clients
        key = bench.key("c09")
        key = replace(key, slot_ms=await bench.now_ms(a) + 40)
        for _ in range(POLLS_MAX):
            claim = await a.claim(bench.ask(key))
            now_ms = claim.store_now_ms
            if now_ms is None:
                msg = "claims of this backend do not carry store_now_ms"
                raise NotClaimed(msg)
            early = claim.outcome is Outcome.EARLY
            if early != (now_ms < key.slot_ms):
                raise bench.fail(f"slot {key.slot_ms} is {claim.outcome.value} at {now_ms} on the store's clock")
            if early and claim.wait_ms != key.slot_ms - now_ms:
                raise bench.fail(f"slot {key.slot_ms} says to wait {claim.wait_ms} ms at {now_ms} on the store's clock")
            if not early:
                return bench.expect_won(claim, 1, "the slot whose time has come")
            await bench.clock.sleep_ms(3)
        raise bench.fail("the slot stayed early")


class LeaseTimingTests(Suite):
    """Overlap and pause, decided with the claim; and what lateness does not touch."""

    async def test_c09_a_takeover_is_never_late(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c09", ago_ms=3_000)
        await bench.won(a, bench.ask(key, lease_ms=LEASE_MS))
        await bench.lease_over(a)
        bench.expect_won(await b.claim(bench.ask(key, max_late_ms=100)), 2, "a takeover long after max_late_ms")

    async def test_c09_a_refused_claim_leaves_no_job(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        late = bench.key("c09", ago_ms=BEHIND_MS)
        await a.claim(bench.ask(late, max_late_ms=1_000))
        await a.claim(bench.ask(replace(late, slot_ms=late.slot_ms + BEHIND_MS + AHEAD_MS)))
        bench.expect((await a.check(late)), [None], "the run of a late claim")
        bench.expect(await a.job(late.job), None, "the job of nothing but refused claims")

    async def test_c10_overlap_refuses_while_another_run_is_alive(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c10", ago_ms=2_000)
        await bench.won(a, bench.ask(key))
        claim = await b.claim(bench.ask(replace(key, slot_ms=key.slot_ms + 1_000), exclusive=True))
        bench.expect((claim.outcome, claim.other), (Outcome.OVERLAP, key), "the next slot while the first one runs")

    async def test_c10_an_older_slot_overlaps_as_well(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        key = bench.key("c10", ago_ms=2_000)
        await bench.won(a, bench.ask(key))
        claim = await a.claim(bench.ask(replace(key, slot_ms=key.slot_ms - 1_000), exclusive=True))
        bench.expect((claim.outcome, claim.other), (Outcome.OVERLAP, key), "an older slot while a newer one runs")

    async def test_c10_overlap_ends_with_the_other_run(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        request = bench.ask(bench.key("c10", ago_ms=2_000))
        await won_and_finished(bench, a, request)
        later = replace(request.key, slot_ms=request.key.slot_ms + 1_000)
        await bench.won(a, bench.ask(later, exclusive=True), "the next slot once the first one finished")

    async def test_c10_an_ended_lease_does_not_overlap(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c10", ago_ms=2_000)
        await bench.won(a, bench.ask(key, lease_ms=LEASE_MS))
        await bench.lease_over(a)
        later = replace(key, slot_ms=key.slot_ms + 1_000)
        await bench.won(b, bench.ask(later, exclusive=True), "the next slot once the first one's lease is over")

    async def test_c10_overlap_is_decided_with_the_claim(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 4)
        for _ in range(4):
            first = bench.key("c10", ago_ms=9_000)
            keys = [replace(first, slot_ms=first.slot_ms + 100 * place) for place in range(len(bench.clients))]
            answers = await asyncio.gather(
                *(client.claim_surely(bench.ask(key, exclusive=True)) for client, key in zip(bench.clients, keys, strict=True))
            )
            found = Counter(claim.outcome for claim in answers)
            bench.expect(found, Counter({Outcome.WON: 1, Outcome.OVERLAP: 3}), "four slots of one job claimed at once")

    async def test_c10_a_batch_does_not_overlap_itself(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        first = bench.key("c10", ago_ms=9_000)
        keys = [replace(first, slot_ms=first.slot_ms + 100 * place) for place in range(3)]
        answers = await bench.clients[0].claim_many([bench.ask(key, exclusive=True) for key in keys])
        found = Counter(answer.outcome for answer in answers if isinstance(answer, Claim))
        bench.expect(found, Counter({Outcome.OVERLAP: 2, Outcome.WON: 1}), "three slots of one job in one batch")

    async def test_c10_manual_runs_overlap_both_ways(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        for first, second in (("", "m1"), ("m1", ""), ("m1", "m2")):
            key = bench.key("c10", space=first)
            await bench.won(a, bench.ask(key))
            claim = await a.claim(bench.ask(replace(key, space=second), exclusive=True))
            bench.expect((claim.outcome, claim.other), (Outcome.OVERLAP, key), f"space {second!r} while {first!r} runs")

    async def test_c10_notes_neither_overlap_nor_are_refused(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        key = bench.key("c10")
        await bench.won(a, bench.ask(replace(key, space="n")))
        await bench.won(a, bench.ask(key, exclusive=True), "a slot whose note is being written")
        other = replace(key, slot_ms=key.slot_ms - 100, space="n")
        await bench.won(a, bench.ask(other, exclusive=True), "a note while a run of the job is alive")

    async def test_c10_a_paused_job_is_not_started(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c10")
        await a.pause(key.job)
        bench.expect((await b.claim(bench.ask(key))).outcome, Outcome.PAUSED, "a fresh claim of a paused job")
        bench.expect(await b.history(key.job), [], "the history of a job that was paused before its first run")

    async def test_c10_a_resumed_job_is_started(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c10")
        await a.pause(key.job)
        await a.pause(key.job)
        await b.resume(key.job)
        await bench.won(a, bench.ask(key), "a fresh claim after pause, pause, resume")

    async def test_c10_pausing_again_changes_nothing(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        key = bench.key("c10")
        await a.pause(key.job)
        before = await a.job(key.job)
        await bench.clock.sleep_ms(3)
        await a.pause(key.job)
        bench.expect(await a.job(key.job), before, "the job after a second pause")
        if before is None or before.paused_ms is None:
            raise bench.fail(f"a paused job is shown as {before}")

    async def test_c10_a_pause_does_not_touch_other_jobs(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        paused, other = bench.key("c10"), bench.key("c10")
        await a.pause(paused.job)
        await bench.won(a, bench.ask(other), "a job beside a paused one")

    async def test_c10_a_pause_stops_first_claims_only(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c10")
        request = bench.ask(key)
        await bench.won(a, request)
        await a.release(key, request.token)
        await a.pause(key.job)
        bench.expect_won(await b.claim(bench.ask(key)), 2, "the next attempt of a run whose job is paused")
        await bench.won(b, bench.ask(replace(key, space="m1")), "a manual run of a paused job")
        note = bench.ask(replace(key, space="n"))
        await bench.won(b, note, "a note of a paused job")
        await b.finish(note.key, note.token, RunStatus.SKIPPED, "paused")
