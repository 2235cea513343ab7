"""The history: a stream for each job, which never decides a run (C18 to C20)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from aiormq.exceptions import ChannelPreconditionFailed
from anarchon.clock import SystemClock
from anarchon.errors import BackendError, BackendUnavailable
from anarchon.types import ClaimRequest, Outcome, RunResult, RunStatus, new_token
from anarchon_rabbitmq import RabbitMQBackend
from anarchon_rabbitmq.failures import explain
from anarchon_rabbitmq.names import stream_arguments

Play = Callable[..., Any]
DONE = RunResult(RunStatus.SUCCESS)
SIZE = 20
RUNS = 300


def slots(store: Any, count: int, **fields: Any) -> list[ClaimRequest]:
    """Return claims of rising slots of one job."""
    first = store.request(ago_ms=60_000, **fields)
    return [
        replace(first, key=replace(first.key, slot_ms=first.key.slot_ms + number), token=new_token()) for number in range(count)
    ]


def test_c19_a_run_whose_runner_died_stays_running(store: Any, play: Play) -> None:
    async def act(runner: RabbitMQBackend, reader: RabbitMQBackend) -> list[tuple[str, RunStatus]]:
        request = store.request(instance="host-7")
        await runner.claim(request)
        await runner.close()  # it waits for what it is about to write, and says nothing more
        return [(record.instance, record.status) for record in await reader.history("job", limit=10)]

    assert play(act, store.make(), store.make()) == [("host-7", RunStatus.RUNNING)]


def test_c19_what_others_wrote_is_there_as_soon_as_their_finish_returned(store: Any, play: Play) -> None:
    async def act(*backends: RabbitMQBackend) -> None:
        requests = slots(store, 12)
        for number, request in enumerate(requests):
            writer, reader = backends[number % 2], backends[(number + 1) % 2]
            await writer.claim(request)
            await writer.finish(request.key, request.token, RunResult(RunStatus.FAILED, f"E{number}"))
            newest = (await reader.history("job", limit=1))[0]
            assert (newest.slot_ms, newest.error) == (request.key.slot_ms, f"E{number}")
        found = [record.slot_ms for record in await backends[0].history("job", limit=100)]
        assert found == [request.key.slot_ms for request in reversed(requests)]

    play(act, store.make(), store.make())


def test_c20_the_stream_is_sized_from_history_size(newest: Any, play: Play) -> None:
    """By size only, a segment at a time: at least `history_size` runs are kept, and not many times as many."""

    async def act(backend: RabbitMQBackend) -> int:
        for request in slots(newest, RUNS, history_size=SIZE):
            await backend.claim(request)
            await backend.finish(request.key, request.token, DONE)
        return len(await backend.history("job", limit=10 * RUNS))

    kept = play(act, newest.make())
    assert SIZE <= kept <= 6 * SIZE


def test_c20_the_least_and_the_largest_history_can_be_declared(store: Any) -> None:
    async def act() -> None:
        for size in (1, 1_000_000):
            await store.declare(f"{store.prefix}s{size}.history", stream_arguments(size))

    asyncio.run(act())


def test_c19_a_stream_keeps_its_first_size_and_is_used_as_it_is(store: Any, play: Play) -> None:
    async def act(one: RabbitMQBackend, two: RabbitMQBackend) -> int:
        requests = slots(store, 2)
        for backend, request, size in zip((one, two), requests, (10, 500), strict=True):
            await backend.claim(replace(request, history_size=size))
            assert await backend.finish(request.key, request.token, DONE)
        return len(await two.history("job", limit=10))

    assert play(act, store.make(), store.make()) == 2


def test_c19_a_history_that_cannot_be_written_decides_no_run(token: Any, play: Play) -> None:
    """Somebody's classic queue stands where the stream should be: the run is won, and its finish says what is wrong."""

    async def act(backend: RabbitMQBackend, other: RabbitMQBackend) -> Outcome:
        await token.declare(f"{token.prefix}job.history", {"x-queue-type": "classic"})
        request = token.request()
        assert (await backend.claim(request)).won
        with pytest.raises(BackendError, match=r"job\.history"):
            await backend.finish(request.key, request.token, DONE)
        return (await other.claim(replace(request, token=new_token()))).outcome

    assert play(act, token.make(), token.make()) == Outcome.LOST


def test_c19_a_stream_that_was_deleted_is_made_anew(store: Any, play: Play) -> None:
    async def act(backend: RabbitMQBackend) -> list[int]:
        one, two = slots(store, 2)
        await backend.claim(one)
        await backend.finish(one.key, one.token, DONE)
        await backend.forget("job")
        assert await backend.history("job", limit=5) == []
        await backend.claim(two)
        assert await backend.finish(two.key, two.token, DONE)
        return [record.slot_ms - one.key.slot_ms for record in await backend.history("job", limit=5)]

    assert play(act, store.make()) == [1]


def test_c19_a_long_history_is_read_to_its_end(newest: Any, play: Play) -> None:
    """More records than the broker sends before the first is acknowledged."""

    async def act(backend: RabbitMQBackend) -> tuple[int, int]:
        requests = slots(newest, 1_100, history_size=5_000)
        clock = SystemClock()
        for start in range(0, len(requests), 100):
            part = requests[start : start + 100]
            await backend.claim_many(part)
            await asyncio.gather(*(backend.finish(request.key, request.token, DONE) for request in part))
        began_ms = clock.monotonic_ms()
        found = await backend.history("job", limit=2_000)
        assert clock.monotonic_ms() - began_ms < 5_000
        return len(found), len([record for record in found if record.status is RunStatus.SUCCESS])

    assert play(act, newest.make()) == (1_100, 1_100)


def test_c19_what_is_no_record_of_ours_is_passed_over(store: Any, play: Play) -> None:
    async def act(backend: RabbitMQBackend) -> list[RunStatus]:
        request = store.request()
        await backend.claim(request)
        await backend.finish(request.key, request.token, DONE)
        async with store.raw() as connection:
            channel = await connection.channel()
            for body in (b"", b"{}", b"\xff\xfe", b'{"slot":"x"}', b"[1]"):
                await channel.basic_publish(body, routing_key=f"{store.prefix}job.history")
        return [record.status for record in await backend.history("job", limit=5)]

    assert play(act, store.make()) == [RunStatus.SUCCESS]


@pytest.mark.parametrize(
    "said",
    [
        "PRECONDITION_FAILED - queue 'queue 'c.history' in vhost '/'' does not have a replica on the local node",
        "INTERNAL_ERROR - stream queue 'c.history' in vhost '/' does not have a running replica on the local node",
    ],
)
def test_c19_a_stream_that_is_being_made_is_asked_again(said: str) -> None:
    """What 3.10 was seen to say of a stream read right after its making; `within` repeats what is unavailable."""
    assert isinstance(explain(ChannelPreconditionFailed(406, said), "RabbitMQ"), BackendUnavailable)
