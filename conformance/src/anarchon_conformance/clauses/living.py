"""C21 to C23 and C25: opening, cancelling, broken connections, and clocks that step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from anarchon.errors import BackendError
from anarchon.types import Outcome, RunStatus

from anarchon_conformance.arena import Arena
from anarchon_conformance.clauses.bench import LONG_MS, Bench
from anarchon_conformance.clauses.claiming import STEPS, answer_of, gate_of, gated_client
from anarchon_conformance.clauses.client import Client
from anarchon_conformance.clauses.remembering import all_refused, refused_for_good, some_won, won_and_finished
from anarchon_conformance.gate import Mode
from anarchon_conformance.suite import Suite, Violation

__all__ = ["LeaseLivingTests", "LivingTests"]

TURNS = (0, 1, 2, 3, 4, 5, 6, 8, 11, 15, 25, 50, 100, 200, 400)
"""After how many turns of the loop a call is cancelled: each of the first awaits, then ever later ones."""
UNCANCELLED_MAX = 2
SILENCE_MS = 300.0
GRACE_MS = 1_000.0
HOUR_MS = 3_600_000


class LivingTests(Suite):
    """What every backend survives."""

    async def test_c21_many_open_at_once(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        crowd = [arena.target.make(arena.target.url) for _ in range(8)]
        try:
            await asyncio.gather(*(backend.open() for backend in crowd))
            request = bench.ask(bench.key("c21"))
            answers = await asyncio.gather(
                *(
                    Client(str(place), backend, bench.story).claim_surely(replace(request, token=f"{place:032x}"))
                    for place, backend in enumerate(crowd)
                )
            )
            bench.expect(sum(claim.won for claim in answers), 1, "winners among eight clients opened at once")
        finally:
            for backend in crowd:
                await backend.close()

    async def test_c21_opening_twice_works(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        request = bench.ask(bench.key("c21"))
        await bench.won(a, request)
        await a.backend.open()
        await won_and_finished(bench, a, bench.ask(bench.key("c21")))
        bench.expect_refused(await a.claim(bench.ask(request.key)), "a run that was won before the second open")

    async def test_c21_opening_twice_at_once_works(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        twice = arena.target.make(arena.target.url)
        try:
            await asyncio.gather(twice.open(), twice.open())
            await bench.won(Client("T", twice, bench.story), bench.ask(bench.key("c21")))
        finally:
            await twice.close()

    async def test_c21_opening_after_close_works(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        again = await bench.another()
        request = bench.ask(bench.key("c21"))
        await bench.won(again, request)
        await again.backend.close()
        await again.backend.open()
        bench.expect_refused(await again.claim(bench.ask(request.key)), "a run that was won before close and open")

    async def test_c22_a_cancelled_claim_is_all_or_nothing(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients

        async def one(turns: int) -> bool:
            request = bench.ask(bench.key("c22"))
            cancelled = await bench.cancel_after(turns, a.claim(request))
            if arena.limits.resolves_unknown:
                bench.expect_won(await a.claim_surely(request), 1, f"the claim, asked again after a cancel at turn {turns}")
                for client in (a, b):  # the same client shows an answer that was left over from the cancelled call
                    bench.expect_refused(await client.claim(bench.ask(request.key)), "a stranger's claim after that")
            else:
                await b.claim(bench.ask(request.key))
                bench.expect_refused(await a.claim(bench.ask(request.key)), "a third claim of a run that somebody must hold")
            return cancelled

        await _at_every_turn(one)
        await _usable(bench, a)

    async def test_c22_a_cancelled_finish_is_all_or_nothing(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients

        async def one(turns: int) -> bool:
            request = bench.ask(bench.key("c22"))
            await bench.won(a, request)
            cancelled = await bench.cancel_after(turns, a.finish(request.key, request.token))
            bench.expect_yes(await a.finish(request.key, request.token), f"finish, sent again after a cancel at turn {turns}")
            found = [(record.attempt, record.status) for record in await b.history(request.key.job)]
            bench.expect(found, [(1, RunStatus.SUCCESS)], "the history after that")
            return cancelled

        await _at_every_turn(one)
        await _usable(bench, a)

    async def test_c22_a_cancelled_batch_is_all_or_nothing_for_each_item(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        bench.needs_own_claims_known()
        a, b = bench.clients

        async def one(turns: int) -> bool:
            requests = [bench.ask(bench.key("c22")) for _ in range(3)]
            cancelled = await bench.cancel_after(turns, a.claim_many(requests))
            for request in requests:
                bench.expect_won(await a.claim_surely(request), 1, f"an item, asked again after a cancel at turn {turns}")
                bench.expect_refused(await b.claim(bench.ask(request.key)), "a stranger's claim after that")
            return cancelled

        await _at_every_turn(one)

    async def test_c22_a_cancelled_open_can_be_repeated(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        for turns in (0, 1, 2, 3, 5, 8, 20, 80):
            backend = arena.target.make(arena.target.url)
            try:
                await bench.cancel_after(turns, backend.open())
                await backend.open()
                await bench.won(Client("O", backend, bench.story), bench.ask(bench.key("c22")), "a claim after the second open")
            finally:
                await backend.close()

    async def test_c22_cancelling_one_of_many_calls_leaves_the_others(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        for turns in (0, 1, 3, 10, 40):
            requests = [bench.ask(bench.key("c22")) for _ in range(4)]
            others = [asyncio.ensure_future(a.claim_surely(request)) for request in requests]
            await bench.cancel_after(turns, a.claim(bench.ask(bench.key("c22"))))
            for claim in await asyncio.gather(*others):
                bench.expect_won(claim, 1, f"a claim beside one that was cancelled at turn {turns}")

    async def test_c23_a_cut_connection_does_not_poison_the_next_call(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        async with gate_of(arena) as gate, gated_client(bench, gate) as guarded:
            for _ in range(3):
                gate.cut_now()
                await _recovers(bench, guarded, "after an idle connection was cut")

    async def test_c23_a_reply_lost_in_any_step_does_not_poison_the_next_call(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        async with gate_of(arena) as gate, gated_client(bench, gate) as guarded:
            for step in range(STEPS):
                async with gate.fault(Mode.CUT_AFTER, count=1, after=step):
                    await answer_of(guarded, bench.ask(bench.key("c23")))
                await _recovers(bench, guarded, f"after the reply number {step + 1} of a claim was lost")

    async def test_c23_a_silent_connection_ends_with_the_deadline(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        async with gate_of(arena) as gate, gated_client(bench, gate) as guarded:
            async with gate.fault(Mode.HALF_OPEN):
                await _ends(bench, guarded, SILENCE_MS)
            await _recovers(bench, guarded, "after a silent connection came back as a reset")

    async def test_c23_a_store_that_is_away_is_an_error_not_a_hang(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        async with gate_of(arena) as gate, gated_client(bench, gate) as guarded:
            async with gate.fault(Mode.CUT_BEFORE):
                claim = await answer_of(guarded, bench.ask(bench.key("c23")))
                if claim is not None:
                    raise bench.fail(f"a store that nothing reaches answers {claim.outcome.value}")
            await _recovers(bench, guarded, "after the store came back")

    async def test_c23_after_a_restart_of_the_store_the_next_call_works_or_fails(self, arena: Arena) -> None:
        arena.target.require("restart_store")
        bench = await Bench.of(arena, 2)
        keys = await some_won(bench, bench.clients[0]) if arena.limits.durable else []
        await arena.target.restart_store()
        for client in bench.clients:
            await _recovers(bench, client, "after the store was restarted")
        try:  # in here, because a restart is what takes longest
            await all_refused(bench, keys)
        except Violation as found:
            raise Violation(found.sentence, clause="C6", story=found.story) from None

    async def test_c25_a_clock_step_does_not_reopen_a_finished_run(self, arena: Arena) -> None:
        arena.target.require("step_clock")
        bench = await Bench.of(arena)
        (a,) = bench.clients
        for delta_ms in (HOUR_MS, -HOUR_MS):
            request = bench.ask(bench.key("c25"))
            await won_and_finished(bench, a, request)
            await arena.target.step_clock(delta_ms)
            try:
                await refused_for_good(bench, a, request.key, f"a finished run after the store's clock stepped {delta_ms} ms")
            finally:
                await arena.target.step_clock(-delta_ms)
            await refused_for_good(bench, a, request.key, "a finished run after the store's clock stepped back")


class LeaseLivingTests(Suite):
    """What a lease backend survives besides."""

    async def test_c22_a_cancelled_renewal_is_all_or_nothing(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        request = bench.ask(bench.key("c22"))
        await bench.won(a, request)

        async def one(turns: int) -> bool:
            cancelled = await bench.cancel_after(turns, a.renew(request.key, request.token, LONG_MS))
            bench.expect_yes(await a.renew(request.key, request.token, LONG_MS), f"renewal after a cancel at turn {turns}")
            bench.expect((await b.claim(bench.ask(request.key))).outcome, Outcome.RUNNING, "a stranger's claim after that")
            return cancelled

        await _at_every_turn(one)
        await _usable(bench, a)

    async def test_c22_a_cancelled_release_is_all_or_nothing(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients

        async def one(turns: int) -> bool:
            request = bench.ask(bench.key("c22"))
            await bench.won(a, request)
            cancelled = await bench.cancel_after(turns, a.release(request.key, request.token))
            await a.release(request.key, request.token)
            bench.expect_won(await b.claim(bench.ask(request.key)), 2, f"a claim after a release cancelled at turn {turns}")
            found = [(record.attempt, record.status) for record in await b.history(request.key.job)]
            bench.expect(found, [(2, RunStatus.RUNNING), (1, RunStatus.HANDED_OVER)], "the history after that")
            return cancelled

        await _at_every_turn(one)
        await _usable(bench, a)

    async def test_c22_cancelled_looks_leave_the_backend_usable(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        request = bench.ask(bench.key("c22"))
        await bench.won(a, request)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: a.check(request.key),
            lambda: a.unfinished(request.key.job),
            lambda: a.history(request.key.job),
            lambda: a.job(request.key.job),
            lambda: a.pause(bench.key("c22").job),
        ]
        for call in calls:
            for turns in (0, 1, 2, 3, 5, 8, 20, 80):
                await bench.cancel_after(turns, _awaited(call))
            await _usable(bench, a)

    async def test_c25_a_clock_step_does_not_double_a_running_attempt(self, arena: Arena) -> None:
        arena.target.require("step_clock")
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        for delta_ms in (HOUR_MS, -HOUR_MS):
            request = bench.ask(bench.key("c25"))
            await bench.won(a, request)
            await arena.target.step_clock(delta_ms)
            try:
                claim = await b.claim(bench.ask(request.key))
                wanted = (Outcome.WON, 2) if delta_ms > 0 else (Outcome.RUNNING, 0)
                bench.expect((claim.outcome, claim.attempt), wanted, f"a claim after the store's clock stepped {delta_ms} ms")
            finally:
                await arena.target.step_clock(-delta_ms)

    async def test_c25_attempts_stay_in_order_when_the_clock_goes_back(self, arena: Arena) -> None:
        arena.target.require("step_clock")
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c25", ago_ms=2 * HOUR_MS)
        request = bench.ask(key, max_late_ms=4 * HOUR_MS, keep_ms=8 * HOUR_MS)
        await bench.won(a, request)
        await arena.target.step_clock(-HOUR_MS)
        try:
            await a.release(key, request.token)
            again = bench.ask(key, max_late_ms=4 * HOUR_MS, keep_ms=8 * HOUR_MS)
            bench.expect_won(await b.claim(again), 2, "the next attempt of a released run")
        finally:
            await arena.target.step_clock(HOUR_MS)
        found = [record.attempt for record in await a.history(key.job)]
        bench.expect(found, [2, 1], "the attempts of the history after the store's clock went back and forth")


async def _awaited(call: Callable[[], Awaitable[object]]) -> object:
    return await call()


async def _at_every_turn(one: Callable[[int], Awaitable[bool]]) -> None:
    """Cancel a call after ever more turns, until it was over before its cancellation a few times."""
    ended = 0
    for turns in TURNS:
        ended += not await one(turns)
        if ended >= UNCANCELLED_MAX:
            return


async def _usable(bench: Bench, client: Client) -> None:
    await won_and_finished(bench, client, bench.ask(bench.key("use")))


async def _recovers(bench: Bench, client: Client, what: str) -> None:
    """Insist that calls work or fail within their deadline, and that one of the first few works (C23)."""
    for _ in range(4):
        await _ends(bench, client, float(client.limits.call_timeout_ms))
        if await answer_of(client, bench.ask(bench.key("c23"))) is not None:
            return await won_and_finished(bench, client, bench.ask(bench.key("c23")))
    raise bench.fail(f"four calls in a row failed {what}")


async def _ends(bench: Bench, client: Client, deadline_ms: float) -> None:
    """Make a call with the deadline that the core would set, and insist that it ends soon after."""

    async def call() -> None:
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                await client.claim(bench.ask(bench.key("c23")))
        except (BackendError, TimeoutError):
            return

    task = asyncio.ensure_future(call())
    _, stuck = await asyncio.wait({task}, timeout=(deadline_ms + GRACE_MS) / 1000)
    if stuck:
        task.cancel()
        raise bench.fail(f"a call with a deadline of {deadline_ms:g} ms had not ended {GRACE_MS:g} ms after it")
    await task
