"""What becomes of ended runs: kept in messages of their own, found again, pruned, read newest first (C6, C19, C20)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import nats
import pytest
from anarchon import Scheduler
from anarchon.errors import StoreDamaged
from anarchon.types import ATTEMPTS_MAX, Outcome, RunResult, RunStatus, new_token
from anarchon_nats import from_url
from anarchon_nats.lease import ENDED_MOST

Play = Callable[..., Any]
DONE = RunResult(RunStatus.SUCCESS)


async def through(store: Any, backend: Any, slots: range, **fields: Any) -> list[Any]:
    """Take runs of these slots from claim to end."""
    requests = [await store.request(backend, slot_ms=slot_ms, **fields) for slot_ms in slots]
    for request in requests:
        assert (await backend.claim(request)).won
        assert await backend.finish(request.key, request.token, DONE)
    return requests


def test_c06_runs_that_left_the_key_are_still_known(lease: Any, play: Play) -> None:
    async def act(a: Any, b: Any) -> None:
        now_ms = await a.now_ms()
        requests = await through(lease, a, range(now_ms - 3_000, now_ms - 3_000 + 80 * ENDED_MOST, 10))
        state = json.loads((await raw(lease, "job")).split(b"\n")[0])
        assert len(state["final"].split()) <= ENDED_MOST
        assert len(state["chunks"]) > 5
        for request in requests:
            assert (await b.claim(replace(request, token=new_token()))).outcome is Outcome.DONE
            assert (await b.claim(request)).outcome is Outcome.DONE
            assert await b.finish(request.key, request.token, DONE)
            assert not await b.finish(request.key, new_token(), DONE)
        views = await b.check([request.key for request in requests])
        assert [view.status for view in views] == [RunStatus.SUCCESS] * len(requests)
        slots = [request.key.slot_ms for request in requests][::-1]
        for limit in (1, 20, 100, 1_000):
            assert [record.slot_ms for record in await b.history("job", limit=limit)] == slots[:limit]
        assert [record.slot_ms for record in await b.history("job", limit=1_000, since_ms=slots[50])] == slots[:51]
        await a.forget("job")
        assert await b.history("job", limit=9) == []
        assert await b.jobs() == []

    play(act, lease.make(), lease.make())


def test_c20_history_is_pruned_oldest_first_and_its_messages_go(lease: Any, play: Play) -> None:
    async def act(backend: Any) -> None:
        now_ms = await backend.now_ms()
        old = range(now_ms - 20_000, now_ms - 17_000, 10)
        requests = await through(lease, backend, old, keep_ms=5_000, history_size=20)
        records = await backend.history("job", limit=10**6)
        assert 20 <= len(records) <= 20 + 2 * ENDED_MOST
        assert [record.slot_ms for record in records] == list(old)[-len(records) :][::-1]
        state = (await lease.api(f"STREAM.INFO.KV_{lease.prefix}"))["state"]
        assert state["messages"] <= 2 + len(json.loads((await raw(lease, "job")).split(b"\n")[0])["chunks"])
        for request in requests:
            late = await backend.claim(replace(request, token=new_token()))
            assert late.outcome in {Outcome.LATE, Outcome.DONE}
        (job,) = await backend.jobs()
        assert job.floor_ms == list(old)[-len(records) - 1]

    play(act, lease.make())


async def raw(store: Any, job: str) -> bytes:
    """Read a job's key past the backend."""
    client = await nats.connect(store.server.url())
    try:
        return bytes((await client.jetstream().get_last_msg(f"KV_{store.prefix}", f"$KV.{store.prefix}.{job}.state")).data or b"")
    finally:
        await client.close()


def test_the_bucket_can_be_read_with_any_tool(lease: Any, play: Play) -> None:
    async def act(backend: Any) -> None:
        assert (await backend.claim(await lease.request(backend, "sync.job"))).won
        client = await nats.connect(lease.server.url())
        try:
            bucket = await client.jetstream().key_value(lease.prefix)
            entry = await bucket.get("sync=2Ejob.state")
            assert json.loads(entry.value or b"")["job"] == "sync.job"
        finally:
            await client.close()

    play(act, lease.make())


@pytest.mark.parametrize("garbage", [b"hello", b"[]", b'{"v": 1}', b'{"v": 2}'])
def test_foreign_values_are_named(garbage: bytes, newest: Any, on: Any, play: Play) -> None:
    store = on(newest, "lease")

    async def act(backend: Any) -> None:
        client = await nats.connect(newest.url())
        await client.jetstream().publish(f"$KV.{store.prefix}.job.state", garbage)
        await client.close()
        with pytest.raises(StoreDamaged, match=r"use another prefix|upgrade every instance"):
            await backend.claim(await store.request(backend))

    play(act, store.make())


def test_c13_a_run_that_is_handed_round_for_ever_fits(newest: Any, on: Any, play: Play) -> None:
    store = on(newest, "lease")

    async def act(backend: Any) -> None:
        request = await store.request(backend, attempt_limit=ATTEMPTS_MAX, instance="host-" + "x" * 100)
        for attempt in range(1, 201):
            request = replace(request, token=new_token())
            assert (await backend.claim(request)).attempt == attempt
            assert await backend.release(request.key, request.token)
        assert len(await backend.history("job", limit=10**4)) == 200

    play(act, store.make())


@pytest.mark.parametrize("strategy", ["lease", "cas", "msg-id"])
def test_run_now_and_last_run(strategy: str, server: Any, on: Any) -> None:
    store = on(server, strategy)
    scheduler = Scheduler(store.url())
    ran: list[str] = []

    @scheduler.job("@yearly", name="sync")
    def sync() -> None:
        ran.append("once")

    async def act() -> None:
        async with scheduler:
            await scheduler.run_now("sync")
            last = await scheduler.last_run("sync")
        assert last is not None
        assert (last.status, last.key.manual, ran) == (RunStatus.SUCCESS, True, ["once"])

    asyncio.run(act())


@pytest.mark.parametrize("strategy", ["cas", "msg-id"])
def test_c18_a_run_can_be_finished_by_a_process_that_did_not_claim_it(strategy: str, server: Any, on: Any, play: Play) -> None:
    store = on(server, strategy)

    async def act(a: Any, b: Any) -> None:
        request = await store.request(a)
        assert (await a.claim(request)).won
        assert not await b.finish(request.key, new_token(), DONE)
        assert not await b.finish(replace(request.key, slot_ms=1), request.token, DONE)
        assert await b.finish(request.key, request.token, RunResult(RunStatus.FAILED, "why"))
        for backend in (a, b):
            assert await backend.finish(request.key, request.token, DONE)
            (record,) = await backend.history("job", limit=9)
            assert (record.status, record.error) == (RunStatus.FAILED, "why")
            assert (await backend.claim(request)).won  # C4: its own claim, sent again

    play(act, store.make(), store.make())


def test_c19_the_whole_history_is_read_where_the_last_minutes_are_too_little(first: Any, play: Play) -> None:
    async def act(backend: Any) -> None:
        requests = [await first.request(backend, slot_ms=10**12 + n) for n in range(30)]
        assert all(claim.won for claim in await backend.claim_many(requests))
        for request in requests[::2]:
            assert await backend.finish(request.key, request.token, DONE)
        records = await backend.history("job", limit=10**4)
        assert [record.slot_ms for record in records] == [request.key.slot_ms for request in requests][::-1]
        ended = {record.slot_ms for record in records if record.status is RunStatus.SUCCESS}
        assert ended == {request.key.slot_ms for request in requests[::2]}
        await backend.forget("job")
        assert await backend.history("job", limit=9) == []

    play(act, first.make())


def test_a_backend_that_is_not_open_says_so(newest: Any) -> None:
    from anarchon.errors import BackendUnavailable

    with pytest.raises(BackendUnavailable, match="is not open"):
        asyncio.run(from_url(newest.url()).now_ms())


@pytest.mark.parametrize("strategy", ["lease", "cas", "msg-id"])
def test_hundreds_of_claims_leave_nothing_behind_in_the_client(strategy: str, newest: Any, on: Any, play: Play) -> None:
    """The short form of a minute at 300 claims a second (tests/bench)."""
    import gc
    import tracemalloc

    store = on(newest, strategy)

    async def act(backend: Any) -> None:
        first_ms = await backend.now_ms() - 50_000

        async def storm(start: int) -> None:
            for slot_ms in range(start, start + 200, 10):
                keys = [(f"job{n}", slot_ms) for n in range(10)]
                requests = [await store.request(backend, job, slot_ms=at, keep_ms=1_000) for job, at in keys]
                assert all(claim.won for claim in await backend.claim_many(requests))
                await asyncio.gather(*(backend.finish(request.key, request.token, DONE) for request in requests))

        await storm(first_ms)
        gc.collect()
        tracemalloc.start()
        try:
            await storm(first_ms + 1_000)
            gc.collect()
            early, _ = tracemalloc.get_traced_memory()
            await storm(first_ms + 2_000)
            gc.collect()
            late, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert late - early < 100_000

    play(act, store.make())
