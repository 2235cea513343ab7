"""The strategies that only decide who is first: what each of them must get right, and what it refuses."""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from anarchon.errors import OptionError, StoreSetupError
from anarchon.job import JobOptions, make_job
from anarchon.schedule import Every
from anarchon.types import NOTE, ClaimRequest, Outcome, RunKey, RunResult, RunStatus, new_token
from anarchon_redis.factory import from_url
from anarchon_redis.options import IDMP_KEYS, IDMP_RUNS

Play = Callable[..., Any]
SKIPPED = RunResult(RunStatus.SKIPPED, "paused")


def test_c01_notes_and_manual_runs_have_one_winner(first: Any, play: Play) -> None:
    async def act(*backends: Any) -> None:
        now_ms = await backends[0].now_ms()
        for space in (NOTE, "m1"):
            # A note is of the past, a manual run may be ahead of the server by what clocks differ.
            for slot_ms in (now_ms - 100_000, now_ms + 2_000):
                requests = [await first.request(b, slot_ms=slot_ms, space=space) for b in backends]
                answers = await asyncio.gather(*(b.claim(r) for b, r in zip(backends, requests, strict=True)))
                assert [answer.outcome for answer in answers].count(Outcome.WON) == 1
                place = [answer.won for answer in answers].index(True)
                won = requests[place]
                assert not await backends[0].finish(won.key, "stranger", SKIPPED)
                assert await backends[0].finish(won.key, won.token, SKIPPED)
                assert await backends[1].finish(won.key, won.token, RunResult(RunStatus.FAILED))  # C18: the first end stays
                (record,) = [r for r in await backends[1].history("job", limit=9) if r.key == won.key]
                assert (record.status, record.error) == (RunStatus.SKIPPED, "paused")
                assert (await backends[1].claim(won)).won  # C4

    play(act, *(first.make() for _ in range(4)))


def test_c06_trimming_keeps_what_may_be_asked_for(first: Any, play: Play) -> None:
    async def act(backend: Any) -> None:
        now_ms = await backend.now_ms()
        requests = [await first.request(backend, slot_ms=now_ms - 450 + n, history_size=1) for n in range(400)]
        for request in requests:
            assert (await backend.claim(request)).won
            assert await backend.finish(request.key, request.token, RunResult(RunStatus.SUCCESS))
        kept = await first.raw("XLEN", first.prefix + "job:runs")
        ends = await first.raw("HLEN", first.prefix + "job:ends")
        assert kept == ends == (300 if first.strategy == "stream-id" else 400)
        for request in requests[-kept:]:
            assert (await backend.claim(replace(request, token=new_token()))).outcome is Outcome.LOST
        assert not (await backend.claim(replace(requests[0], token=new_token()))).won

    play(act, first.make())


def test_c20_what_nobody_can_ask_for_is_trimmed(newest: Any, on: Any, play: Play) -> None:
    store = on(newest, "script")

    async def act(backend: Any) -> None:
        now_ms = await backend.now_ms()
        stream, ends = store.prefix + "job:runs", store.prefix + "job:ends"
        for n in range(80):  # entries as an instance wrote them an hour ago
            slot_ms = now_ms - 3_600_000 + n
            fields = ("slot", slot_ms, "space", "", "token", "t", "instance", "i", "at", slot_ms, "keep", 10)
            await store.raw("XADD", stream, f"{slot_ms}-0", *fields)
            await store.raw("HSET", ends, slot_ms, f"success|{slot_ms}|")
        for n in range(2):
            assert (await backend.claim(await store.request(backend, slot_ms=now_ms - 5 + n, history_size=10))).won
        assert await store.raw("XLEN", stream) == 11  # as many as the history asks for, and the new one
        assert await store.raw("HLEN", ends) == 9

    play(act, store.make())


# -- stream-id


def test_c02_an_earlier_slot_is_missed_and_not_lost(server: Any, on: Any, play: Play) -> None:
    store = on(server, "stream-id")

    async def act(backend: Any) -> None:
        now_ms = await backend.now_ms()
        newer = await store.request(backend, slot_ms=now_ms - 10)
        assert (await backend.claim(newer)).won
        older = await store.request(backend, slot_ms=now_ms - 20)
        for request in (older, older, replace(older, key=RunKey("job", now_ms - 11))):
            assert (await backend.claim(request)).outcome is Outcome.LATE
        assert (await backend.claim(replace(newer, token=new_token()))).outcome is Outcome.LOST
        note = replace(older, key=replace(older.key, space=NOTE))
        assert (await backend.claim(note)).won  # K13: the missed slot can be noted

    play(act, store.make())


def test_c02_manual_runs_and_notes_block_no_slot(newest: Any, on: Any, play: Play) -> None:
    store = on(newest, "stream-id")

    async def act(backend: Any) -> None:
        now_ms = await backend.now_ms()
        for space in ("m1", NOTE):
            assert (await backend.claim(await store.request(backend, slot_ms=now_ms + 60_000, space=space))).won
        assert (await backend.claim(await store.request(backend, slot_ms=now_ms - 30))).won
        assert (await backend.claim(await store.request(backend, slot_ms=now_ms - 29))).won

    play(act, store.make())


def test_c09_a_fast_instance_does_not_poison_the_stream(server: Any, on: Any, play: Play) -> None:
    store = on(server, "stream-id")

    async def act(backend: Any) -> None:
        now_ms = await backend.now_ms()
        assert (await backend.claim(await store.request(backend, slot_ms=now_ms - 30))).won
        hour = await store.request(backend, slot_ms=now_ms + 3_600_000)
        answers = [await backend.claim(hour), *await backend.claim_many([hour, replace(hour, token=new_token())])]
        assert {answer.outcome for answer in answers} == {Outcome.EARLY}
        assert (await backend.claim(await store.request(backend, slot_ms=now_ms - 20))).won

    play(act, store.make())


def test_k10_a_jitter_that_lets_slots_pass_each_other_is_refused(newest: Any, on: Any) -> None:
    backend = on(newest, "stream-id").make()
    with pytest.raises(OptionError, match="jitter"):
        make_job(print, Every(seconds=10), name="x", options={"jitter": 10}, backend=backend, clock_allowance_ms=0)
    with pytest.raises(OptionError, match="catch_up"):
        make_job(print, Every(seconds=10), name="x", options={"catch_up": "all"}, backend=backend, clock_allowance_ms=0)


# -- idmp


def test_an_older_server_is_refused_in_one_sentence(own: Any, on: Any) -> None:
    from stores.redis import Redis70, Valkey91

    for kind, name in ((Redis70, "Redis 7.0"), (Valkey91, "Valkey 9.1")):
        backend = on(own(kind), "idmp").make()
        with pytest.raises(StoreSetupError, match=f"needs Redis 8.6 or newer, and this is {name}.*use strategy=script or lease"):
            asyncio.run(backend.open())


async def remembered(store: Any) -> tuple[int, int]:
    """Return what the server says that the job's stream remembers: seconds and keys."""
    reply = await store.raw("XINFO", "STREAM", store.prefix + "job:runs")
    facts = dict(zip(reply[::2], reply[1::2], strict=True))
    return facts[b"idmp-duration"], facts[b"idmp-maxsize"]


def race(url: str, slots: list[int], jobs: list[str], gate: Any, out: Any) -> None:
    """Claim every (job, slot) once, as one of eight processes that begin together on streams that do not exist."""

    async def act() -> list[tuple[str, int]]:
        backend: Any = from_url(url)
        await backend.open()
        wins = []
        gate.wait(60)
        for job, slot_ms in zip(jobs, slots, strict=True):
            request = ClaimRequest(key=RunKey(job, slot_ms), token=new_token(), instance="p", max_late_ms=10**6)
            if (await backend.claim(request)).won:
                wins.append((job, slot_ms))
        await backend.close()
        return wins

    out.put(asyncio.run(act()))


def test_c01_eight_processes_set_up_a_stream_once(newest: Any, on: Any, play: Play) -> None:
    store = on(newest, "idmp")

    async def now(backend: Any) -> int:
        return int(await backend.now_ms())

    now_ms = play(now, store.make())
    jobs = [f"job{secrets.token_hex(3)}" for _ in range(50)]
    context = multiprocessing.get_context("spawn")
    gate, out = context.Barrier(8), context.Queue()
    arguments = (store.url(duration=600), [now_ms - n for n in range(50)], jobs, gate, out)
    racers = [context.Process(target=race, args=arguments) for _ in range(8)]
    for racer in racers:
        racer.start()
    wins = [win for _ in racers for win in out.get(timeout=100)]
    for racer in racers:
        racer.join(30)
    assert len(wins) == len(set(wins)) == 50


def test_c06_what_a_live_stream_remembers_is_never_changed(newest: Any, on: Any, play: Play) -> None:
    store = on(newest, "idmp")

    async def act(old: Any, new: Any, shorter: Any) -> None:
        request = await store.request(old)
        assert (await old.claim(request)).won
        with pytest.raises(StoreSetupError, match=r"remembers 300 s and 10000 slots.*write duration=300.*XCFGSET"):
            await new.claim(replace(request, token=new_token()))
        assert (await shorter.claim(replace(request, token=new_token()))).outcome is Outcome.LOST
        assert await remembered(store) == (300, IDMP_KEYS)

    play(act, store.make(), store.make(duration=600), store.make(duration=60))


def test_c06_a_deleted_stream_is_set_up_again(newest: Any, on: Any, play: Play) -> None:
    store = on(newest, "idmp")

    async def act(backend: Any) -> None:
        assert (await backend.claim(await store.request(backend))).won
        await store.raw("DEL", store.prefix + "job:runs")
        request = await store.request(backend)
        assert (await backend.claim(request)).won
        assert await remembered(store) == (300, IDMP_KEYS)
        # A stream that somebody else made remembers what its server's defaults say: too little.
        await store.raw("XADD", store.prefix + "other:runs", "*", "a", "b")
        with pytest.raises(StoreSetupError, match="remembers 100 s and 100 slots"):
            await backend.claim(await store.request(backend, "other"))

    play(act, store.make())


def test_c06_notes_and_manual_runs_take_no_slot_from_the_memory(newest: Any, on: Any, play: Play) -> None:
    store = on(newest, "idmp")

    async def act(backend: Any) -> None:
        request = await store.request(backend)
        assert (await backend.claim(request)).won
        for start in range(0, IDMP_KEYS + 100, 100):
            batch = [await store.request(backend, slot_ms=1, space=f"m{start + n}") for n in range(100)]
            assert all(answer.won for answer in await backend.claim_many(batch))
        assert (await backend.claim(replace(request, token=new_token()))).outcome is Outcome.LOST
        assert (await backend.claim(request)).won

    play(act, store.make())


def test_k10_a_memory_shorter_than_the_late_window_is_refused(newest: Any, on: Any) -> None:
    for strategy, option in (("idmp", "duration"), ("script", "window")):
        backend = on(newest, strategy).make(**{option: 30})
        assert backend.limits.remembers_ms == 30_000
        with pytest.raises(OptionError, match="forgets a run after 30 s"):
            make_job(print, Every(seconds=10), name="x", options={}, backend=backend, clock_allowance_ms=0)


def test_k10_more_late_runs_than_the_server_has_keys_for_are_refused(newest: Any, on: Any) -> None:
    backend = on(newest, "idmp").make(duration=86_400)

    def add(period_s: int, max_late_s: int) -> None:
        options: JobOptions = {"max_late": max_late_s, "jitter": 0}
        make_job(print, Every(seconds=period_s), name="x", options=options, backend=backend, clock_allowance_ms=0)

    add(1, IDMP_RUNS - 1)
    with pytest.raises(OptionError, match=r"remembers 5000 runs of a job: .*shorten max_late"):
        add(1, IDMP_RUNS)
    add(60, 86_000)
