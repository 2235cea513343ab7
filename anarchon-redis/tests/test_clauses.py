"""What the clauses say, on every strategy and server that can do it, where the kit does not look."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from anarchon.backend import LeaseBackend
from anarchon.errors import BackendError, BackendTimeout, BackendUnavailable, StoreDamaged, StoreSetupError
from anarchon.types import ATTEMPTS_MAX, Outcome, RunKey, RunResult, RunStatus, new_token
from anarchon_conformance.gate import Gate, Mode, reroute
from anarchon_redis import RedisLeaseBackend, RedisStreamIdBackend
from anarchon_redis.factory import from_url
from redis.asyncio import Redis as Client

Play = Callable[..., Any]
DONE = RunResult(RunStatus.SUCCESS)
HOSTILE = ("a:b", "a%3Ab", "{a}", "}{", "ä ☃", "*", "runs", "state", "jobs", "strategy", "a" * 200, "'; DROP", "a|b", "-1")


def test_c01_one_of_eight_instances_wins_each_slot(store: Any, play: Play) -> None:
    async def act(*backends: Any) -> None:
        now_ms = await backends[0].now_ms()
        for slot_ms in range(now_ms - 20, now_ms):
            requests = [await store.request(b, slot_ms=slot_ms, exclusive=False, instance=str(n)) for n, b in enumerate(backends)]
            answers = await asyncio.gather(*(b.claim(r) for b, r in zip(backends, requests, strict=True)))
            assert [answer.outcome for answer in answers].count(Outcome.WON) == 1

    play(act, *(store.make() for _ in range(8)))


def test_c03_a_batch_is_claims_of_their_own(store: Any, play: Play) -> None:
    async def act(backend: Any, other: Any) -> None:
        slot_ms = await backend.now_ms() - 10
        requests = [await store.request(backend, f"job{n}", slot_ms=slot_ms) for n in range(100)]
        assert (await other.claim(replace(requests[7], token=new_token()))).won
        answers = await backend.claim_many(requests)
        assert [place for place, answer in enumerate(answers) if not answer.won] == [7]
        assert await backend.claim_many([]) == []
        again = await other.claim_many(requests)
        assert [answer.won for answer in again] == [answer.won for answer in answers]  # C4

    play(act, store.make(), store.make())


def test_c03_a_claim_that_fails_fails_alone(any_strategy: Any, play: Play) -> None:
    async def act(backend: Any) -> None:
        jobs = [f"job{n:02}" for n in range(30)]
        assert (await backend.claim(await any_strategy.request(backend, "job13"))).won
        for suffix in ("state", "runs"):
            await any_strategy.raw("SET", f"{any_strategy.prefix}job13:{suffix}", "somebody's")
        answers = await backend.claim_many([await any_strategy.request(backend, job) for job in jobs])
        broken = [answer for answer in answers if isinstance(answer, BackendError)]
        assert [answer.won for answer in answers if not isinstance(answer, BackendError)] == [True] * 29
        assert isinstance(answers[13], StoreDamaged)
        assert broken == [answers[13]]
        assert "a key of this prefix holds something else" in str(answers[13])

    play(act, any_strategy.make())


def test_c03_scripts_come_back_after_a_flush(store: Any, play: Play) -> None:
    async def act(backend: Any) -> None:
        first = await store.request(backend)
        assert (await backend.claim(first)).won
        await store.raw("SCRIPT", "FLUSH")
        assert (await backend.claim(first)).won
        await store.raw("SCRIPT", "FLUSH")
        requests = [await store.request(backend, f"job{n}", space="m1") for n in range(30)]
        assert all(answer.won for answer in await backend.claim_many(requests))
        await store.raw("SCRIPT", "FLUSH")
        assert await backend.finish(first.key, first.token, DONE)
        await store.raw("SCRIPT", "FLUSH")
        assert [record.status for record in await backend.history("job", limit=5)] == [RunStatus.SUCCESS]

    play(act, store.make())


@pytest.mark.parametrize("mode", [Mode.CUT_BEFORE, Mode.CUT_AFTER])
def test_c04_a_lost_reply_is_asked_for_again(mode: Mode, store: Any) -> None:
    async def act() -> None:
        async with Gate(store.server.host, store.server.port) as gate:
            backend: Any = from_url(reroute(store.url(), gate.host, gate.port))
            other = store.make()
            try:
                await backend.open()
                await other.open()
                request = await store.request(backend, exclusive=False)
                warm = replace(request, key=replace(request.key, slot_ms=request.key.slot_ms - 9), token=new_token())
                assert (await backend.claim(warm)).won
                gate.set(mode, count=1)
                with pytest.raises(BackendUnavailable):
                    await backend.claim(request)
                gate.heal()
                stranger = await other.claim(replace(request, token=new_token(), instance="two"))
                assert stranger.won == (mode is Mode.CUT_BEFORE)  # nothing was sent twice
                mine = await backend.claim(request)
                assert mine.won != stranger.won  # C1, C4
            finally:
                await backend.close()
                await other.close()

    asyncio.run(act())


def test_c05_a_release_is_never_sent_twice(lease: Any) -> None:
    async def act() -> None:
        async with Gate(lease.server.host, lease.server.port) as gate:
            backend: Any = from_url(reroute(lease.url(), gate.host, gate.port))
            try:
                await backend.open()
                request = await lease.request(backend)
                await backend.claim(request)
                assert not await backend.release(request.key, "nobody")  # the script is loaded
                gate.set(Mode.CUT_AFTER, count=1)
                with pytest.raises(BackendUnavailable):
                    await backend.release(request.key, request.token)
                gate.heal()
                (view,) = await backend.check([request.key])
                assert view is not None
                assert view.status is RunStatus.HANDED_OVER
                assert view.left_ms <= 0
            finally:
                await backend.close()

    asyncio.run(act())


def test_c06_pruning_is_bounded_and_raises_the_floor(lease: Any, play: Play) -> None:
    async def act(backend: RedisLeaseBackend) -> None:
        now_ms = await backend.now_ms()
        for slot_ms in range(now_ms - 300, now_ms - 100):
            request = await lease.request(backend, slot_ms=slot_ms, history_size=1_000)
            await backend.claim(request)
            await backend.finish(request.key, request.token, DONE)
        left = 200
        for round_ in range(1, 5):
            request = await lease.request(backend, slot_ms=now_ms - 50 + round_, keep_ms=0, history_size=10)
            assert (await backend.claim(request)).won
            await backend.finish(request.key, request.token, DONE)
            left = max(left - 50, 0) if round_ < 4 else left
            assert len(await backend.history("job", limit=1_000)) <= max(200 - 50 * round_, 10) + round_
        (view,) = await backend.jobs()
        assert view.floor_ms is not None
        late = await backend.claim(await lease.request(backend, slot_ms=now_ms - 299))
        assert late.outcome is Outcome.LATE
        runs, final = lease.prefix + "job:runs", lease.prefix + "job:final"
        assert await lease.raw("ZCARD", final) == 10
        assert await lease.raw("XLEN", runs) == 20  # C20: an entry for the win and one for the end of each

    play(act, lease.make())


def test_c20_pruning_beside_many_live_runs_keeps_rather_more(newest: Any, on: Any, play: Play) -> None:
    """Live runs are never pruned and block no pruning; beyond 32 of them the history size counts ended runs alone."""
    store = on(newest, "lease")

    async def act(backend: RedisLeaseBackend) -> None:
        now_ms = await backend.now_ms()
        options = {"exclusive": False, "keep_ms": 0, "max_late_ms": 10**9, "history_size": 10}
        for live in (20, 40):
            job = f"job{live}"
            batch = [await store.request(backend, job, slot_ms=now_ms - 9_000 + n, **options) for n in range(live)]
            for request in batch:
                assert (await backend.claim(request)).won
            for n in range(30):
                request = await store.request(backend, job, slot_ms=now_ms - 500 + n, **options)
                assert (await backend.claim(request)).won
                assert await backend.finish(request.key, request.token, DONE)
            ended = await store.raw("ZCARD", f"{store.prefix}{job}:final")
            # At a claim the new run and the nine newest ended ones stay; counting ended ones alone, ten do.
            assert ended == (10 if live == 20 else 11)
            assert [view.key.slot_ms for view in await backend.unfinished([job])] == [request.key.slot_ms for request in batch]
            assert len(await backend.history(job, limit=1_000)) == live + ended

    play(act, store.make())


def test_c07_hostile_names_and_prefixes_touch_nobody(any_strategy: Any, play: Play) -> None:
    async def act(*backends: Any) -> None:
        slot_ms = await backends[0].now_ms() - 20
        for backend in backends:
            for job in HOSTILE:
                backend.limits.check_job_name(job)
                request = await any_strategy.request(backend, job, slot_ms=slot_ms)
                assert (await backend.claim(request)).won, job
                assert await backend.finish(request.key, request.token, RunResult(RunStatus.FAILED, job))
        for backend in backends:
            for job in HOSTILE:
                (record,) = await backend.history(job, limit=9)
                assert (record.job, record.error) == (job, job)
            if isinstance(backend, LeaseBackend):
                assert {view.job for view in await backend.jobs()} == set(HOSTILE)
        await backends[0].forget("a:b")
        assert await backends[0].history("a:b", limit=9) == []
        assert len(await backends[1].history("a:b", limit=9)) == 1

    prefixes = [any_strategy.prefix, any_strategy.prefix + "a:", any_strategy.prefix + "a:b:"]
    play(act, *(any_strategy.make(prefix=prefix) for prefix in prefixes))


def test_c13_hand_overs_count_from_the_thousandth_attempt(newest: Any, on: Any, play: Play) -> None:
    store = on(newest, "lease")

    async def act(backend: RedisLeaseBackend) -> None:
        request = await store.request(backend, max_late_ms=600_000)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            mine = replace(request, token=new_token())
            claim = await backend.claim(mine)
            assert claim.attempt == attempt
            assert await backend.release(mine.key, mine.token)
        assert (await backend.claim(request)).outcome is Outcome.DONE
        records = await backend.history("job", limit=3)
        assert [record.attempt for record in records] == [1000, 999, 998]

    play(act, store.make())


def test_c19_pages_of_the_history_are_one_order(store: Any, play: Play) -> None:
    async def act(backend: Any) -> None:
        now_ms = await backend.now_ms()
        slots = list(range(now_ms - 1_300, now_ms - 500))
        for start in range(0, len(slots), 100):
            requests = [
                await store.request(backend, slot_ms=slot_ms, exclusive=False, history_size=2_000)
                for slot_ms in slots[start : start + 100]
            ]
            assert all(answer.won for answer in await backend.claim_many(requests))
        manual = await store.request(backend, slot_ms=now_ms - 700, space="m1", exclusive=False, history_size=2_000)
        assert (await backend.claim(manual)).won
        for limit in (1, 55, 101, 450, 5_000):
            found = await backend.history("job", limit=limit)
            wanted = sorted([*slots, now_ms - 700], reverse=True)[:limit]
            assert [record.slot_ms for record in found] == wanted
        since = await backend.history("job", limit=5_000, since_ms=now_ms - 600)
        assert [record.slot_ms for record in since] == list(range(now_ms - 501, now_ms - 601, -1))

    play(act, store.make())


def test_c21_a_prefix_belongs_to_one_strategy(newest: Any, on: Any, play: Play) -> None:
    store = on(newest, "lease")

    async def act(backend: Any) -> None:
        other = from_url(store.url(strategy="script"))
        with pytest.raises(StoreSetupError, match="used with strategy=lease"):
            await other.open()
        await backend.open()  # twice

    play(act, store.make())


def test_c22_a_cancelled_call_leaves_the_backend_usable(any_strategy: Any, play: Play) -> None:
    async def act(backend: Any) -> None:
        request = await any_strategy.request(backend)
        await backend.claim(request)
        for turns in range(25):
            key = replace(request.key, job=f"job{turns}")
            task = asyncio.ensure_future(backend.claim(replace(request, key=key, token=new_token())))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert (await backend.claim(request)).won
            records = await backend.history(key.job, limit=9)
            assert len(records) <= 1  # wholly or not at all

    play(act, any_strategy.make())


def test_c23_a_frozen_server_is_an_error_in_time(own: Any, on: Any, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anarchon_redis.link.CALL_TIMEOUT_MS", 300)
    server = own()
    store = on(server, "lease")

    async def act(backend: Any) -> None:
        request = await store.request(backend)
        assert (await backend.claim(request)).won
        server.pause()
        try:
            with pytest.raises(BackendTimeout):
                await backend.claim(request)
        finally:
            server.resume()
        assert (await backend.claim(request)).won
        await asyncio.to_thread(server.kill)
        with pytest.raises(BackendUnavailable):
            await backend.claim(request)
        await asyncio.to_thread(server.start)
        assert (await backend.claim(request)).won

    play(act, store.make())


def test_c24_a_borrowed_client_stays_open_and_on_its_loop(newest: Any, on: Any) -> None:
    store = on(newest, "lease")

    async def act() -> None:
        async with Client(host=newest.host, port=newest.port, decode_responses=True) as client:
            backend = RedisLeaseBackend(client, prefix=store.prefix)
            done: list[Any] = []

            async def elsewhere() -> None:
                await backend.open()
                request = await store.request(backend)
                done.append(await backend.claim(request))
                done.append(await backend.finish(request.key, request.token, DONE))
                done.append(await backend.history("job", limit=1))
                await backend.close()

            thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
            thread.start()
            while thread.is_alive():
                await asyncio.sleep(0.01)
            assert done[0].won
            assert done[1] is True
            assert done[2][0].status is RunStatus.SUCCESS
            assert await client.ping()
            with pytest.raises(BackendUnavailable, match="open the backend first"):
                await backend.claim(await store.request(backend, slot_ms=1))

    asyncio.run(act())


def test_c25_neither_end_nor_claim_depends_on_entry_ids(newest: Any, on: Any, play: Play) -> None:
    """After the server's clock went back, IDs run ahead of it: an entry of the future in the history changes nothing."""
    store = on(newest, "script")

    async def act(backend: Any) -> None:
        now_ms = await backend.now_ms()
        await store.raw("XADD", store.prefix + "job:runs", f"{now_ms + 3_600_000}-0", "foreign", "entry")
        request = await store.request(backend)
        assert (await backend.claim(request)).won
        assert (await backend.claim(replace(request, token=new_token()))).outcome is Outcome.LOST
        assert await backend.finish(request.key, request.token, DONE)
        (record,) = await backend.history("job", limit=5)
        assert record.status is RunStatus.SUCCESS

    play(act, store.make())


def test_numbers_beyond_fourteen_digits_are_not_rounded(any_strategy: Any, play: Play) -> None:
    async def act(backend: Any) -> None:
        slot_ms = 253_402_300_799_999  # the last millisecond of the year 9999
        request = await any_strategy.request(backend, slot_ms=slot_ms, space="m1")
        assert (await backend.claim(request)).won
        assert (await backend.history("job", limit=1))[0].key == RunKey("job", slot_ms, "m1")
        early = await backend.claim(await any_strategy.request(backend, slot_ms=slot_ms, exclusive=False))
        assert early.outcome is Outcome.EARLY
        assert early.wait_ms == slot_ms - (early.store_now_ms or 0)

    play(act, any_strategy.make())


def test_a_token_that_cannot_be_packed_is_refused(newest: Any, on: Any, play: Play) -> None:
    store = on(newest, "lease")

    async def act(backend: Any) -> None:
        for token in ("", "a|b"):
            with pytest.raises(BackendError, match="token"):
                await backend.claim(await store.request(backend, token=token))

    play(act, store.make())


def test_a_stream_id_client_asks_the_server_once_a_minute(newest: Any, on: Any, play: Play) -> None:
    store = on(newest, "stream-id")

    async def act(backend: RedisStreamIdBackend) -> None:
        now_ms = await backend.now_ms()
        first = await backend.claim(await store.request(backend, slot_ms=now_ms - 90))
        assert first.store_now_ms is not None  # asked
        second = await backend.claim(await store.request(backend, slot_ms=now_ms - 80))
        assert second.won
        assert second.store_now_ms is None  # one XADD, nothing else

    play(act, store.make())
