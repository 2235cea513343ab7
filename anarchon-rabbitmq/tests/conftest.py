"""Fixtures of the RabbitMQ tests: private brokers, a prefix of its own for every test, and no socket left behind (C24)."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import aiormq
import pytest
from anarchon.clock import SystemClock
from anarchon.types import ClaimRequest, RunKey, new_token
from anarchon_rabbitmq import RabbitMQBackend
from stores.fleet import Fleet
from stores.rabbitmq import RabbitMQ, RabbitMQ40, RabbitMQ310
from stores.server import Server

T = TypeVar("T")
LIMIT_S = 60
VERSIONS: tuple[type[RabbitMQ], ...] = (RabbitMQ310, RabbitMQ40)
STRATEGIES = ("token", "gate")


class Store:
    """A broker as the tests use it: backends under a prefix of this test's own, and a side door."""

    def __init__(self, server: RabbitMQ, strategy: str = "token") -> None:
        self.server = server
        self.strategy = strategy
        self.prefix = f"t{secrets.token_hex(4)}."
        self.vhost = ""

    def url(self, **options: object) -> str:
        """Return the URL with this test's prefix and further options."""
        words = {"strategy": self.strategy, "prefix": self.prefix, **options}
        return self.server.url(vhost=self.vhost, options=words)

    def make(self, **options: object) -> RabbitMQBackend:
        """Make an unopened backend with connections of its own."""
        return RabbitMQBackend(self.url(**options))

    def raw(self) -> Any:
        """Return a connection past the backend: `async with store.raw() as connection`."""
        return aiormq.connect(self.server.url(vhost=self.vhost))

    async def declare(self, queue: str, arguments: dict[str, Any], *, durable: bool = True) -> None:
        """Declare a queue past the backend."""
        async with self.raw() as connection:
            channel = await connection.channel()
            await channel.queue_declare(queue, durable=durable, arguments=arguments)

    def request(self, job: str = "job", *, ago_ms: int = 5, key: RunKey | None = None, **fields: Any) -> ClaimRequest:
        """Return a claim of a slot that is due now."""
        slot = key or RunKey(job, int(SystemClock().wall_ms()) - ago_ms, fields.pop("space", ""))
        return ClaimRequest(key=slot, **{"token": new_token(), "instance": "one", **fields})

    def queue(self, request: ClaimRequest) -> str:
        """Return the queue that decides a claim."""
        return f"{self.prefix}{request.key.job}.slot.{request.key.slot_ms}"


@pytest.fixture(scope="session", params=VERSIONS, ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest, fleet: Fleet, need_store: Callable[[type[Server]], None]) -> RabbitMQ:
    """Each version in turn, shared."""
    kind: type[RabbitMQ] = request.param
    need_store(kind)
    return fleet.shared(kind)


@pytest.fixture(params=STRATEGIES)
def store(request: pytest.FixtureRequest, server: RabbitMQ) -> Store:
    """Each strategy on each version."""
    return Store(server, request.param)


@pytest.fixture
def token(server: RabbitMQ) -> Store:
    """The strategy token on each version."""
    return Store(server)


@pytest.fixture
def gate(server: RabbitMQ) -> Store:
    """The strategy gate on each version."""
    return Store(server, "gate")


@pytest.fixture
def newest(fleet: Fleet, need_store: Callable[[type[Server]], None]) -> Store:
    """The default strategy on the newest version."""
    need_store(RabbitMQ40)
    return Store(fleet.shared(RabbitMQ40))


@pytest.fixture
def play() -> Callable[..., Any]:
    """Open backends, run a coroutine function with them within a limit, and close them."""

    def run(act: Callable[..., Awaitable[T]], *backends: RabbitMQBackend) -> T:
        async def main() -> T:
            async with asyncio.timeout(LIMIT_S):
                try:
                    for backend in backends:
                        await backend.open()
                    return await act(*backends)
                finally:
                    for backend in backends:
                        await backend.close()

        return asyncio.run(main())

    return run


@pytest.fixture(autouse=True)
def _quiet_driver() -> Iterator[None]:
    """Let the driver not tell of the connections that these tests break."""
    log = logging.getLogger("aiormq")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


@pytest.fixture(autouse=True)
def _no_socket_left() -> Iterator[None]:
    before = _sockets()
    yield
    assert _sockets() <= before


def _sockets() -> set[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found
