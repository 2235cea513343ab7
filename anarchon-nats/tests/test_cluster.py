"""Three servers that keep three copies: the leader is killed within the window, and no slot has two winners (C1, C6)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import nats
import pytest
from anarchon.errors import BackendError, StoreSetupError
from anarchon.types import ClaimRequest, Outcome, RunKey, RunResult, RunStatus, new_token
from anarchon_nats import from_url
from stores.nats import Nats, Nats29, Nats215, cluster_of
from stores.server import free_port

LIMIT_S = 170
CHANGES_NIGHTLY = 4
DONE = RunResult(RunStatus.SUCCESS)


@pytest.fixture(scope="module", params=[Nats215, pytest.param(Nats29, marks=pytest.mark.nightly)], ids=lambda kind: kind.name)
def cluster(
    request: pytest.FixtureRequest, need_store: Callable[[type[Nats]], None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Nats]]:
    """Three servers that know each other, ready for streams."""
    need_store(request.param)
    nodes = cluster_of(request.param, tmp_path_factory.mktemp("cluster"))
    try:
        yield started(nodes)
    finally:
        for node in nodes:
            node.kill()


def started(nodes: list[Nats]) -> list[Nats]:
    """Start servers of which none answers before most are there."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(lambda node: node.start(), nodes))
    return nodes


async def leader_of(nodes: list[Nats], stream: str) -> Nats:
    """Return the server that leads a stream, once the others have caught up with it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for node in nodes:
            with suppress(Exception):
                client = await nats.connect(node.url(), allow_reconnect=False, connect_timeout=2)
                try:
                    told = json.loads((await client.request(f"$JS.API.STREAM.INFO.{stream}", timeout=2)).data)["cluster"]
                finally:
                    await client.close()
                if len(told["replicas"]) == 2 and all(each["current"] for each in told["replicas"]):
                    return next(each for each in nodes if each.node == told["leader"])
        await asyncio.sleep(0.1)
    msg = f"the servers of {stream} do not agree"
    raise AssertionError(msg)


async def kill(leader: Nats, stream: str) -> None:
    """Change the leader by killing its process."""
    await asyncio.to_thread(leader.kill)


async def step_down(leader: Nats, stream: str) -> None:
    """Change the leader in good order."""
    client = await nats.connect(leader.url(), allow_reconnect=False)
    try:
        # An old server may let this one go unanswered and step down all the same.
        with suppress(nats.errors.TimeoutError):
            await client.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}", timeout=3)
    finally:
        await client.close()


async def surely(ask: Callable[[], Any]) -> Any:
    """Ask until there is an answer, as the scheduler does."""
    deadline = time.monotonic() + 40
    while True:
        try:
            return await ask()
        except BackendError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("strategy", ["lease", "cas", "msg-id"])
def test_c01_a_change_of_leader_within_the_window_elects_nobody_twice(strategy: str, cluster: list[Nats], profile: str) -> None:
    if profile == "nightly" and cluster[0].name == Nats215.name:
        hows = [change for _ in range(CHANGES_NIGHTLY) for change in (step_down, kill)]
    else:  # a kill means an election, some seconds long
        hows = [step_down, kill] if strategy == "lease" else [step_down, step_down]
    places = ",".join(f"{node.host}:{node.port}" for node in cluster)
    url = f"nats://{places}?strategy={strategy}&prefix=c{free_port()}&replicas=3"

    backends: list[Any] = [from_url(url) for _ in range(3)]

    def ask(key: RunKey) -> ClaimRequest:
        return ClaimRequest(key=key, token=new_token(), instance="i", exclusive=False, keep_ms=200_000, max_late_ms=190_000)

    async def act() -> None:
        for backend in backends:
            await surely(backend.open)
        won: dict[RunKey, list[str]] = {}
        first_ms = await surely(backends[0].now_ms) - 60_000
        slots = iter(range(first_ms, first_ms + 10_000))

        async def race(key: RunKey) -> None:
            async def one(backend: Any) -> None:
                request = ask(key)
                claim = await surely(lambda: backend.claim(request))
                if claim.won:
                    won.setdefault(key, []).append(request.token)
                    assert await surely(lambda: backend.finish(key, request.token, DONE))

            await asyncio.gather(*(one(backend) for backend in backends))

        async def races(count: int) -> None:
            for _ in range(count):
                await race(RunKey("job", next(slots)))

        for change in hows:
            await races(10)
            leader = await leader_of(cluster, backends[0]._found.name)
            under_way = asyncio.create_task(races(10))
            await change(leader, backends[0]._found.name)
            await under_way
            if not leader.running:
                await asyncio.to_thread(leader.start)
        assert len(won) == len(hows) * 20
        assert not [key for key, tokens in won.items() if len(tokens) > 1]
        for key in won:
            answer = await surely(lambda key=key: backends[0].claim(ask(key)))  # type: ignore[misc]  # bound now
            assert answer.outcome in {Outcome.LOST, Outcome.DONE}
        records = await surely(lambda: backends[1].history("job", limit=10**6))
        assert {record.key for record in records if record.status is RunStatus.SUCCESS} == set(won)

    if strategy == "lease" and cluster[0].name == Nats29.name:  # it lets two compare-and-sets of one moment both pass
        with pytest.raises(StoreSetupError, match=r"a lease on several replicas needs 2\.15"):
            asyncio.run(backends[0].open())
        return

    async def limited() -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                await act()
        finally:
            for backend in backends:
                await backend.close()

    asyncio.run(limited())
