"""C6 to C8 and C20: what a store never forgets, and what it never mixes up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from anarchon.errors import OptionError
from anarchon.types import ClaimRequest, Limits, Outcome, RunKey

from anarchon_conformance.arena import Arena
from anarchon_conformance.clauses.bench import Bench
from anarchon_conformance.clauses.client import Client
from anarchon_conformance.clauses.names import hostile_names, unprintable_names
from anarchon_conformance.suite import Suite
from anarchon_conformance.target import NotClaimed

__all__ = ["LeaseRememberingTests", "RememberingTests", "won_and_finished"]

RUNS = 8


async def won_and_finished(bench: Bench, client: Client, request: ClaimRequest) -> None:
    """Take a run through to its end."""
    await bench.won(client, request)
    if not await client.finish(request.key, request.token):
        raise bench.fail("finish says False to the token that just won")


async def some_won(bench: Bench, client: Client) -> list[RunKey]:
    """Win runs of ten jobs and finish half of them."""
    keys = [bench.key("c06") for _ in range(10)]
    for place, key in enumerate(keys):
        request = bench.ask(key)
        await bench.won(client, request)
        if place % 2:
            await client.finish(key, request.token)
    return keys


async def all_refused(bench: Bench, keys: Iterable[RunKey]) -> None:
    """Insist that a store which came back remembers won runs (C6)."""
    fresh = await bench.another()
    for key in keys:
        await refused_for_good(bench, fresh, key, "a won run after the store came back")


async def refused_for_good(bench: Bench, client: Client, key: RunKey, what: str) -> None:
    """Insist that nobody can win a run again; once pruned, LATE says so too (C6)."""
    claim = await client.claim(bench.ask(key))
    bench.expect_in(claim.outcome, {Outcome.LOST, Outcome.RUNNING, Outcome.DONE, Outcome.LATE}, what)


class RememberingTests(Suite):
    """What every backend remembers, and keeps apart."""

    async def test_c06_a_won_run_is_remembered_across_reconnects(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        lone = await bench.another()
        keys = [bench.key("c06") for _ in range(3)]
        for key in keys:
            await won_and_finished(bench, lone, bench.ask(key))
        await lone.backend.close()
        fresh = await bench.another()
        for key in keys:
            await refused_for_good(bench, fresh, key, "a finished run after close and open")

    async def test_c06_a_running_run_is_remembered_across_reconnects(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        lone = await bench.another()
        key = bench.key("c06")
        await bench.won(lone, bench.ask(key))
        await lone.backend.close()
        claim = await (await bench.another()).claim(bench.ask(key))
        bench.expect_refused(claim, "a run whose winner closed its backend")

    async def test_c06_newer_runs_do_not_displace_a_recent_one(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        keys = _slots(bench, "c06", 15)
        for key in keys:
            await won_and_finished(bench, a, bench.ask(key, history_size=1))
        for key in keys:
            await refused_for_good(bench, b, key, "a finished run younger than keep_ms, beyond history_size")

    async def test_c06_a_manual_run_is_remembered(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        key = bench.key("c06", space="m1")
        await won_and_finished(bench, bench.clients[0], bench.ask(key))
        await refused_for_good(bench, bench.clients[0], key, "a finished manual run")

    async def test_c06_a_note_is_remembered(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        key = bench.key("c06", space="n")
        await won_and_finished(bench, bench.clients[0], bench.ask(key))
        await refused_for_good(bench, bench.clients[0], key, "a finished note")

    async def test_c06_a_won_run_survives_a_killed_store(self, arena: Arena) -> None:
        arena.target.require("kill_store")
        if not arena.limits.durable:
            msg = "limits.durable is False"
            raise NotClaimed(msg)
        bench = await Bench.of(arena)
        keys = await some_won(bench, bench.clients[0])
        await arena.target.kill_store()
        await all_refused(bench, keys)

    async def test_c07_jobs_with_hostile_names_do_not_touch(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        first = bench.key("c07")
        keys = [replace(first, job=name) for name in _accepted(arena.limits, first.job)]
        requests = [bench.ask(key, exclusive=True, info=f"info of {place}") for place, key in enumerate(keys)]
        for request in requests:
            await bench.won(a, request, f"job {request.key.job!r}, whose neighbours run at the same slot")
        for request in requests:
            await a.finish(request.key, request.token)
        for request in requests:
            tokens = {record.token for record in await a.history(request.key.job)}
            bench.expect(tokens, {request.token}, f"the tokens in the history of job {request.key.job!r}")

    async def test_c07_hostile_names_can_be_asked_for_in_batches(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        first = bench.key("c07")
        names = _accepted(arena.limits, first.job)
        answers = await bench.clients[0].claim_many([bench.ask(replace(first, job=name)) for name in names])
        for name, answer in zip(names, answers, strict=True):
            bench.expect_won(answer, 1, f"job {name!r} in a batch with its neighbours")

    async def test_c07_names_that_cannot_be_carried_are_refused_before_the_store(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        for name in unprintable_names(arena.job("c07")):
            try:
                arena.limits.check_job_name(name)
            except OptionError:
                continue
            raise bench.fail(f"the limits accept the job name {name!r}")

    async def test_c07_hostile_texts_come_back_as_they_were(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        text = "'; DROP TABLE x; -- \" \\ %s {} $1 \u00e9\u4e16\U0001f642 \t"
        request = bench.ask(bench.key("c07"), instance=text.strip(), info=text)
        await bench.won(a, request)
        await a.finish(request.key, request.token, error=text)
        (record,) = await a.history(request.key.job)
        bench.expect((record.instance, record.error), (text.strip(), text), "instance and error in the history")

    async def test_c08_neighbouring_milliseconds_are_two_runs(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c08")
        await bench.won(a, bench.ask(key))
        await bench.won(b, bench.ask(replace(key, slot_ms=key.slot_ms + 1)), "the slot one millisecond later")

    async def test_c08_the_same_slot_is_one_run_whatever_else_differs(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        key = bench.key("c08")
        await bench.won(a, bench.ask(key, info="one", instance="one"))
        claim = await b.claim(bench.ask(RunKey(key.job, int(key.slot_ms)), info="two", instance="two", limit=1, history_size=5))
        bench.expect_refused(claim, "a claim of the same slot with other options")

    async def test_c08_slot_note_and_manual_runs_of_one_instant_are_apart(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        key = bench.key("c08")
        for space in ("", "n", "m1", "m12", "mn"):
            await bench.won(bench.clients[0], bench.ask(replace(key, space=space)), f"key space {space!r} of one instant")

    async def test_c08_the_first_attempt_is_number_one(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        request = bench.ask(bench.key("c08"))
        await won_and_finished(bench, bench.clients[0], request)
        (record,) = await bench.clients[0].history(request.key.job)
        bench.expect((record.slot_ms, record.attempt), (request.key.slot_ms, 1), "slot and attempt in the history")

    async def test_c20_trimming_never_lets_a_run_be_won_again(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        keys = _slots(bench, "c20", RUNS)
        for key in keys:  # all older than keep_ms: all but the newest two may be forgotten
            await won_and_finished(bench, a, bench.ask(key, history_size=2, keep_ms=1))
        for key in keys:
            await refused_for_good(bench, b, key, "a finished run that the history may have trimmed")

    async def test_c20_age_trims_without_letting_a_run_be_won_again(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        keys = _slots(bench, "c20", 5)
        for key in keys:
            await won_and_finished(bench, a, bench.ask(key, history_ttl_ms=1, keep_ms=1))
        for key in keys:
            await refused_for_good(bench, b, key, "a finished run that is older than history_ttl_ms")


class LeaseRememberingTests(Suite):
    """What pruning does in a lease backend."""

    async def test_c06_what_was_pruned_lies_at_or_below_the_floor(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        keys = _slots(bench, "c06", RUNS)
        for key in keys:
            await won_and_finished(bench, a, bench.ask(key, history_size=2, keep_ms=1))
        kept = {record.slot_ms for record in await a.history(keys[0].job)}
        gone = [key.slot_ms for key in keys if key.slot_ms not in kept]
        view = await a.job(keys[0].job)
        floor_ms = None if view is None else view.floor_ms
        if gone and (floor_ms is None or floor_ms < max(gone)):
            raise bench.fail(f"slot {max(gone)} was pruned, but the floor is {floor_ms}")

    async def test_c06_pruning_goes_oldest_first(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        keys = _slots(bench, "c06", RUNS)
        for key in keys:
            await won_and_finished(bench, a, bench.ask(key, history_size=3, keep_ms=1))
        kept = [record.slot_ms for record in await a.history(keys[0].job)]
        newest = [key.slot_ms for key in reversed(keys)][: len(kept)]
        bench.expect((kept, len(kept) >= 3), (newest, True), "the slots that the history kept")

    async def test_c06_a_slot_below_the_floor_without_a_record_is_late(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        keys = _slots(bench, "c06", RUNS)
        for key in keys:
            await won_and_finished(bench, a, bench.ask(key, history_size=2, keep_ms=1))
        view = await a.job(keys[0].job)
        if view is None or view.floor_ms is None:
            msg = "this store has not pruned anything yet"
            raise NotClaimed(msg)
        for slot_ms in (view.floor_ms, view.floor_ms - 1):
            claim = await a.claim(bench.ask(RunKey(keys[0].job, slot_ms)))
            bench.expect_in(claim.outcome, {Outcome.LATE, Outcome.DONE}, f"slot {slot_ms}, floor {view.floor_ms}")

    async def test_c06_a_note_below_the_floor_cannot_be_won(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        keys = _slots(bench, "c06", RUNS)
        for key in keys:
            await won_and_finished(bench, a, bench.ask(replace(key, space="n"), history_size=2, keep_ms=1))
        for key in keys:
            await refused_for_good(bench, a, replace(key, space="n"), "a note that may have been pruned")

    async def test_c20_trimming_never_removes_a_running_run(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        keys = _slots(bench, "c20", RUNS)
        running = bench.ask(keys[0])
        await bench.won(a, running)
        for key in keys[1:]:
            await won_and_finished(bench, a, bench.ask(key, history_size=1, keep_ms=1))
        bench.expect_yes(await a.renew(running.key, running.token, 60_000), "renewal of the oldest run, still running")
        view = await bench.view(a, running.key)
        bench.expect((view.status.value, view.attempt), ("running", 1), "the oldest run, still running")

    async def test_c20_trimming_never_removes_a_released_run(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        (a,) = bench.clients
        keys = _slots(bench, "c20", RUNS)
        waiting = bench.ask(keys[0])
        await bench.won(a, waiting)
        await a.release(waiting.key, waiting.token)
        for key in keys[1:]:
            await won_and_finished(bench, a, bench.ask(key, history_size=1, keep_ms=1))
        bench.expect_won(await a.claim(bench.ask(waiting.key)), 2, "the oldest run, which waits for a taker")


def _slots(bench: Bench, hint: str, count: int) -> list[RunKey]:
    """Return rising slots of one new job, all a few seconds old."""
    first = bench.key(hint, ago_ms=5_000 + 10 * count)
    return [replace(first, slot_ms=first.slot_ms + 10 * place) for place in range(count)]


def _accepted(limits: Limits, mark: str) -> list[str]:
    names: list[str] = []
    for name in hostile_names(mark):
        try:
            limits.check_job_name(name)
        except OptionError:
            continue  # refused at `add`, which is the other right answer
        names.append(name)
    return names
