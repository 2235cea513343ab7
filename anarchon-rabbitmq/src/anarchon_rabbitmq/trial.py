"""What is tried out on every new connection, and the canary that dies before a gate does."""

from __future__ import annotations

import re
from typing import Final

from aiormq.exceptions import ChannelNotFoundEntity, DeliveryError, PublishError
from anarchon.clock import SystemClock
from anarchon.errors import BackendError, StoreSetupError
from pamqp.commands import Basic

from anarchon_rabbitmq.failures import misfit_of
from anarchon_rabbitmq.link import Connection, Link
from anarchon_rabbitmq.names import Names, gate_arguments, holder_of, token_arguments

__all__ = ["PERSISTENT", "Canary", "check_version", "try_gate", "try_token", "version_of"]

PERSISTENT: Final = Basic.Properties(delivery_mode=2)
VERSION_LEAST: Final = (3, 9)
TRIAL_EXPIRES_MS: Final = 60_000
CANARY_WAIT_MS: Final = 1_000
CANARY_POLL_MS: Final = 50


def version_of(connection: Connection | None) -> tuple[str, tuple[int, int] | None]:
    """Return a broker's name with its version, and the version if it is a RabbitMQ that says it."""
    told = connection.server_properties if connection is not None else None
    properties = told if isinstance(told, dict) else {}
    product, version = str(properties.get("product", "a broker")), str(properties.get("version", "of an unknown version"))
    found = re.match(r"(\d+)\.(\d+)", version)
    return f"{product} {version}", (int(found[1]), int(found[2])) if found and product == "RabbitMQ" else None


def check_version(link: Link) -> None:
    """Refuse a RabbitMQ that has no streams.

    Raises:
        StoreSetupError: it is older than 3.9.
    """
    name, version = version_of(link.connection)
    if version is not None and version < VERSION_LEAST:
        msg = f"{link.place} is {name}, and the history needs streams: upgrade to RabbitMQ 3.9 or newer"
        raise StoreSetupError(msg)


async def try_gate(link: Link, names: Names) -> None:
    """Publish twice to a throw-away gate: the first must be let in, the second refused.

    Raises:
        StoreSetupError: this broker, or a policy of it, does not do that.
    """
    name = names.trial()
    answers: list[bool] = []
    async with link.trial_channel(confirms=True) as channel:
        await channel.queue_declare(name, durable=True, arguments=gate_arguments(TRIAL_EXPIRES_MS))
        for _ in range(2):
            try:
                await channel.basic_publish(b"", routing_key=name, mandatory=True, properties=Basic.Properties(delivery_mode=2))
                answers.append(True)
            except PublishError:
                raise
            except DeliveryError:
                answers.append(False)
        await channel.queue_delete(name)
    if answers != [True, False]:
        what = "let two messages" if answers == [True, True] else "let no message"
        msg = (
            f"{link.place} {what} into a queue of length 1 that rejects the rest ({name}), so it cannot say who is first: "
            f"remove policies on max-length and overflow from the queues of {names.prefix!r}, or use strategy=token"
        )
        raise StoreSetupError(msg)


async def try_token(link: Link, names: Names) -> None:
    """Declare a throw-away run for two holders: the second must be refused, and be told the first.

    Raises:
        StoreSetupError: this broker does not compare the arguments of queues.
    """
    name, holder = names.trial(), holder_of("one", "trial")
    told: object = "accepted"
    try:
        async with link.trial_channel(confirms=False) as channel:
            await channel.queue_declare(name, durable=True, arguments=token_arguments(TRIAL_EXPIRES_MS, holder))
            await channel.queue_declare(
                name, durable=True, arguments=token_arguments(TRIAL_EXPIRES_MS, holder_of("two", "trial"))
            )
    except Exception as error:
        misfit = misfit_of(error)
        if misfit is None:
            raise
        told = misfit.said
    async with link.trial_channel(confirms=False) as channel:
        await channel.queue_delete(name)
    if told != holder:
        msg = (
            f"{link.place} does not refuse a second declaration of a queue with another dead-letter routing key ({told!r:.80}), "
            "so it cannot say who is first: use a RabbitMQ, or strategy=gate"
        )
        raise StoreSetupError(msg)


class Canary:
    """A gate that everybody keeps full for ever. If it is empty, something empties gates: a policy with message-ttl, a purge.

    It is as old as the first start on its prefix, so whatever took the message of a gate took its message earlier.
    """

    def __init__(self, link: Link, names: Names) -> None:
        self._link = link
        self._name = names.canary
        self._prefix = names.prefix
        self._clock = SystemClock()

    async def hatch(self) -> None:
        """Make the canary, or see that the one which is there lives.

        Raises:
            StoreSetupError: it has lost its message.
        """
        end_ms = self._clock.monotonic_ms() + CANARY_WAIT_MS
        while (count := await self._count(trial=True)) == 0:
            # Another instance may be about to fill it.
            if self._clock.monotonic_ms() > end_ms:
                raise StoreSetupError(self._dead())
            await self._clock.sleep_ms(CANARY_POLL_MS)
        if count is not None:
            return
        async with self._link.trial_channel(confirms=True) as channel:
            await channel.queue_declare(self._name, durable=True, arguments=gate_arguments(None), nowait=True)
            try:
                await channel.basic_publish(
                    b"", routing_key=self._name, mandatory=True, properties=Basic.Properties(delivery_mode=2)
                )
            except PublishError:
                raise
            except DeliveryError:
                return  # somebody else was first

    async def check(self) -> None:
        """Insist that the canary lives; whoever was let into a gate must not believe it otherwise (C5).

        Raises:
            BackendError: it does not.
        """
        if not await self._count(trial=False):
            raise BackendError(self._dead())

    async def _count(self, *, trial: bool) -> int | None:
        lend = self._link.trial_channel if trial else self._link.channel
        try:
            async with lend(confirms=False) as channel:
                answer = await channel.queue_declare(self._name, passive=True)
        except ChannelNotFoundEntity:
            return None
        return answer.message_count or 0

    def _dead(self) -> str:
        return (
            f"{self._link.place}: the queue {self._name} has lost its message, so gates are emptied and runs would be won "
            f"twice: remove the policy with message-ttl or expires from the queues of {self._prefix!r} (and purge none), delete "
            f"{self._name}, or use strategy=token"
        )
