"""What a Redis server can lose and what is said about it; the losses themselves are shown, so that nobody has to believe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from anarchon.errors import BackendError, BackendUnavailable
from anarchon.types import Outcome, RunResult, RunStatus, new_token
from anarchon_conformance.gate import Gate
from anarchon_redis.factory import from_url
from anarchon_redis.health import Server
from stores.redis import Redis86

Play = Callable[..., Any]
KILLS, KILLS_NIGHTLY = 5, 50
RDB_ONLY = ("--appendonly", "no", "--save", "3600 1")


def test_c06_no_acknowledged_claim_is_lost_when_the_process_dies(mortal: Any, play: Play, pytestconfig: pytest.Config) -> None:
    """Four instances claim while the server is killed again and again; who was told WON keeps it (append-only file)."""
    kills = KILLS_NIGHTLY if pytestconfig.getoption("--profile", "default") == "nightly" else KILLS
    fields = {"exclusive": False, "keep_ms": 290_000, "max_late_ms": 280_000, "history_size": 10**6}

    async def act(*backends: Any) -> None:
        won: dict[int, list[tuple[str, int]]] = {}
        over = asyncio.Event()

        async def claimer(place: int, backend: Any) -> None:
            slot_ms = first_ms
            while not over.is_set():
                slot_ms += 1
                await asyncio.sleep(0.002)
                with suppress(BackendError):
                    request = await mortal.request(backend, slot_ms=slot_ms, **fields)
                    claim = await backend.claim(request)
                    if claim.won:
                        won.setdefault(slot_ms, []).append((request.token, claim.attempt))

        first_ms = await backends[0].now_ms() - 100_000
        tasks = [asyncio.create_task(claimer(place, backend)) for place, backend in enumerate(backends)]
        for _ in range(kills):
            seen = len(won)
            while len(won) < seen + 30:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(mortal.server.kill)
            await asyncio.to_thread(mortal.server.start)
        over.set()
        await asyncio.gather(*tasks)
        assert len(won) > 30 * kills
        assert not [slot for slot, winners in won.items() if len(winners) > 1]
        for slot_ms, ((token, attempt),) in won.items():
            request = await mortal.request(backends[0], slot_ms=slot_ms, token=token, **fields)
            again = await backends[0].claim(request)
            assert (again.outcome, again.attempt) == (Outcome.WON, attempt)

    play(act, *(mortal.make() for _ in range(4)))


def test_a_snapshot_only_server_forgets_and_is_warned_about(own: Any, on: Any, any_strategy: Any, play: Play) -> None:
    store = on(own(settings=RDB_ONLY), any_strategy.strategy)

    async def act(backend: Any) -> None:
        assert [said for said in await backend.warnings() if said.startswith("appendonly is no: a crash")]
        request = await store.request(backend)
        assert (await backend.claim(request)).won
        await asyncio.to_thread(store.server.kill)
        await asyncio.to_thread(store.server.start)
        assert (await backend.claim(replace(request, token=new_token()))).won  # twice

    play(act, store.make())


def test_an_evicting_server_forgets_and_is_warned_about(own: Any, on: Any, any_strategy: Any, play: Play) -> None:
    settings = (*Redis86.settings, "--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru", "--maxmemory-samples", "10")
    store = on(own(settings=settings), any_strategy.strategy)

    async def act(backend: Any) -> None:
        assert [said for said in await backend.warnings() if said.startswith("maxmemory-policy is allkeys-lru")]
        request = await store.request(backend)
        assert (await backend.claim(request)).won
        memory = f"{store.prefix}job:{'state' if store.strategy == 'lease' else 'runs'}"
        for number in range(5_000):  # which key goes is a matter of sampling
            await store.raw("SET", f"filler{number}", "x" * 50_000)
            if not await store.raw("EXISTS", memory):
                break
        assert (await backend.claim(replace(request, token=new_token()))).won  # twice

    play(act, store.make())


@pytest.mark.parametrize("gone", ["state", "runs", "live", "final"])
def test_an_evicted_part_of_a_job_stops_nothing(gone: str, newest: Any, on: Any, play: Play) -> None:
    """Eviction takes keys one by one: what is left of a job must not make its claims fail."""
    store = on(newest, "lease")

    async def act(backend: Any) -> None:
        now_ms = await backend.now_ms()
        old = [await store.request(backend, slot_ms=now_ms - 90 + n, keep_ms=0, history_size=2) for n in range(6)]
        for request in old:
            assert (await backend.claim(request)).won
            if request is not old[-1]:
                assert await backend.finish(request.key, request.token, RunResult(RunStatus.SUCCESS))
        await store.raw("DEL", f"{store.prefix}job:{gone}")
        await backend.history("job", limit=9)
        await backend.unfinished(["job"])
        options = {"keep_ms": 0, "history_size": 2, "exclusive": gone != "runs"}
        answers = [await backend.claim(await store.request(backend, slot_ms=now_ms - 9 + n, **options)) for n in range(3)]
        assert {answer.outcome for answer in answers} <= {Outcome.WON, Outcome.OVERLAP}
        assert len(await backend.history("job", limit=9)) >= sum(answer.won for answer in answers)

    play(act, store.make())


def test_c03_a_full_server_refuses_and_writes_nothing(own: Any, on: Any, play: Play) -> None:
    store = on(own(settings=(*Redis86.settings, "--maxmemory-policy", "noeviction")), "lease")

    async def act(backend: Any) -> None:
        assert (await backend.claim(await store.request(backend, exclusive=False))).won
        await store.raw("CONFIG", "SET", "maxmemory", "1mb")
        request = await store.request(backend, "other")
        for _ in range(2):
            with pytest.raises(BackendError, match="is full and refuses writes"):
                await backend.claim(request)
        assert await backend.check([request.key]) == [None]
        await store.raw("CONFIG", "SET", "maxmemory", "0")
        assert (await backend.claim(request)).won
        assert len(await backend.history("other", limit=9)) == 1

    play(act, store.make())


def test_warnings_where_config_and_info_are_forbidden(own: Any, on: Any, play: Play) -> None:
    server = own()
    store = on(server, "lease")
    server.send("ACL SETUSER cron on >pw ~* +@all -config -info -cluster")
    url = store.url().replace("redis://", "redis://cron:pw@")

    async def act(backend: Any) -> None:
        said = await backend.warnings()
        assert [text for text in said if text.startswith("CONFIG is forbidden here")]
        assert [text for text in said if text.startswith("INFO is forbidden here")]
        assert (await backend.claim(await store.request(backend))).won

    play(act, from_url(url))


def test_the_server_and_its_age_are_told(lease: Any, play: Play) -> None:
    async def act(backend: Any) -> None:
        assert backend.limits.notes[0].startswith(f"this is {lease.server.name}")
        assert not [said for said in await backend.warnings() if "oldest that is tested" in said]

    play(act, lease.make())
    assert Server({"redis_version": "6.2.14"}).older_than_tested
    assert not Server({"redis_version": "7.2.4", "valkey_version": "9.1.2"}).older_than_tested
    assert not Server({}).older_than_tested


def replicated(own: Any) -> tuple[Any, Any]:
    """Start a primary, and a replica that follows it."""
    primary = own()
    replica = own(primary=primary)
    return primary, replica


async def followed(store: Any, count: int) -> None:
    """Wait until a primary has so many replicas in step."""
    for _ in range(1_000):
        reply = (await store.raw("INFO", "replication")) or {}
        if reply.get("connected_slaves") == count and (not count or reply["slave0"]["state"] == "online"):
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"no {count} replicas")


def test_a_failover_forgets_what_had_not_arrived(own: Any, on: Any, any_strategy: Any, play: Play) -> None:
    primary, replica = replicated(own)
    store, heir = on(primary, any_strategy.strategy), on(replica, any_strategy.strategy)
    heir.prefix = store.prefix

    async def act(backend: Any) -> None:
        await followed(store, 1)
        assert [said for said in await backend.warnings() if said.startswith("1 replicas follow asynchronously")]
        kept = await store.request(backend, exclusive=False)
        assert (await backend.claim(kept)).won
        assert await store.raw("WAIT", 1, 5_000) == 1
        replica.send("REPLICAOF NO ONE")  # cut off
        lost = replace(kept, key=replace(kept.key, slot_ms=kept.key.slot_ms + 1), token=new_token())
        assert (await backend.claim(lost)).won
        await asyncio.to_thread(primary.kill)
        other = heir.make()
        try:
            await other.open()
            assert not (await other.claim(replace(kept, token=new_token()))).won
            assert (await other.claim(replace(lost, token=new_token()))).won  # twice
        finally:
            await other.close()

    play(act, store.make())


def test_c05_a_win_that_no_replica_confirms_is_unknown(own: Any, on: Any, any_strategy: Any, play: Play) -> None:
    primary, replica = replicated(own)
    store = on(primary, any_strategy.strategy)

    async def act(backend: Any, plain: Any) -> None:
        await followed(store, 1)
        request = await store.request(backend, exclusive=False)
        assert (await backend.claim(request)).won
        replica.send("REPLICAOF NO ONE")
        await followed(store, 0)
        assert [said for said in await backend.warnings() if "no claim can be confirmed" in said]
        weak = replace(request, key=replace(request.key, slot_ms=request.key.slot_ms + 1), token=new_token())
        for _ in range(2):  # asked again with the same token it is as unknown as before
            with pytest.raises(BackendUnavailable, match="0 of 1 replicas confirmed"):
                await backend.claim(weak)
        many = await backend.claim_many([weak, replace(request, token=new_token())])
        assert isinstance(many[0], BackendUnavailable)
        assert not isinstance(many[1], BackendError)  # a refusal needs no confirmation
        assert not (await plain.claim(replace(weak, token=new_token()))).won
        replica.send(f"REPLICAOF {primary.host} {primary.port}")
        await followed(store, 1)
        assert (await backend.claim(weak)).won

    play(act, store.make(wait_replicas=1), store.make())


def test_a_replica_takes_no_claims(own: Any, on: Any, play: Play) -> None:
    _, replica = replicated(own)
    backend = on(replica, "lease").make()
    with pytest.raises(BackendUnavailable, match="is a replica and takes no writes; connect to the primary"):
        asyncio.run(backend.open())


def test_c23_a_connection_reset_while_idle_costs_one_call_at_most(newest: Any, on: Any) -> None:
    store = on(newest, "lease")

    async def act() -> None:
        async with Gate(newest.host, newest.port) as gate:
            backend: Any = from_url(store.url().replace(f":{newest.port}", f":{gate.port}"))
            try:
                await backend.open()
                request = await store.request(backend)
                assert (await backend.claim(request)).won
                gate.cut_now()
                while gate.links:
                    await asyncio.sleep(0.005)
                with suppress(BackendUnavailable):
                    await backend.finish(request.key, request.token, RunResult(RunStatus.SUCCESS))
                assert await backend.finish(request.key, request.token, RunResult(RunStatus.SUCCESS))
            finally:
                await backend.close()

    asyncio.run(act())
