"""Cluster mode: a hash tag keeps a job's keys together, and a client without it is told so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from anarchon.errors import StoreSetupError
from anarchon.types import Outcome, RunResult, RunStatus, new_token
from anarchon_redis import RedisLeaseBackend
from anarchon_redis.factory import from_url
from anarchon_redis.link import _cluster_client
from anarchon_redis.options import Address
from redis.asyncio import RedisCluster as ClusterClient
from redis.crc import key_slot

Play = Callable[..., Any]
KEY = "cron:{sync}:runs"
JOBS = ("a", "b:c", "{d}", "ä", "}{")


def test_c10_a_lease_works_in_a_cluster(cluster: Any, on: Any, play: Play) -> None:
    store = on(cluster, "lease")

    async def act(backend: Any, other: Any) -> None:
        for job in JOBS:
            request = await store.request(backend, job, lease_ms=20_000)
            assert (await backend.claim(request)).won
            newer = replace(request, key=replace(request.key, slot_ms=request.key.slot_ms + 1), token=new_token())
            assert (await other.claim(newer)).outcome is Outcome.OVERLAP
            assert await backend.renew(request.key, request.token, 30_000)
            assert await backend.release(request.key, request.token)
            assert (await other.claim(replace(request, token="second"))).attempt == 2
            assert [view.key for view in await backend.unfinished(JOBS)] == [request.key]
            assert await other.finish(request.key, "second", RunResult(RunStatus.SUCCESS))
            assert [record.attempt for record in await backend.history(job, limit=9)] == [2, 1]
        assert {view.job for view in await backend.jobs()} == set(JOBS)
        await backend.set_paused("a", True)
        batch = [await store.request(backend, job) for job in JOBS]
        answers = await backend.claim_many(batch)
        assert [answer.outcome for answer in answers] == [Outcome.PAUSED, *[Outcome.WON] * 4]
        assert len(await backend.check([request.key for request in batch])) == len(JOBS)
        for job in JOBS:
            await backend.forget(job)
        assert await backend.jobs() == []
        assert await backend.warnings() == []  # a server that is set as the page says
        assert abs(await backend.now_ms() - await other.now_ms()) < 60_000

    play(act, store.make(), store.make())


def test_opening_does_not_read_what_every_command_is(cluster: Any, on: Any, play: Play) -> None:
    store = on(cluster, "lease")

    def asked() -> list[str]:
        lines = cluster.send("INFO commandstats", whole=True).split("\r\n")
        return [line for line in lines if line.startswith("cmdstat_command:")]

    async def act(backend: Any) -> None:
        assert (await backend.claim(await store.request(backend))).won
        assert asked() == before

    before = asked()
    play(act, store.make())


@pytest.mark.parametrize(
    "command",
    [
        ("SET", KEY, "lease", "NX"),
        ("GET", KEY),
        ("SADD", KEY, "a", "b"),
        ("SREM", KEY, "a"),
        ("SMEMBERS", KEY),
        ("HMGET", KEY, "a", "b"),
        ("UNLINK", KEY, "cron:{sync}:state"),
        ("XADD", KEY, "1-0", "slot", 1),
        ("XCFGSET", KEY, "IDMP-DURATION", 1),
        ("EVALSHA", "0" * 40, 2, KEY, "cron:{sync}:state", "x"),
    ],
    ids=lambda command: command[0],
)
def test_a_command_goes_to_the_node_that_has_its_key(command: tuple[str, ...]) -> None:
    async def act() -> None:
        client = _cluster_client(Address())
        assert await client._determine_slot(*command) == key_slot(b"sync")

    asyncio.run(act())


def test_c07_all_keys_of_a_job_carry_its_hash_tag(cluster: Any, on: Any, play: Play) -> None:
    store = on(cluster, "lease")

    async def act(backend: Any) -> None:
        assert (await backend.claim(await store.request(backend, "sync"))).won
        reply = cluster.send(f"KEYS {store.prefix}*", whole=True)
        keys = {line for line in reply.split("\r\n") if line.startswith(store.prefix)}
        tagged = {f"{store.prefix}{{sync}}:{suffix}" for suffix in ("state", "runs", "live")}
        assert keys == {*tagged, f"{store.prefix}jobs", f"{store.prefix}strategy"}

    play(act, store.make())


def test_c03_scripts_come_back_after_a_flush_in_a_cluster(cluster: Any, on: Any, play: Play) -> None:
    store = on(cluster, "lease")

    async def act(backend: Any) -> None:
        request = await store.request(backend)
        assert (await backend.claim(request)).won
        cluster.send("SCRIPT FLUSH")
        assert (await backend.claim(request)).won
        assert await backend.finish(request.key, request.token, RunResult(RunStatus.SUCCESS))

    play(act, store.make())


def test_a_url_without_cluster_is_told_what_is_missing(cluster: Any, on: Any) -> None:
    backend = from_url(on(cluster, "lease").url(cluster="false"))
    with pytest.raises(StoreSetupError, match="is part of a cluster: add cluster=true"):
        asyncio.run(backend.open())


def test_a_cluster_url_for_a_single_server_is_an_error(newest: Any, on: Any) -> None:
    backend = on(newest, "lease").make(cluster="true")
    with pytest.raises(StoreSetupError, match="is no cluster: leave out cluster=true"):
        asyncio.run(backend.open())


def test_c24_a_borrowed_cluster_client_stays_open(cluster: Any, on: Any) -> None:
    store = on(cluster, "lease")

    async def act() -> None:
        async with ClusterClient(host=cluster.host, port=cluster.port, decode_responses=True) as client:
            backend = RedisLeaseBackend(client, prefix=store.prefix)
            await backend.open()
            request = await store.request(backend)
            assert (await backend.claim(request)).won
            assert [view.status for view in await backend.unfinished(["job"])] == [RunStatus.RUNNING]
            await backend.close()
            assert await client.ping()

    asyncio.run(act())
