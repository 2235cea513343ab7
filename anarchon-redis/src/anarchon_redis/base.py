"""What the four strategies share: construction, opening, the clock, and what weakens the promises."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from dataclasses import replace
from datetime import timedelta
from typing import ClassVar, Self

from anarchon.backend import Backend
from anarchon.errors import BackendError, OptionError, StoreSetupError, UrlError
from anarchon.types import Limits
from anarchon.url import BackendUrl
from redis.asyncio import Redis, RedisCluster

from anarchon_redis import health
from anarchon_redis.keys import Names
from anarchon_redis.link import Client, Link
from anarchon_redis.options import PREFIX, Address, Options, Strategy, duration_ms, options_from_url

__all__ = ["RedisBase"]


class RedisBase(Backend):
    """One strategy on one prefix of one server or cluster."""

    strategy: ClassVar[Strategy]

    def __init__(
        self,
        client: Client,
        *,
        prefix: str = PREFIX,
        duration: float | timedelta = 300,
        window: float | timedelta = 300,
        wait_replicas: int = 0,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Use a borrowed client; it stays open.

        `loop` is the event loop that the client belongs to: by default the running one, if there is one. Every command
        is sent from there.

        Raises:
            OptionError: an argument is refused.
        """
        if not isinstance(client, Redis | RedisCluster):
            msg = f"client={client!r:.80} is refused: hand over a redis.asyncio.Redis or RedisCluster, or use a URL"
            raise OptionError(msg)
        options = Options(
            strategy=self.strategy,
            prefix=prefix,
            duration_ms=duration_ms("duration", duration),
            window_ms=duration_ms("window", window),
            wait_replicas=wait_replicas,
            cluster=isinstance(client, RedisCluster),
        )
        self._set_up(client, options, loop or _running_loop())

    def _set_up(self, where: Address | Client, options: Options, home: asyncio.AbstractEventLoop | None) -> None:
        self._options = options
        self._names = Names(options.prefix, cluster=options.cluster)
        self._link = Link(where, cluster=options.cluster, wait_replicas=options.wait_replicas, home=home)
        self._prepared: set[str] = set()
        self.limits = self._limits()

    @abstractmethod
    def _limits(self) -> Limits:
        """Return what this strategy promises with these options."""

    @classmethod
    def from_url(cls, url: BackendUrl) -> Self:
        address, options = options_from_url(url)
        if options.strategy is not cls.strategy:
            msg = f"{url}: strategy={options.strategy} is not made by {cls.__name__}; call anarchon_redis.from_url"
            raise UrlError(msg)
        return cls.of(address, options)

    @classmethod
    def of(cls, address: Address, options: Options) -> Self:
        """Build a backend with a client of its own."""
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
        server = await health.look(self._link)
        if server.cluster and not self._options.cluster:
            msg = f"{self._link.place} is part of a cluster: add cluster=true to the URL"
            raise StoreSetupError(msg)
        await self._take_prefix()
        await self._check_server(server)
        limits = self._limits()
        self.limits = replace(limits, notes=(f"this is {server.name}", *limits.notes))

    async def _take_prefix(self) -> None:
        """Refuse a prefix that is used with another strategy: the two would not see each other's claims (C1)."""
        name, mine = self._names.strategy, str(self.strategy)
        await self._link.run(("SET", name, mine, "NX"))
        found: bytes | None = await self._link.run(("GET", name))
        other = "" if found is None else found.decode("utf-8", "replace")
        if other not in {"", mine}:
            msg = (
                f"{self._link.place}: the prefix {self._options.prefix!r} is used with strategy={other}, and two strategies "
                f"would run each slot twice. Write another prefix, or stop every instance and delete the key {name}"
            )
            raise StoreSetupError(msg)

    async def _check_server(self, server: health.Server) -> None:
        """Refuse a server that cannot do this strategy."""

    async def close(self) -> None:
        self._prepared.clear()
        await self._link.close()

    # -- the store

    async def now_ms(self) -> int:
        return await self._link.within(lambda: health.time_ms(self._link))

    async def warnings(self) -> list[str]:
        return await self._link.within(lambda: health.warnings(self._link, self._options))

    def _lost_by_failover(self) -> str:
        if self._options.wait_replicas:
            return f"a failover loses no win that {self._options.wait_replicas} replicas confirmed, if one of them is promoted"
        return "a failover to a replica loses the claims that had not reached it; their slots can be won again"

    @staticmethod
    def _token(token: str) -> str:
        if "|" in token or not token:
            msg = f"the token {token[:6]!r}... is refused: a token is not empty and holds no '|'"
            raise BackendError(msg)
        return token


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
