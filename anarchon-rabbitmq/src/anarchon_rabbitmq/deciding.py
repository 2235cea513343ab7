"""Who is first: the token, whose declaration is the claim, and the gate, which holds one message. Exact together, too."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from aiormq.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed, DeliveryError, PublishError
from anarchon.clock import SystemClock
from anarchon.errors import BackendError
from anarchon.types import Claim, ClaimRequest, Outcome
from pamqp.commands import Basic

from anarchon_rabbitmq.failures import Misfit, misfit_of
from anarchon_rabbitmq.link import Link
from anarchon_rabbitmq.names import NOBODY, Names, gate_arguments, holder_of, token_arguments

__all__ = ["Deciding"]

T = TypeVar("T")

PAUSES_MS: Final = (5, 20, 80)
ASKED_MAX: Final = 10_000
EXPIRES: Final = "x-expires"
EXCHANGE: Final = "x-dead-letter-exchange"
ROUTING_KEY: Final = "x-dead-letter-routing-key"
LOST: Final = Claim(Outcome.LOST)
WON: Final = Claim(Outcome.WON, 1)


class ForeignQueue(BackendError):
    """A queue under one of our names that anarchon did not declare: nothing was claimed."""


class Deciding:
    """Both ways to decide a claim of a run. Whichever instance declares a run's queue first chooses the way for it.

    A queue keeps the arguments that it was declared with. A token meeting a gate goes through the gate, a gate meeting a
    token has lost: so fleets may mix strategies.
    """

    def __init__(
        self, link: Link, names: Names, slot_ttl_ms: int, *, earlier: Callable[[ClaimRequest], Awaitable[Claim | None]]
    ) -> None:
        """`earlier` finds an earlier winner of a run whose gate lets somebody in: then the gate was emptied."""
        self._link = link
        self._names = names
        self._slot_ttl_ms = slot_ttl_ms
        self._earlier = earlier
        self._clock = SystemClock()
        self._asked: OrderedDict[str, bool] = OrderedDict()
        """Tokens that went to a gate: whether they are known to have been let in."""

    def unsure(self, token: str) -> bool:
        """Return whether a token may have been let into a gate without our knowing."""
        return self._asked.get(token) is False

    # -- the token

    async def by_token(self, request: ClaimRequest) -> Claim:
        """Declare the run's queue with the token in it; a refusal names the holder.

        Raises:
            BackendError: the queue is none of ours.
        """
        queue, mine = self._names.run(request.key), holder_of(request.token, request.instance)
        expires_ms: int | None = self._slot_ttl_ms
        misfit = await self._declare(queue, token_arguments(expires_ms, mine))
        if misfit is not None and misfit.argument == EXPIRES:
            # Declared by an instance with another slot_ttl: used as it is.
            expires_ms = self._expires_of(queue, misfit)
            misfit = await self._declare(queue, token_arguments(expires_ms, mine))
        if misfit is None:
            return WON
        if misfit.argument == EXCHANGE:
            if self._asked.get(request.token):
                return WON  # through the gate, the last time (C4)
            return await self._once(request, queue, lambda: self._through(request, queue, expires_ms))
        if misfit.argument != ROUTING_KEY:
            raise self._foreign(queue, misfit)
        token, _, instance = misfit.said.partition(":")
        if token != request.token:
            return Claim(Outcome.LOST, winner=instance or None)
        # Our own, asked for under another name of the instance (C4).
        misfit = await self._declare(queue, token_arguments(expires_ms, misfit.said))
        if misfit is not None:
            raise self._foreign(queue, misfit)
        return WON

    async def _declare(self, queue: str, arguments: dict[str, Any]) -> Misfit | None:
        return await self._patiently(lambda: self._declare_once(queue, arguments))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask again what met a queue in the making, or one whose node is coming back: then nothing was declared or published."""
        for pause_ms in PAUSES_MS:
            try:
                return await ask()
            except ChannelNotFoundEntity:
                await self._clock.sleep_ms(pause_ms)
        return await ask()

    async def _declare_once(self, queue: str, arguments: dict[str, Any]) -> Misfit | None:
        try:
            async with self._link.channel(confirms=False) as channel:
                await channel.queue_declare(queue, durable=True, arguments=arguments)
        except ChannelPreconditionFailed as error:
            misfit = misfit_of(error)
            if misfit is None:
                raise
            return misfit
        return None

    # -- the gate

    async def by_gate(self, request: ClaimRequest) -> Claim:
        """Declare the run's gate and publish into it: the first message is acknowledged, every later one refused.

        Raises:
            BackendError: the outcome is unknown, and nobody must run on it (C5).
        """
        queue = self._names.run(request.key)
        return await self._once(request, queue, lambda: self._let_in(request, queue))

    async def _once(self, request: ClaimRequest, queue: str, ask: Callable[[], Awaitable[Claim]]) -> Claim:
        """Ask a gate once a token: it cannot say whose message it holds, so a second answer would be a guess (C5)."""
        if request.token in self._asked:
            msg = f"{self._link.place}: this token went to the gate {queue} before, and a gate cannot be asked whom it let in"
            raise BackendError(msg)
        self._asked[request.token] = False
        if len(self._asked) > ASKED_MAX:
            self._asked.popitem(last=False)
        try:
            claim = await ask()
        except ForeignQueue:
            self._asked.pop(request.token, None)
            raise
        if claim.won:
            self._asked[request.token] = True
        else:
            self._asked.pop(request.token, None)
        return claim

    async def _let_in(self, request: ClaimRequest, queue: str) -> Claim:
        expires_ms: int | None = self._slot_ttl_ms
        claim = await self._publish(queue, expires_ms)
        if isinstance(claim, Misfit) and claim.argument == EXPIRES:
            expires_ms = self._expires_of(queue, claim)
            claim = await self._publish(queue, expires_ms)
        if isinstance(claim, Misfit):
            return await self._taken(queue, expires_ms, claim)
        return await self._believed(request, claim)

    async def _believed(self, request: ClaimRequest, claim: Claim) -> Claim:
        return (await self._earlier(request) or claim) if claim.won else claim

    async def _through(self, request: ClaimRequest, queue: str, expires_ms: int | None) -> Claim:
        """Go through the gate that an instance with the other strategy made."""
        claim = await self._publish(queue, expires_ms)
        if isinstance(claim, Misfit):
            raise self._foreign(queue, claim)
        return await self._believed(request, claim)

    async def _publish(self, queue: str, expires_ms: int | None) -> Claim | Misfit:
        return await self._patiently(lambda: self._publish_once(queue, expires_ms))

    async def _publish_once(self, queue: str, expires_ms: int | None) -> Claim | Misfit:
        """Declare and publish in one flight: what follows a refused declaration on its channel is not looked at."""
        try:
            async with self._link.channel(confirms=True) as channel:
                await channel.queue_declare(queue, durable=True, arguments=gate_arguments(expires_ms), nowait=True)
                # Persistent, or a restart would empty the gate; mandatory, or a gate that is gone would look like a win.
                message = Basic.Properties(delivery_mode=2)
                await channel.basic_publish(b"", routing_key=queue, mandatory=True, properties=message)
        except PublishError:
            raise
        except DeliveryError:
            return LOST
        except ChannelPreconditionFailed as error:
            misfit = misfit_of(error)
            if misfit is None:
                raise
            return misfit
        return WON

    async def _taken(self, queue: str, expires_ms: int | None, misfit: Misfit) -> Claim:
        """See that a queue which is no gate was taken by a token, and by whose."""
        if misfit.argument != EXCHANGE:
            raise self._foreign(queue, misfit)
        seen = await self._declare(queue, token_arguments(expires_ms, NOBODY))
        if seen is None or seen.argument != ROUTING_KEY:
            raise self._foreign(queue, seen or misfit)
        return Claim(Outcome.LOST, winner=seen.said.partition(":")[2] or None)

    # -- refusals

    def _expires_of(self, queue: str, misfit: Misfit) -> int:
        if not misfit.whole or not misfit.said.isascii() or not misfit.said.isdigit():
            raise self._foreign(queue, misfit)
        return int(misfit.said)

    def _foreign(self, queue: str, misfit: Misfit) -> ForeignQueue:
        msg = (
            f"{self._link.place}: the queue {queue} was declared with another {misfit.argument} ({misfit.said or 'none'}), so "
            "the run is not claimed: write the same slot_ttl everywhere; if the queue is not anarchon's, delete it or write "
            "another prefix"
        )
        return ForeignQueue(msg)
