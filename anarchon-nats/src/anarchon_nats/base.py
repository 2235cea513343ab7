"""What the strategies share: construction, opening, the clock, and what weakens the promises."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import ClassVar, Self

from anarchon.backend import Backend
from anarchon.errors import BackendError, OptionError, UrlError
from anarchon.types import Limits
from anarchon.url import BackendUrl
from nats.aio.client import Client

from anarchon_nats.failures import FAILURES
from anarchon_nats.link import Link
from anarchon_nats.names import Names
from anarchon_nats.options import LIMITS, PREFIX, Address, Options, Strategy, duration_ms, options_from_url
from anarchon_nats.streams import Found, ensure, refuse_rivals, weaknesses
from anarchon_nats.times import StoreClock

__all__ = ["NatsBase"]

TOLD_MS = 60_000
"""How often a claim-only backend tells the core the server's time."""


class NatsBase(Backend):
    """One strategy on one prefix of one server or cluster."""

    strategy: ClassVar[Strategy]

    def __init__(
        self,
        client: Client,
        *,
        prefix: str = PREFIX,
        stream: str = "",
        duplicate_window: float | timedelta = LIMITS["duplicate_window"].default,
        max_age: float | timedelta = LIMITS["max_age"].default,
        replicas: int = LIMITS["replicas"].default,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Use a borrowed connection; it stays open.

        `loop` is the event loop that the connection belongs to: by default the running one, if there is one. Every
        request is sent from there.

        Raises:
            OptionError: an argument is refused.
        """
        if not isinstance(client, Client):
            msg = f"client={client!r:.80} is refused: hand over what nats.connect() returns, or use a URL"
            raise OptionError(msg)
        options = Options(
            strategy=self.strategy,
            prefix=prefix,
            stream=stream,
            duplicate_window_ms=duration_ms("duplicate_window", duplicate_window),
            max_age_ms=duration_ms("max_age", max_age),
            replicas=replicas,
        )
        self._set_up(client, options, loop or _running_loop())

    def _set_up(self, where: Address | Client, options: Options, home: asyncio.AbstractEventLoop | None) -> None:
        self._options = options
        self._names = Names(options)
        self._link = Link(where, home=home)
        self._found = Found(self._names.stream, {})
        self._clock = StoreClock(self._link, self._found.name, self._names.clock)
        self.limits = self._limits(options.remembers_ms)

    @abstractmethod
    def _limits(self, remembers_ms: int | None) -> Limits:
        """Return what this strategy promises."""

    @classmethod
    def from_url(cls, url: BackendUrl) -> Self:
        address, options = options_from_url(url)
        if options.strategy is not cls.strategy:
            msg = f"{url}: strategy={options.strategy} is not made by {cls.__name__}; call anarchon_nats.from_url"
            raise UrlError(msg)
        return cls.of(address, options)

    @classmethod
    def of(cls, address: Address, options: Options) -> Self:
        """Build a backend with a connection of its own."""
        self = cls.__new__(cls)
        self._set_up(address, options, None)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._link.place}, prefix={self._options.prefix!r})"

    # -- life

    async def open(self) -> None:
        await self._link.open()
        try:
            await self._link.within(self._open)
        except BaseException:
            await self.close()
            raise

    async def _open(self) -> None:
        await self._link.api("INFO")
        await refuse_rivals(self._link, self._names)  # before a stream is made …
        found = await ensure(self._link, self._names, self._options)
        await refuse_rivals(self._link, self._names)  # … and after: another instance may have begun at the same moment
        version = await self._link.version()
        await self._check_server(found, version)
        self._found = found
        self._clock = StoreClock(self._link, found.name, self._names.clock)
        limits = self._limits(found.remembers_ms(self.strategy))
        notes = (f"this is NATS {version}", *limits.notes, *weaknesses(found, self._options))
        self.limits = replace(limits, durable=found.durable, notes=notes)

    async def _check_server(self, found: Found, version: str) -> None:
        """Refuse a server that cannot do this strategy."""

    async def close(self) -> None:
        await self._link.close()

    # -- the store

    async def now_ms(self) -> int:
        return await self._link.within(self._now_ms)

    async def _now_ms(self) -> int:
        return (await self._clock.read()).least_ms()

    async def _told_ms(self) -> int | None:
        """Return the server's time for a claim that did not need it, asking at most once a minute."""
        if self._clock.age_ms > TOLD_MS:
            with suppress(BackendError, *FAILURES):
                return (await self._clock.read()).least_ms()
        reading = self._clock.reading
        return None if reading is None else reading.least_ms()

    async def warnings(self) -> list[str]:
        return await self._link.within(self._warnings)

    async def _warnings(self) -> list[str]:
        found = await ensure(self._link, self._names, self._options)
        return weaknesses(found, self._options)

    def _token(self, token: str) -> str:
        if not token or not token.isprintable():
            msg = f"the token {token[:6]!r}... is refused: a token is printable and not empty"
            raise BackendError(msg)
        return token


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
