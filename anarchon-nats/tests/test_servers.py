"""What a server is and does: missing JetStream, missing rights, other people's streams, silence, crashes (C5, C6, C23)."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import pytest
from anarchon.errors import BackendError, BackendTimeout, BackendUnavailable, StoreSetupError
from anarchon.types import ClaimRequest, Outcome, RunKey, RunResult, RunStatus, new_token
from anarchon_nats import NatsCasBackend, NatsLeaseBackend, NatsMsgIdBackend, from_url
from anarchon_nats.options import Address
from anarchon_nats.wire import connect
from stores.nats import Nats29, Nats215

Play = Callable[..., Any]
DONE = RunResult(RunStatus.SUCCESS)
KILLS, KILLS_NIGHTLY = 5, 50
CLASSES: dict[str, Any] = {"lease": NatsLeaseBackend, "cas": NatsCasBackend, "msg-id": NatsMsgIdBackend}


def refused(url: str) -> str:
    """Return the sentence with which a store is refused when it is opened."""

    async def act() -> str:
        backend = from_url(url)
        with pytest.raises(StoreSetupError) as why:
            await backend.open()
        await backend.close()
        return str(why.value)

    said = asyncio.run(act())
    assert "\n" not in said
    return said


@pytest.mark.parametrize("kind", [Nats29, Nats215], ids=lambda kind: kind.name)
def test_tls_is_spoken_and_the_certificate_is_looked_at(
    kind: Any, own: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kit", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(["openssl", "req", *made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    server = own(kind, extra=f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}')
    url = server.url("tls")

    async def act() -> bool:
        backend = from_url(url)
        try:
            await backend.open()
            key = RunKey("job", await backend.now_ms() - 5)
            return (await backend.claim(ClaimRequest(key=key, token=new_token(), instance="one"))).won
        finally:
            await backend.close()

    with pytest.raises(BackendError, match=r"(?i)certificate"):
        asyncio.run(act())
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert asyncio.run(act())


# -- what cannot be used


@pytest.mark.parametrize("kind", [Nats29, Nats215], ids=lambda kind: kind.name)
def test_a_server_without_jetstream_is_refused_in_one_sentence(kind: Any, own: Any, on: Any) -> None:
    store = on(own(kind, jetstream=False), "lease")
    assert refused(store.url()).startswith("JetStream is not enabled on this server (NATS at 127.0.0.1:")


@pytest.mark.parametrize("kind", [Nats29, Nats215], ids=lambda kind: kind.name)
def test_missing_rights_are_told_in_one_sentence(kind: Any, own: Any, on: Any) -> None:
    allowed = '["$JS.API.INFO", "$JS.API.STREAM.>"]'
    users = (
        'authorization { users = [ {user: blind, password: b, permissions: {subscribe: "x"}},'
        '{user: mute, password: m, permissions: {publish: "x"}},'
        f"{{user: weak, password: w, permissions: {{publish: {allowed}}}}},"
        '{user: good, password: g, permissions: {publish: ["$JS.API.>", "$KV.cron.>"], subscribe: "_INBOX.>"}} ] }'
    )
    server = own(kind, extra=users)
    url = server.url(options={"strategy": "cas"})
    place = url.split("//")[1]
    assert "refuses this user: it may not publish to $JS.API.INFO. Give it" in refused(f"nats://mute:m@{place}")
    assert "refuses this user: it may not subscribe to _INBOX." in refused(f"nats://blind:b@{place}")
    assert "Authorization" in refused(f"nats://weak:wrong@{place}")

    async def act() -> None:
        backend: Any = from_url(f"nats://weak:w@{place}")
        await backend.open()
        try:
            request = await on(server, "cas").request(backend, slot_ms=1)
            with pytest.raises(StoreSetupError, match=r"it may not publish to cron.job.slot.1\. Give it"):
                await backend.claim(request)
        finally:
            await backend.close()

    asyncio.run(act())


def test_two_strategies_on_one_prefix_are_refused(newest: Any, on: Any, play: Play) -> None:
    for mine in CLASSES:
        store = on(newest, mine)

        async def nothing(_: Any) -> None:
            pass

        play(nothing, store.make())
        for other in CLASSES:
            if other != mine:
                said = refused(store.url(strategy=other))
                assert f"is used with strategy={mine}, and two strategies would run each slot twice" in said


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"subjects": ["{p}.x"]}, "it does not take {p}.*.slot.*; add that subject"),
        ({"subjects": ["{p}.>"], "no_ack": True}, "it acknowledges nothing"),
        ({"subjects": ["{p}.>"], "retention": "workqueue"}, "its retention is workqueue"),
    ],
)
def test_a_stream_that_cannot_be_used_is_refused(config: dict[str, Any], why: str, server: Any, on: Any) -> None:
    store = on(server, "cas")
    config = {**config, "name": store.prefix, "subjects": [text.format(p=store.prefix) for text in config["subjects"]]}
    assert "error" not in asyncio.run(store.api(f"STREAM.CREATE.{store.prefix}", config))
    assert why.format(p=store.prefix) in refused(store.url(stream=store.prefix))


# -- what is used as it is


def test_an_existing_stream_is_used_as_it_is_with_a_warning(first: Any, play: Play) -> None:
    """Two prefixes in one stream of somebody else's: message IDs are compared across it, and must not meet (C7)."""
    subjects = ["{}.*.slot.*", "other.{}.*.slot.*"] if first.strategy == "cas" else ["{}.*.claims", "other.{}.*.claims"]
    config = {"name": f"EVENTS-{first.prefix}", "max_age": 100 * 10**9, "duplicate_window": 90 * 10**9, "max_msgs": 10**6}
    config["subjects"] = [text.format(first.prefix) for text in subjects]
    made = asyncio.run(first.api(f"STREAM.CREATE.{config['name']}", config))
    assert "error" not in made

    async def act(*backends: Any) -> None:
        said = " ".join(await backends[0].warnings())
        assert "keeps claims for 100 s, not for 86400 s: it is used as it is" in said
        assert "has max_msgs=1000000: it drops claims before their time" in said
        assert ("duplicate_window of 90 s, not 300 s" in said) == (first.strategy == "msg-id")
        assert backends[0].limits.remembers_ms == (90_000 if first.strategy == "msg-id" else 100_000)
        request = await first.request(backends[0])
        for backend in backends:
            assert (await backend.claim(replace(request, token=new_token()))).won
        assert [record.slot_ms for record in await backends[0].history("job", limit=9)] == [request.key.slot_ms]
        with pytest.raises(StoreSetupError, match=r"can be claimed up to 200 s late, but the stream EVENTS-\w+ remembers"):
            await backends[0].claim(await first.request(backends[0], keep_ms=200_000))

    play(act, first.make(), first.make(prefix=f"other.{first.prefix}", stream=config["name"]))
    after = asyncio.run(first.api(f"STREAM.INFO.{config['name']}"))
    assert after["config"] == made["config"]


def test_memory_storage_is_warned_about(store: Any, play: Play) -> None:
    name = f"KV_{store.prefix}" if store.strategy == "lease" else f"S{store.prefix}"
    subjects = {"lease": f"$KV.{store.prefix}.>", "cas": f"{store.prefix}.*.slot.*", "msg-id": f"{store.prefix}.*.claims"}
    config = {"name": name, "storage": "memory", "subjects": [subjects[store.strategy]], "max_msgs_per_subject": 1}
    assert "error" not in asyncio.run(store.api(f"STREAM.CREATE.{name}", config))

    async def act(backend: Any) -> None:
        assert not backend.limits.durable
        assert [
            said for said in await backend.warnings() if "lives in memory: a restart of the server forgets every claim" in said
        ]
        assert (await backend.claim(await store.request(backend))).won

    play(act, store.make())


def test_c06_a_window_that_is_too_short_is_refused_at_add(newest: Any, on: Any) -> None:
    from anarchon import Scheduler
    from anarchon.errors import OptionError

    for options, sure in (({"strategy": "msg-id", "duplicate_window": 60}, 30), ({"strategy": "cas", "max_age": 60}, 30)):
        scheduler = Scheduler(newest.url(options=options))
        scheduler.add_job(print, "@hourly", name="fits", max_late=sure)
        with pytest.raises(OptionError, match="this store forgets a run after 60 s"):
            scheduler.add_job(print, "@hourly", name="late", max_late=60)


def test_c20_streams_keep_no_claim_for_longer_than_max_age(first: Any, play: Play) -> None:
    async def act(backend: Any) -> None:
        now_ms = await backend.now_ms()
        requests = [await first.request(backend, slot_ms=now_ms - 500 + n, keep_ms=0) for n in range(300)]
        assert all(claim.won for claim in await backend.claim_many(requests[:100]))
        for start in (100, 200):
            assert all(claim.won for claim in await backend.claim_many(requests[start : start + 100]))
        name, deadline = backend._found.name, time.monotonic() + 30
        while (await first.api(f"STREAM.INFO.{name}"))["state"]["messages"] > 5:  # ticks of the clock are messages too
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)

    play(act, first.make(max_age=1, **({"duplicate_window": 1} if first.strategy == "msg-id" else {})))


# -- silence and crashes


def test_c23_a_frozen_server_is_a_timeout_and_the_next_call_works(own: Any, on: Any, play: Play) -> None:
    store = on(own(), "lease")

    async def act(backend: Any) -> None:
        request = await store.request(backend)
        store.server.pause()
        began = time.monotonic()
        with pytest.raises(BackendTimeout, match="did not answer within 5 s"):
            await backend.claim(request)
        assert time.monotonic() - began < 7
        store.server.resume()
        assert (await backend.claim(request)).won

    play(act, store.make())


def test_a_server_of_the_url_that_is_down_is_passed_over(own: Any, newest: Any, on: Any, play: Play) -> None:
    gone, store = own(), on(newest, "cas")
    gone.kill()

    async def act(backend: Any) -> None:
        assert (await backend.claim(await store.request(backend))).won

    play(act, from_url(store.url().replace("nats://", f"nats://{gone.host}:{gone.port},")))


def test_c23_a_server_that_goes_fails_what_is_under_way_at_once(own: Any, on: Any, play: Play) -> None:
    store = on(own(), "lease")

    async def act(backend: Any) -> None:
        request = await store.request(backend)
        store.server.pause()
        claim = asyncio.create_task(backend.claim(request))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await asyncio.to_thread(store.server.kill)
        with pytest.raises(BackendUnavailable, match="cannot be reached"):
            await claim
        assert time.monotonic() - began < 3
        await asyncio.to_thread(store.server.start)
        assert (await backend.claim(request)).won

    play(act, store.make())


@pytest.mark.parametrize("strategy", CLASSES)
@pytest.mark.parametrize("kind", [Nats29, Nats215], ids=lambda kind: kind.name)
def test_c06_no_acknowledged_claim_is_lost_when_the_process_dies(
    kind: Any, strategy: str, own: Any, on: Any, play: Play, profile: str
) -> None:
    """Four instances claim while the server is killed again and again; who was told WON keeps it."""
    kills = KILLS_NIGHTLY if profile == "nightly" else KILLS
    store = on(own(kind), strategy)
    fields = {"exclusive": False, "keep_ms": 290_000, "max_late_ms": 280_000, "history_size": 10**6, "lease_ms": 600_000}

    async def act(*backends: Any) -> None:
        won: dict[int, list[str]] = {}
        over = asyncio.Event()

        async def claimer(backend: Any) -> None:
            slot_ms = first_ms
            while not over.is_set():
                slot_ms += 1
                await asyncio.sleep(0.002)
                with suppress(BackendError):
                    request = await store.request(backend, slot_ms=slot_ms, **fields)
                    claim = await backend.claim(request)
                    if claim.won:
                        won.setdefault(slot_ms, []).append(request.token)
                        await backend.finish(request.key, request.token, DONE)

        first_ms = await backends[0].now_ms() - 100_000
        tasks = [asyncio.create_task(claimer(backend)) for backend in backends]
        for _ in range(kills):
            seen = len(won)
            while len(won) < seen + 20:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(store.server.kill)
            await asyncio.to_thread(store.server.start)
        over.set()
        await asyncio.gather(*tasks)
        assert len(won) >= 20 * kills
        assert not [slot for slot, winners in won.items() if len(winners) > 1]
        for slot_ms, (token,) in won.items():
            stranger = await backends[0].claim(await store.request(backends[0], slot_ms=slot_ms, **fields))
            assert stranger.outcome in {Outcome.LOST, Outcome.DONE, Outcome.RUNNING}, (slot_ms, token, stranger)

    play(act, *(store.make() for _ in range(4)))


# -- what is lent


@pytest.mark.parametrize("strategy", CLASSES)
def test_c24_a_lent_connection_stays_open_and_works_from_another_loop(strategy: str, newest: Any, on: Any) -> None:
    store = on(newest, strategy)

    async def act() -> None:
        client = await nats.connect(newest.url())
        before = set(client._subs)
        backend = CLASSES[strategy](client, prefix=store.prefix)
        await backend.open()
        request = await store.request(backend)

        def elsewhere() -> None:
            async def claim() -> None:
                assert (await backend.claim(request)).won
                assert await backend.finish(request.key, request.token, DONE)
                assert len(await backend.history("job", limit=9)) == 1

            asyncio.run(claim())

        await asyncio.to_thread(elsewhere)
        await backend.close()
        assert client.is_connected
        assert set(client._subs) == before
        await client.close()

    asyncio.run(act())


def test_a_lone_request_is_written_before_its_reply_is_waited_for(newest: Any) -> None:
    """The driver leaves the writing to a task of its own, which costs more than a turn of the loop."""

    async def act() -> list[int]:
        wire = await connect(Address(servers=((newest.host, newest.port),)), 0)
        left = []
        try:
            for others in ((), ("somebody",)):
                await wire._client.flush()
                wire._waiting.update(dict.fromkeys(("me", *others), (asyncio.Future(), "nobody.listens")))
                with wire._prompt():
                    await wire._client.publish("nobody.listens", b"x")
                left.append(wire._client.pending_data_size)
                wire._waiting.clear()
        finally:
            await wire.close()
        return left

    alone, together = asyncio.run(act())
    assert alone == 0
    assert together > 0, "those of many are written together"
