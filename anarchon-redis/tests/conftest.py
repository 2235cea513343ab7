"""Fixtures of the Redis tests: private servers, a prefix of its own for every test, and no socket left behind (C24)."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from anarchon.backend import Backend
from anarchon.types import ClaimRequest, RunKey, new_token
from anarchon.url import BackendUrl
from anarchon_redis import factory
from anarchon_redis.base import RedisBase
from redis.asyncio import Redis as Client
from stores.fleet import Fleet
from stores.redis import Redis, Redis70, Redis86, RedisCluster70, RedisCluster86, Valkey91, ValkeyCluster91
from stores.server import Server

T = TypeVar("T")
LIMIT_S = 60
STANDALONE: tuple[type[Redis], ...] = (Redis70, Redis86, Valkey91)
CLUSTERS: tuple[type[Redis], ...] = (RedisCluster70, RedisCluster86, ValkeyCluster91)
CLAIM_ONLY = ("stream-id", "idmp", "script")


class Store:
    """A server as the tests use it: backends under a prefix of this test's own, and a side door."""

    def __init__(self, server: Redis, strategy: str) -> None:
        self.server = server
        self.strategy = strategy
        self.prefix = f"t{secrets.token_hex(4)}:"

    def url(self, **options: object) -> str:
        """Return the URL with this test's prefix and further options."""
        return self.server.url(options={"strategy": self.strategy, "prefix": self.prefix, **options})

    def make(self, **options: object) -> Any:
        """Make an unopened backend with a client of its own."""
        return factory.from_url(BackendUrl(self.url(**options)))

    async def raw(self, *command: str | int | bytes) -> Any:
        """Send a command past the backend."""
        async with Client(host=self.server.host, port=self.server.port, protocol=2) as client:
            return await client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py

    async def request(self, backend: Backend, job: str = "job", *, slot_ms: int | None = None, **fields: Any) -> ClaimRequest:
        """Return a claim of a slot that is due now."""
        if slot_ms is None:
            slot_ms = (await backend.now_ms() or 0) - 5
        key = RunKey(job, slot_ms, fields.pop("space", ""))
        return ClaimRequest(key=key, **{"token": new_token(), "instance": "one", **fields})


def need(kind: type[Server]) -> None:
    """Fail (where CI=true) or leave out a test whose server is not installed."""
    why = kind.absent()
    if why is not None and os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(why, pytrace=False)
    if why is not None:
        pytest.skip(why)


@pytest.fixture(scope="session")
def servers() -> Iterator[Fleet]:
    """The session's servers."""
    with Fleet() as fleet:
        yield fleet


@pytest.fixture(scope="session", params=STANDALONE, ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest, servers: Fleet) -> Redis:
    """Each kind of server in turn."""
    need(request.param)
    found: Redis = servers.shared(request.param)
    return found


@pytest.fixture(scope="session")
def newest(servers: Fleet) -> Redis:
    """The server that knows every strategy."""
    need(Redis86)
    return servers.shared(Redis86)


@pytest.fixture
def lease(server: Redis) -> Store:
    """The lease strategy on each kind of server."""
    return Store(server, "lease")


def _pairs(*strategies: str) -> list[Any]:
    """Return every server with each strategy that it can do: IDMP needs Redis 8.6."""
    able = [(kind, name) for kind in STANDALONE for name in strategies if name != "idmp" or kind is Redis86]
    return [pytest.param(pair, id=f"{pair[0].name}-{pair[1]}") for pair in able]


@pytest.fixture(params=_pairs("lease", *CLAIM_ONLY))
def store(request: pytest.FixtureRequest, servers: Fleet) -> Store:
    """Each strategy on each server that can do it."""
    kind, strategy = request.param
    need(kind)
    return Store(servers.shared(kind), strategy)


@pytest.fixture(params=_pairs(*CLAIM_ONLY))
def first(request: pytest.FixtureRequest, servers: Fleet) -> Store:
    """Each strategy that only decides who is first, on each server that can do it."""
    kind, strategy = request.param
    need(kind)
    return Store(servers.shared(kind), strategy)


@pytest.fixture(params=("lease", *CLAIM_ONLY))
def any_strategy(request: pytest.FixtureRequest, newest: Redis) -> Store:
    """Each strategy on the server that knows them all."""
    return Store(newest, request.param)


@pytest.fixture
def on() -> Callable[[Redis, str], Store]:
    """Make a store of a strategy on a server."""
    return Store


@pytest.fixture
def own(servers: Fleet) -> Iterator[Callable[..., Redis]]:
    """Start a server that nobody else uses: it may be killed, frozen and filled."""
    mine: list[Redis] = []

    def start(kind: type[Redis] = Redis86, **attributes: Any) -> Redis:
        need(kind)
        # Settings are attributes of the class, so that they stand in the command of every start.
        server: Redis = servers.new(type(kind.__name__, (kind,), attributes))
        mine.append(server)
        return server

    yield start
    for server in mine:
        server.kill()


@pytest.fixture(params=_pairs("lease", *CLAIM_ONLY))
def mortal(request: pytest.FixtureRequest, own: Callable[..., Redis]) -> Store:
    """Each strategy on each server that can do it, on a server of its own, which may be killed."""
    kind, strategy = request.param
    return Store(own(kind), strategy)


@pytest.fixture(params=CLUSTERS, ids=lambda kind: kind.name)
def cluster(request: pytest.FixtureRequest, servers: Fleet) -> Redis:
    """Each kind of server as a cluster of one node."""
    need(request.param)
    found: Redis = servers.shared(request.param)
    return found


@pytest.fixture
def play() -> Callable[..., Any]:
    """Open backends, run a coroutine function with them within a limit, and close them."""

    def run(act: Callable[..., Awaitable[T]], *backends: RedisBase) -> T:
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
