"""Who is first: exactly one winner, on both versions, by both strategies and by the two mixed (C1, C2, C4, C6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from anarchon.clock import SystemClock
from anarchon.errors import BackendError
from anarchon.types import Claim, ClaimRequest, Outcome, RunResult, RunStatus, new_token
from anarchon_rabbitmq import RabbitMQBackend, trial

Play = Callable[..., Any]
ROUNDS, CONNECTIONS = 200, 8
WAITS_MAX = 100


async def race(backends: tuple[RabbitMQBackend, ...], request: ClaimRequest) -> list[Claim]:
    """Let every backend claim one run at the same moment, each with a token of its own."""
    return list(await asyncio.gather(*(backend.claim(replace(request, token=new_token())) for backend in backends)))


def winners_of(rounds: list[list[Claim]]) -> list[int]:
    return [sum(claim.won for claim in answers) for answers in rounds]


def test_c01_two_hundred_races_of_eight_connections_have_one_winner_each(
    store: Any, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate is believed at once here: nothing but its one place decides."""
    monkeypatch.setattr(trial, "PROOF_MS", 0)

    async def act(*backends: RabbitMQBackend) -> list[list[Claim]]:
        first = store.request().key
        return [
            await race(backends, store.request(key=replace(first, slot_ms=first.slot_ms - number))) for number in range(ROUNDS)
        ]

    rounds = play(act, *(store.make() for _ in range(CONNECTIONS)))
    assert winners_of(rounds) == [1] * ROUNDS
    assert {claim.outcome for answers in rounds for claim in answers} == {Outcome.WON, Outcome.LOST}


def test_c01_a_fleet_of_both_strategies_has_one_winner_each(server: Any, play: Play, gate: Any) -> None:
    async def act(*backends: RabbitMQBackend) -> list[list[Claim]]:
        first = gate.request().key
        return [await race(backends, gate.request(key=replace(first, slot_ms=first.slot_ms - number))) for number in range(50)]

    made = [gate.make(strategy=strategy) for strategy in ("token", "gate") * (CONNECTIONS // 2)]
    assert winners_of(play(act, *made)) == [1] * 50


def test_c01_a_fleet_with_two_ttls_has_one_winner_each(store: Any, play: Play) -> None:
    """A new slot_ttl is rolled out: each run's queue keeps the one it was declared with, and everybody uses it."""

    async def act(*backends: RabbitMQBackend) -> list[list[Claim]]:
        first = store.request().key
        return [await race(backends, store.request(key=replace(first, slot_ms=first.slot_ms - number))) for number in range(50)]

    made = [store.make(slot_ttl=300 if place % 2 else 600) for place in range(CONNECTIONS)]
    assert winners_of(play(act, *made)) == [1] * 50


def test_c04_a_refusal_names_the_winner(token: Any, play: Play) -> None:
    async def act(backend: RabbitMQBackend) -> Claim:
        request = token.request(instance="host-7:4242")
        await backend.claim(request)
        return await backend.claim(replace(request, token=new_token(), instance="another"))

    assert play(act, token.make()) == Claim(Outcome.LOST, winner="host-7:4242")


def test_c04_an_own_claim_is_known_under_another_instance_name_and_ttl(token: Any, play: Play) -> None:
    async def act(one: RabbitMQBackend, two: RabbitMQBackend) -> list[Outcome]:
        request = token.request(instance="the one")
        return [(await one.claim(request)).outcome, (await two.claim(replace(request, instance="the other"))).outcome]

    assert play(act, token.make(), token.make(slot_ttl=600)) == [Outcome.WON, Outcome.WON]


def test_c04_a_token_that_a_gate_let_in_is_told_won_again(token: Any, play: Play) -> None:
    """The queue was declared by a gate that got no further: the run is decided by its message, and the token remembers."""

    async def act(backend: RabbitMQBackend) -> list[Outcome]:
        request = token.request()
        arguments = {"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish", "x-expires": 300_000}
        await token.declare(token.queue(request), arguments)
        answers = [await backend.claim(request), await backend.claim(request)]
        return [answer.outcome for answer in [*answers, await backend.claim(replace(request, token=new_token()))]]

    assert play(act, token.make()) == [Outcome.WON, Outcome.WON, Outcome.LOST]


def test_c01_a_gate_that_meets_a_token_has_lost_and_hears_to_whom(gate: Any, play: Play) -> None:
    async def act(one: RabbitMQBackend, two: RabbitMQBackend) -> Claim:
        request = gate.request(instance="token's host")
        await one.claim(request)
        return await two.claim(replace(request, token=new_token()))

    claim = play(act, gate.make(strategy="token"), gate.make(slot_ttl=600))
    assert claim == Claim(Outcome.LOST, winner="token?s host")


def test_c05_a_gate_is_asked_once_a_token(gate: Any, play: Play) -> None:
    async def act(backend: RabbitMQBackend) -> None:
        request = gate.request()
        assert (await backend.claim(request)).won
        with pytest.raises(BackendError, match="a gate cannot be asked whom it let in"):
            await backend.claim(request)
        assert await backend.finish(request.key, request.token, RunResult(RunStatus.SUCCESS))

    play(act, gate.make())


def test_c06_a_run_is_remembered_for_slot_ttl_and_then_its_queue_goes(store: Any, play: Play) -> None:
    async def act(backend: RabbitMQBackend) -> float:
        clock, request = SystemClock(), store.request()
        began_ms = clock.monotonic_ms()
        assert (await backend.claim(request)).won
        async with store.raw() as connection:
            for _ in range(WAITS_MAX):
                channel = await connection.channel()
                queues = await exists(channel, store.queue(request))
                if not queues:
                    return clock.monotonic_ms() - began_ms
                await clock.sleep_ms(100)
        raise AssertionError("the queue did not expire")

    # Looking at a queue is a use of it, so it is looked at by its binding: that is none.
    assert play(act, store.make(slot_ttl=1)) >= 1_000


async def exists(channel: Any, queue: str) -> bool:
    """Return whether a message to a queue arrives, without counting as a use of it."""
    try:
        await channel.basic_publish(b"", routing_key=queue, mandatory=True)
    except Exception as error:
        return type(error).__name__ != "PublishError"
    return True


def test_c02_a_hundred_claims_at_once_are_all_won(store: Any, play: Play) -> None:
    async def act(backend: RabbitMQBackend) -> set[Outcome]:
        requests = [store.request(f"job-{number}") for number in range(100)]
        return {answer.outcome for answer in await backend.claim_many(requests) if isinstance(answer, Claim)}

    assert play(act, store.make()) == {Outcome.WON}


def test_c06_a_broker_that_was_killed_still_knows_who_won(token: Any, gate: Any, play: Play) -> None:
    async def act(*backends: RabbitMQBackend) -> None:
        won = [(backend, store.request(job)) for backend, store in zip(backends, (token, gate), strict=True) for job in "abcde"]
        for backend, request in won:
            assert (await backend.claim(request)).won
        for backend in backends:
            assert len(await backend.history("e", limit=9)) == 1  # the last thing that is written
        await asyncio.to_thread(token.server.kill)
        await asyncio.to_thread(token.server.start)
        for backend, request in won:
            assert (await patiently(backend, request)).outcome is Outcome.LOST

    play(act, token.make(), gate.make())


async def patiently(backend: RabbitMQBackend, request: ClaimRequest) -> Claim:
    """Claim as somebody else, again with another token where the answer is unknown."""
    for _ in range(WAITS_MAX):
        try:
            return await backend.claim(replace(request, token=new_token()))
        except BackendError:
            await SystemClock().sleep_ms(100)
    pytest.fail("no answer", pytrace=False)
