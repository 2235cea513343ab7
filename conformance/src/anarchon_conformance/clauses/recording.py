"""C18 and C19: a finished run stays finished, and the history says what happened."""

from __future__ import annotations

from dataclasses import replace

from anarchon.types import RunStatus

from anarchon_conformance.arena import Arena
from anarchon_conformance.clauses.bench import Bench
from anarchon_conformance.clauses.remembering import won_and_finished
from anarchon_conformance.suite import Suite

__all__ = ["LeaseRecordingTests", "RecordingTests"]

CLOCK_SLACK_MS = 5_000


class RecordingTests(Suite):
    """What finish and history promise on every backend."""

    async def test_c18_the_winner_can_finish(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        request = bench.ask(bench.key("c18"))
        await bench.won(a, request)
        bench.expect_yes(await a.finish(request.key, request.token), "finish by the winner")

    async def test_c18_finishing_again_is_true(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        request = bench.ask(bench.key("c18"))
        await won_and_finished(bench, a, request)
        for client in (a, b):
            bench.expect_yes(await client.finish(request.key, request.token), "the same finish, sent again")

    async def test_c18_finishing_again_changes_nothing(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        request = bench.ask(bench.key("c18"))
        await won_and_finished(bench, a, request)
        before = await a.history(request.key.job)
        await a.finish(request.key, request.token, RunStatus.FAILED, "another story")
        bench.expect(await a.history(request.key.job), before, "the history after a second finish")

    async def test_c18_a_finished_run_is_not_won_again(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        for status in (RunStatus.SUCCESS, RunStatus.FAILED, RunStatus.TIMEOUT):
            request = bench.ask(bench.key("c18"))
            await bench.won(a, request)
            await a.finish(request.key, request.token, status, "why")
            bench.expect_refused(await b.claim(bench.ask(request.key)), f"a claim of a run that ended as {status.value}")

    async def test_c18_a_finished_manual_run_and_note_stay_finished(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        for space, status in (("m1", RunStatus.SUCCESS), ("n", RunStatus.SKIPPED)):
            request = bench.ask(bench.key("c18", space=space))
            await bench.won(a, request)
            await a.finish(request.key, request.token, status, "overlap")
            bench.expect_refused(await b.claim(bench.ask(request.key)), f"a claim in the finished key space {space!r}")

    async def test_c19_a_finished_run_stands_in_the_history(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        for status, error in ((RunStatus.SUCCESS, None), (RunStatus.FAILED, "ValueError: no"), (RunStatus.TIMEOUT, "too long")):
            request = bench.ask(bench.key("c19"), instance="host-1")
            await bench.won(a, request)
            await a.finish(request.key, request.token, status, error)
            found = [
                (record.key, record.attempt, record.token, record.instance, record.status, record.error)
                for record in await b.history(request.key.job)
            ]
            wanted = [(request.key, 1, request.token, "host-1", status, error)]
            bench.expect(found, wanted, "the history right after finish said True")

    async def test_c19_times_are_the_stores(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        request = bench.ask(bench.key("c19"))
        before_ms = await bench.now_ms(a)
        await won_and_finished(bench, a, request)
        after_ms = await bench.now_ms(a)
        (record,) = await a.history(request.key.job)
        slack_ms = 1 if arena.lease else CLOCK_SLACK_MS
        finished_ms = record.finished_ms if record.finished_ms is not None else -1
        if not before_ms - slack_ms <= record.claimed_ms <= finished_ms <= after_ms + slack_ms:
            raise bench.fail(f"claimed {record.claimed_ms} and finished {finished_ms} lie outside {before_ms}..{after_ms}")

    async def test_c19_newest_slot_comes_first(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        first = bench.key("c19", ago_ms=5_000)
        keys = [replace(first, slot_ms=first.slot_ms + 100 * place) for place in range(5)]
        for key in keys:
            await won_and_finished(bench, a, bench.ask(key))
        found = [record.slot_ms for record in await a.history(first.job)]
        bench.expect(found, [key.slot_ms for key in reversed(keys)], "the slots of the history")

    async def test_c19_the_limit_keeps_the_newest(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        first = bench.key("c19", ago_ms=5_000)
        keys = [replace(first, slot_ms=first.slot_ms + 100 * place) for place in range(5)]
        for key in keys:
            await won_and_finished(bench, a, bench.ask(key))
        found = [record.slot_ms for record in await a.history(first.job, limit=2)]
        bench.expect(found, [keys[4].slot_ms, keys[3].slot_ms], "the slots of a history of two")

    async def test_c19_since_leaves_out_older_slots(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        first = bench.key("c19", ago_ms=5_000)
        keys = [replace(first, slot_ms=first.slot_ms + 100 * place) for place in range(5)]
        for key in keys:
            await won_and_finished(bench, a, bench.ask(key))
        found = [record.slot_ms for record in await a.history(first.job, since_ms=keys[3].slot_ms)]
        bench.expect(found, [keys[4].slot_ms, keys[3].slot_ms], "the slots from the fourth on")

    async def test_c19_a_claim_sent_again_is_one_record(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        bench.needs_own_claims_known()
        a, b = bench.clients
        request = bench.ask(bench.key("c19"))
        await bench.won(a, request)
        await b.claim(request)
        await a.finish(request.key, request.token)
        await a.finish(request.key, request.token)
        bench.expect(len(await a.history(request.key.job)), 1, "records of one attempt")

    async def test_c19_notes_and_manual_runs_are_shown(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        first = bench.key("c19")
        for space, status in (("m1", RunStatus.SUCCESS), ("n", RunStatus.SKIPPED)):
            request = bench.ask(replace(first, space=space))
            await bench.won(a, request)
            await a.finish(request.key, request.token, status, "paused")
        found = {(record.space, record.status) for record in await a.history(first.job)}
        bench.expect(found, {("m1", RunStatus.SUCCESS), ("n", RunStatus.SKIPPED)}, "key spaces and ends in the history")

    async def test_c19_an_unknown_job_has_no_history(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        bench.expect(await bench.clients[0].history(arena.job("c19")), [], "the history of a job that never ran")

    async def test_c19_a_long_error_does_not_lose_the_record(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        request = bench.ask(bench.key("c19"))
        await bench.won(a, request)
        await a.finish(request.key, request.token, RunStatus.FAILED, "line \u00e9\n" * 2_000)
        await bench.expect_status(a, request.key, RunStatus.FAILED, "a run that failed with a very long error")


class LeaseRecordingTests(Suite):
    """What a lease backend records besides."""

    async def test_c18_the_claim_of_a_finished_run_is_done(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        request = bench.ask(bench.key("c18"))
        await won_and_finished(bench, a, request)
        for client, again in ((a, request), (b, bench.ask(request.key))):
            bench.expect((await client.claim(again)).outcome.value, "done", "a claim of a finished run")

    async def test_c19_attempts_come_newest_first(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c19")
        for number, client in enumerate((a, b, a), start=1):
            request = bench.ask(key)
            bench.expect_won(await client.claim(request), number, "the next attempt of a released run")
            await client.release(key, request.token)
        found = [(record.attempt, record.status) for record in await a.history(key.job)]
        bench.expect(found, [(number, RunStatus.HANDED_OVER) for number in (3, 2, 1)], "the attempts of the history")

    async def test_c19_a_token_that_wins_again_is_an_attempt_of_its_own(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c19")
        first, second = bench.ask(key), bench.ask(key)
        for number, (client, request) in enumerate(((a, first), (b, second), (a, first)), start=1):
            bench.expect_won(await client.claim(request), number, "the next attempt of a released run")
            await client.release(key, request.token)
        found = [(record.attempt, record.token) for record in await a.history(key.job)]
        bench.expect(found, [(3, first.token), (2, second.token), (1, first.token)], "the attempts of the history")

    async def test_c19_a_running_run_stands_in_the_history(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        request = bench.ask(bench.key("c19"))
        await bench.won(a, request)
        found = [(record.token, record.status) for record in await b.history(request.key.job)]
        bench.expect(found, [(request.token, RunStatus.RUNNING)], "the history of a running run")
