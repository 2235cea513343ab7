"""Fixtures of the NATS tests: private servers, a prefix of its own for every test, and no socket left behind (C24)."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import nats
import pytest
from anarchon.backend import Backend
from anarchon.types import ClaimRequest, RunKey, new_token
from anarchon.url import BackendUrl
from anarchon_nats import factory
from anarchon_nats.base import NatsBase
from stores.fleet import Fleet
from stores.nats import Nats, Nats29, Nats215
from stores.server import Server

T = TypeVar("T")
LIMIT_S = 60
KINDS: tuple[type[Nats], ...] = (Nats29, Nats215)
FIRST = ("cas", "msg-id")


class Store:
    """A server as the tests use it: backends under a prefix of this test's own, and a side door."""

    def __init__(self, server: Nats, strategy: str) -> None:
        self.server = server
        self.strategy = strategy
        self.prefix = f"t{secrets.token_hex(4)}"

    def url(self, **options: object) -> str:
        """Return the URL with this test's prefix and further options."""
        return self.server.url(options={"strategy": self.strategy, "prefix": self.prefix, **options})

    def make(self, **options: object) -> Any:
        """Make an unopened backend with a connection of its own."""
        return factory.from_url(BackendUrl(self.url(**options)))

    async def api(self, verb: str, asked: object = None) -> Any:
        """Send a request of JetStream's interface past the backend."""
        client = await nats.connect(self.server.url())
        try:
            payload = b"" if asked is None else json.dumps(asked).encode()
            return json.loads((await client.request(f"$JS.API.{verb}", payload, timeout=5)).data)
        finally:
            await client.close()

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
def servers(fleet: Fleet) -> Fleet:
    """The session's servers."""
    return fleet


@pytest.fixture(scope="session", params=KINDS, ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest, servers: Fleet) -> Nats:
    """Each kind of server in turn."""
    need(request.param)
    found: Nats = servers.shared(request.param)
    return found


@pytest.fixture(scope="session")
def newest(servers: Fleet) -> Nats:
    """The newest server."""
    need(Nats215)
    return servers.shared(Nats215)


@pytest.fixture
def lease(server: Nats) -> Store:
    """The lease strategy on each kind of server."""
    return Store(server, "lease")


@pytest.fixture(params=FIRST)
def first(request: pytest.FixtureRequest, server: Nats) -> Store:
    """Each strategy that only decides who is first, on each kind of server."""
    return Store(server, request.param)


@pytest.fixture(params=("lease", *FIRST))
def store(request: pytest.FixtureRequest, server: Nats) -> Store:
    """Each strategy on each kind of server."""
    return Store(server, request.param)


@pytest.fixture
def on() -> Callable[[Nats, str], Store]:
    """Make a store of a strategy on a server."""
    return Store


@pytest.fixture
def own(servers: Fleet) -> Iterator[Callable[..., Nats]]:
    """Start a server that nobody else uses: it may be killed, frozen and filled."""
    mine: list[Nats] = []

    def start(kind: type[Nats] = Nats215, **attributes: Any) -> Nats:
        need(kind)
        # Settings are attributes of the class, so that they stand in the configuration of every start.
        found: Nats = servers.new(type(kind.__name__, (kind,), attributes))
        mine.append(found)
        return found

    yield start
    for found in mine:
        found.kill()


@pytest.fixture
def play() -> Callable[..., Any]:
    """Open backends, run a coroutine function with them within a limit, and close them."""

    def run(act: Callable[..., Awaitable[T]], *backends: NatsBase) -> T:
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
