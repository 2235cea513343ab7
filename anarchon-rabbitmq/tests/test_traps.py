"""What would make everybody win, or nobody: queue types, policies, queues of others, vanished gates (C1, C5)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiormq.channel import Channel
from anarchon.clock import SystemClock
from anarchon.errors import BackendError, BackendTimeout, BackendUnavailable, StoreSetupError
from anarchon.types import Claim, Outcome, RunResult, RunStatus, new_token
from anarchon_rabbitmq import RabbitMQBackend, trial

Play = Callable[..., Any]
QUORUM = {"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish", "x-expires": 300_000}
GATE = {**QUORUM, "x-queue-type": "classic"}
OTHERS = 8
TTL_MS = 40
ALARM_OVER_MS = 20_000


@contextmanager
def policy(store: Any, **definition: int) -> Iterator[None]:
    """Apply a policy to the queues of this test."""
    name = f"policy-{store.prefix}"
    pattern = "^" + store.prefix.replace(".", r"\.")
    store.server.ctl("set_policy", "--apply-to", "queues", name, pattern, json.dumps(definition).replace("_", "-"))
    try:
        yield
    finally:
        store.server.ctl("clear_policy", name)


# -- the type of the queue


def test_c01_a_virtual_host_whose_default_type_is_quorum_has_one_winner(store: Any, play: Play) -> None:
    """With a quorum queue most of these rounds have several winners."""
    store.vhost = store.prefix.rstrip(".")
    store.server.add_vhost(store.vhost, "--default-queue-type", "quorum")

    async def act(*backends: RabbitMQBackend) -> list[int]:
        found = []
        for number in range(30):
            request = store.request(f"job-{number}")
            answers = await asyncio.gather(*(each.claim(replace(request, token=new_token())) for each in backends))
            found.append(sum(claim.won for claim in answers))
        return found

    assert play(act, *(store.make() for _ in range(OTHERS))) == [1] * 30


@pytest.mark.parametrize(
    ("arguments", "durable", "named"),
    [
        (QUORUM, True, "x-queue-type"),
        ({**GATE, "x-max-length": 2}, True, "x-max-length"),
        ({**GATE, "x-overflow": "drop-head"}, True, "x-overflow"),
        ({**GATE, "x-message-ttl": 1_000}, True, "x-message-ttl"),
        (GATE, False, "durable"),
        ({**GATE, "x-expires": 50_000, "x-max-length": 2}, True, "x-max-length"),
    ],
    ids=["quorum", "longer", "dropping", "expiring", "transient", "two-differences"],
)
def test_c05_a_queue_of_somebody_else_under_our_name_is_unknown_and_named(
    store: Any, play: Play, arguments: dict[str, Any], *, durable: bool, named: str
) -> None:
    async def act(backend: RabbitMQBackend) -> Claim:
        request = store.request()
        await store.declare(store.queue(request), arguments, durable=durable)
        for _ in range(2):
            with pytest.raises(BackendError, match=f"another {named} ") as told:
                await backend.claim(replace(request, token=new_token()))
            assert store.queue(request) in str(told.value)
        return await backend.claim(store.request("another"))

    assert play(act, store.make()).won


# -- policies


def test_c01_a_policy_with_message_ttl_cannot_empty_a_token(token: Any, play: Play) -> None:
    async def act(one: RabbitMQBackend, two: RabbitMQBackend) -> list[Outcome]:
        requests = [token.request(f"job-{number}") for number in range(5)]
        assert all([(await one.claim(request)).won for request in requests])
        await SystemClock().sleep_ms(3 * TTL_MS)
        return [(await two.claim(replace(request, token=new_token()))).outcome for request in requests]

    with policy(token, message_ttl=TTL_MS):
        assert play(act, token.make(), token.make()) == [Outcome.LOST] * 5


def test_c01_a_gate_emptied_by_a_policy_with_message_ttl_is_not_won_twice(gate: Any, play: Play) -> None:
    """The message of the first claim expires, the second one is let in, and finds the first in the history."""

    async def act(one: RabbitMQBackend, two: RabbitMQBackend) -> list[Claim]:
        requests = [gate.request(f"job-{number}", instance="the first") for number in range(5)]
        assert all([(await one.claim(request)).won for request in requests])
        await one.history("job-0", limit=1)  # so that the starts of the runs are written
        await SystemClock().sleep_ms(5 * TTL_MS)
        return [await two.claim(replace(request, token=new_token())) for request in requests]

    with policy(gate, message_ttl=TTL_MS):
        assert play(act, gate.make(), gate.make()) == [Claim(Outcome.LOST, winner="the first")] * 5


def test_c01_a_canary_tells_of_a_policy_with_message_ttl(gate: Any, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(backend: RabbitMQBackend) -> None:
        assert (await backend.claim(gate.request())).won
        await SystemClock().sleep_ms(5 * TTL_MS)
        with pytest.raises(BackendError, match=r"lost its message.*remove the policy with message-ttl"):
            await backend.claim(gate.request("another"))

    monkeypatch.setattr(trial, "PROOF_MS", 4 * TTL_MS)
    with policy(gate, message_ttl=TTL_MS):
        play(act, gate.make())


def test_c01_a_canary_that_lives_lets_prompt_claims_be_believed(gate: Any, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(backend: RabbitMQBackend) -> bool:
        assert (await backend.claim(gate.request())).won
        await SystemClock().sleep_ms(5 * TTL_MS)
        assert (await backend.claim(gate.request("another"))).won
        return await backend._canary.proven()

    monkeypatch.setattr(trial, "PROOF_MS", 4 * TTL_MS)
    assert play(act, gate.make())


def test_a_policy_that_lets_nobody_in_is_refused_at_start(store: Any) -> None:
    async def act() -> None:
        with pytest.raises(StoreSetupError, match=r"let no message into a queue of length 1.*remove policies on max-length"):
            await store.make().open()

    with policy(store, max_length=0):
        asyncio.run(act())


# -- a gate that is gone


def test_c05_a_gate_that_vanishes_is_no_win(gate: Any, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its declaration and the message somebody deletes it: the broker returns the message, and acknowledges it."""
    declare = Channel.queue_declare

    async def and_delete(self: Channel, queue: str = "", **options: Any) -> Any:
        answer = await declare(self, queue, **options)
        if options.get("nowait") and ".slot.0" not in queue:
            await self.queue_delete(queue)
        return answer

    async def act(backend: RabbitMQBackend) -> None:
        monkeypatch.setattr(Channel, "queue_declare", and_delete)
        with pytest.raises(BackendUnavailable, match="vanished between its declaration and the message"):
            await backend.claim(gate.request())

    play(act, gate.make())


# -- a broker that does not answer


def test_c23_a_frozen_broker_ends_the_call_and_the_run_is_decided_afterwards(newest: Any, play: Play) -> None:
    """The token asks again and has won; through a gate nobody can know, and the run does not happen."""
    clock, gate = SystemClock(), type(newest)(newest.server, "gate")

    async def act(token: RabbitMQBackend, gated: RabbitMQBackend, other: RabbitMQBackend) -> list[Outcome]:
        mine, theirs = newest.request("one"), gate.request("two")
        newest.server.pause()
        began_ms = clock.monotonic_ms()
        try:
            answers = await asyncio.gather(token.claim(mine), gated.claim(theirs), return_exceptions=True)
        finally:
            newest.server.resume()
        assert clock.monotonic_ms() - began_ms < 5_000
        assert [type(answer) for answer in answers] == [BackendTimeout, BackendTimeout]
        found = [(await token.claim(mine)).outcome]
        with pytest.raises(BackendError, match="went to the gate"):
            await gated.claim(theirs)
        return [*found, (await other.claim(replace(mine, token=new_token()))).outcome]

    assert play(act, newest.make(), gate.make(), newest.make()) == [Outcome.WON, Outcome.LOST]


def test_c23_a_memory_alarm_stops_messages_but_no_token(newest: Any, play: Play) -> None:
    """A declaration is no message: the token goes on deciding, gates and the history wait, nothing is won twice."""
    gate = type(newest)(newest.server, "gate")

    async def act(token: RabbitMQBackend, gated: RabbitMQBackend, other: RabbitMQBackend) -> list[Outcome]:
        first, mine, theirs = newest.request("one"), newest.request("two"), gate.request("three")
        assert (await token.claim(first)).won
        assert await token.finish(first.key, first.token, RunResult(RunStatus.SUCCESS))
        await asyncio.to_thread(newest.server.ctl, "set_vm_memory_high_watermark", "absolute", "1")
        try:
            answers = await asyncio.gather(
                token.claim(mine), gated.claim(theirs), other.claim(replace(mine, token=new_token())), return_exceptions=True
            )
        finally:
            await asyncio.to_thread(newest.server.ctl, "set_vm_memory_high_watermark", "0.4")
        decided = [answer.outcome for answer in answers if isinstance(answer, Claim)]
        assert sorted(decided) == [Outcome.LOST, Outcome.WON]
        assert isinstance(answers[1], BackendTimeout)
        end_ms = SystemClock().monotonic_ms() + ALARM_OVER_MS
        while True:
            again = replace(theirs, token=new_token())
            try:
                return [(await other_gate.claim(again)).outcome]
            except BackendError:
                assert SystemClock().monotonic_ms() < end_ms

    other_gate = gate.make()

    async def with_other(*backends: RabbitMQBackend) -> list[Outcome]:
        await other_gate.open()
        try:
            return await act(*backends)
        finally:
            await other_gate.close()

    (outcome,) = play(with_other, newest.make(), gate.make(), newest.make())
    # The broker reads what it had held back, or the connection was gone before: one winner at the most either way.
    assert outcome in {Outcome.WON, Outcome.LOST}


# -- who must be refused at start


def test_wrong_credentials_are_one_sentence_without_the_password(newest: Any) -> None:
    url = newest.url().replace("amqp://", "amqp://guest:s3cret@")

    async def act() -> str:
        with pytest.raises(StoreSetupError, match="refuses this user") as told:
            await RabbitMQBackend(url).open()
        return str(told.value)

    assert "s3cret" not in asyncio.run(act())


def test_a_virtual_host_that_is_not_there_is_refused(newest: Any) -> None:
    newest.vhost = "nowhere"

    async def act() -> None:
        with pytest.raises(StoreSetupError, match=r"'nowhere' does not open this virtual host"):
            await newest.make().open()

    asyncio.run(act())


def test_c23_nobody_at_home_is_unavailable(newest: Any) -> None:
    async def act() -> None:
        with pytest.raises(BackendUnavailable, match=r"RabbitMQ at 127.0.0.1:1 cannot be reached"):
            await RabbitMQBackend("amqp://127.0.0.1:1").open()

    asyncio.run(act())
