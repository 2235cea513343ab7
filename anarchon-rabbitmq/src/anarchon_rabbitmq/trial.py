"""What is tried out on every new connection, and the canary that shows what becomes of gates."""

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

__all__ = ["PROMPT_MS", "Canary", "check_version", "try_gate", "try_token", "version_of"]

VERSION_LEAST: Final = (3, 9)
TRIAL_EXPIRES_MS: Final = 60_000
PROMPT_MS: Final = 5_000
"""A claim that comes so soon after its slot meets a gate that is younger than `PROOF_MS`, if clocks differ by 5 s at most."""
PROOF_MS: Final = 15_000


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
    """A full gate of this connection that nobody claims. If it is found empty, something empties gates.

    What takes the messages of gates (a policy with message-ttl, a purge) is told from a first claim by nothing in a gate. A
    canary that has kept its message for `PROOF_MS` proves that no policy takes them within that time.
    """

    def __init__(self, link: Link, names: Names) -> None:
        self._link = link
        self._names = names
        self._clock = SystemClock()
        self._name: str | None = None
        self._born_ms = 0.0
        self._proven_on: Connection | None = None

    async def proven(self) -> bool:
        """Return whether gates of this connection are known to keep their message for a while.

        Raises:
            BackendError: they do not.
        """
        connection = self._link.connection
        if connection is not None and self._proven_on is connection:
            return True
        if self._name is None:
            await self._hatch()
            return False
        if self._clock.monotonic_ms() - self._born_ms < PROOF_MS:
            return False
        name = self._name
        try:
            async with self._link.channel(confirms=False) as channel:
                answer = await channel.queue_declare(name, passive=True)
                if answer.message_count:
                    await channel.queue_delete(name)
        except ChannelNotFoundEntity:
            self._name = None  # too long ago: it has expired
            return False
        if not answer.message_count:
            msg = (
                f"{self._link.place}: the queue {name} has lost its message, so gates are emptied and their runs could be won "
                f"twice: remove the policy with message-ttl from the queues of {self._names.prefix!r}, or use strategy=token"
            )
            raise BackendError(msg)
        self._name, self._proven_on = None, self._link.connection
        return True

    async def _hatch(self) -> None:
        name, now_ms = self._names.trial(), self._clock.monotonic_ms()
        async with self._link.channel(confirms=True) as channel:
            await channel.queue_declare(name, durable=True, arguments=gate_arguments(TRIAL_EXPIRES_MS))
            await channel.basic_publish(b"", routing_key=name, mandatory=True, properties=Basic.Properties(delivery_mode=2))
        self._name, self._born_ms = name, now_ms
