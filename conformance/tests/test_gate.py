"""The gate against a real TCP server that counts what it was told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from anarchon_conformance.gate import Gate, Mode, Settled, reroute

LIMIT_S = 5.0


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario on a loop of its own and insist that no task outlives it."""

    async def watched() -> None:
        async with asyncio.timeout(30):
            await scenario
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for _ in range(50):  # a closed transport needs a few steps to let go
            if not left:
                break
            await asyncio.sleep(0)
            left = [task for task in left if not task.done()]
        assert left == []

    asyncio.run(watched())


class LineServer:
    """Answers each line with `ok <line>`; a line `mute` gets no answer, `bye` closes. Keeps every line it saw."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.news = asyncio.Condition()
        self.connections = 0
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while line := await reader.readline():
                word = line.decode().strip()
                async with self.news:
                    self.seen.append(word)
                    self.news.notify_all()
                if word == "bye":
                    break
                if word != "mute":
                    writer.write(f"ok {word}\n".encode())
                    await writer.drain()
        except OSError:
            pass
        finally:
            self.connections -= 1
            writer.close()

    async def saw(self, word: str) -> None:
        async with asyncio.timeout(LIMIT_S), self.news:
            await self.news.wait_for(lambda: word in self.seen)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, word: str) -> None:
        self.writer.write(f"{word}\n".encode())

    async def receive(self) -> str:
        async with asyncio.timeout(LIMIT_S):
            return (await self.reader.readline()).decode().strip()

    async def ask(self, word: str) -> str:
        self.send(word)
        return await self.receive()

    async def expect_reset(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            try:
                assert await self.reader.read(1) == b""
            except ConnectionError:
                return

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


@asynccontextmanager
async def wired(**options: Any) -> AsyncIterator[tuple[LineServer, Gate, Client]]:
    server = LineServer()
    await server.start()
    try:
        async with Gate("127.0.0.1", server.port, **options) as gate:
            client = Client(*await asyncio.open_connection(gate.host, gate.port))
            try:
                assert await client.ask("hello") == "ok hello"
                yield server, gate, client
            finally:
                await client.close()
    finally:
        await server.stop()


def test_pass_forwards_large_and_pipelined_traffic() -> None:
    async def scenario() -> None:
        async with wired() as (_, _, client):
            words = [f"w{n}" + "x" * 900 for n in range(300)]
            for word in words:
                client.send(word)
            assert [await client.receive() for _ in words] == [f"ok {word}" for word in words]

    run(scenario())


def test_hold_keeps_a_request_until_its_release() -> None:
    async def scenario() -> None:
        async with wired() as (server, gate, client):
            gate.set(Mode.HOLD)
            client.send("a")
            assert await gate.wait_held(LIMIT_S * 1000)
            assert server.seen == ["hello"]
            assert await gate.release(settle_ms=LIMIT_S * 1000) is Settled.REPLIED
            assert await client.receive() == "ok a"
            assert gate.held == 0

    run(scenario())


def test_hold_holds_the_next_request_after_a_release() -> None:
    async def scenario() -> None:
        async with wired() as (server, gate, client):
            gate.set(Mode.HOLD)
            client.send("a")
            await gate.wait_held(LIMIT_S * 1000)
            await gate.release(settle_ms=LIMIT_S * 1000)
            client.send("b")
            assert await gate.wait_held(LIMIT_S * 1000)
            assert server.seen == ["hello", "a"]

    run(scenario())


def test_release_settles_quietly_when_no_reply_comes() -> None:
    async def scenario() -> None:
        async with wired() as (server, gate, client):
            gate.set(Mode.HOLD)
            client.send("mute")
            await gate.wait_held(LIMIT_S * 1000)
            assert await gate.release() is Settled.QUIET
            await server.saw("mute")

    run(scenario())


def test_release_of_nothing_says_so() -> None:
    async def scenario() -> None:
        async with wired() as (_, gate, _):
            gate.set(Mode.HOLD)
            assert await gate.wait_held(1) is False
            assert await gate.release() is Settled.NOTHING

    run(scenario())


def test_held_request_of_a_client_that_left_can_still_be_delivered() -> None:
    async def scenario() -> None:
        async with wired() as (server, gate, client):
            gate.set(Mode.HOLD)
            client.send("late")
            await gate.wait_held(LIMIT_S * 1000)
            await client.close()
            await gate.release()
            await server.saw("late")

    run(scenario())


def test_keep_alive_passes_while_requests_are_held() -> None:
    async def scenario() -> None:
        async with wired(ungated=lambda chunk: chunk == b"ping\n") as (server, gate, client):
            gate.set(Mode.HOLD)
            assert await client.ask("ping") == "ok ping"
            client.send("a")
            await gate.wait_held(LIMIT_S * 1000)
            assert server.seen == ["hello", "ping"]

    run(scenario())


def test_cut_before_loses_the_request() -> None:
    async def scenario() -> None:
        async with wired() as (server, gate, client):
            gate.set(Mode.CUT_BEFORE, count=1)
            client.send("lost")
            await client.expect_reset()
            again = Client(*await asyncio.open_connection(gate.host, gate.port))
            assert await again.ask("b") == "ok b"
            await again.close()
            assert server.seen == ["hello", "b"]

    run(scenario())


def test_cut_before_loses_a_held_request() -> None:
    async def scenario() -> None:
        async with wired() as (server, gate, client):
            gate.set(Mode.HOLD)
            client.send("lost")
            await gate.wait_held(LIMIT_S * 1000)
            assert gate.cut_before() == 1
            await client.expect_reset()
            assert server.seen == ["hello"]

    run(scenario())


def test_cut_after_delivers_and_swallows_the_reply() -> None:
    async def scenario() -> None:
        async with wired() as (server, gate, client):
            gate.set(Mode.CUT_AFTER, count=1)
            client.send("a")
            await client.expect_reset()
            await server.saw("a")

    run(scenario())


def test_what_follows_a_request_that_has_no_reply_is_lost_with_it() -> None:
    """Some protocols have requests that nothing answers: the reply that is lost is the one to what came next."""

    async def scenario() -> None:
        async with wired() as (server, gate, client):
            gate.set(Mode.CUT_AFTER, count=1)
            client.send("mute")
            await server.saw("mute")
            client.send("a")
            await server.saw("a")
            await client.expect_reset()
            assert gate.mode is Mode.PASS

    run(scenario())


def test_a_fault_can_wait_for_a_later_request() -> None:
    async def scenario() -> None:
        async with wired() as (server, gate, client):
            gate.set(Mode.CUT_BEFORE, count=1, after=2)
            assert [await client.ask("a"), await client.ask("b")] == ["ok a", "ok b"]
            client.send("c")
            await client.expect_reset()
            assert server.seen == ["hello", "a", "b"]
            assert gate.mode is Mode.PASS

    run(scenario())


def test_cut_after_of_a_held_request_returns_when_the_store_decided() -> None:
    async def scenario() -> None:
        async with wired() as (server, gate, client):
            gate.set(Mode.HOLD)
            client.send("a")
            await gate.wait_held(LIMIT_S * 1000)
            assert await gate.cut_after() == 1
            assert server.seen == ["hello", "a"]
            await client.expect_reset()

    run(scenario())


def test_delay_keeps_order_and_ends_at_heal() -> None:
    async def scenario() -> None:
        async with wired() as (server, gate, client):
            gate.set(Mode.DELAY, delay_ms=60_000)
            client.send("a")
            client.send("b")
            assert server.seen == ["hello"]
            while gate.links and server.seen == ["hello"]:
                gate.heal()
                await asyncio.sleep(0)
            assert [await client.receive(), await client.receive()] == ["ok a", "ok b"]

    run(scenario())


def test_half_open_is_silent_both_ways_until_the_fault_ends() -> None:
    async def scenario() -> None:
        async with wired() as (server, gate, client):
            async with gate.fault(Mode.HALF_OPEN):
                client.send("a")
                fresh = Client(*await asyncio.open_connection(gate.host, gate.port))
                fresh.send("b")
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await client.reader.read(1)
                assert server.seen == ["hello"]
            await client.expect_reset()
            await fresh.expect_reset()
            await fresh.close()
            again = Client(*await asyncio.open_connection(gate.host, gate.port))
            assert await again.ask("c") == "ok c"
            await again.close()

    run(scenario())


def test_half_open_hides_the_end_of_the_store() -> None:
    async def scenario() -> None:
        async with wired() as (_, gate, client):
            client.send("bye")
            gate.set(Mode.HALF_OPEN)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.reader.read(1)

    run(scenario())


def test_heal_delivers_what_was_held() -> None:
    async def scenario() -> None:
        async with wired() as (_, gate, client):
            async with gate.fault(Mode.HOLD):
                client.send("a")
                await gate.wait_held(LIMIT_S * 1000)
            assert await client.receive() == "ok a"
            assert gate.mode is Mode.PASS

    run(scenario())


def test_cut_now_resets_an_idle_connection() -> None:
    async def scenario() -> None:
        async with wired() as (_, gate, client):
            assert gate.cut_now() == 1
            await client.expect_reset()

    run(scenario())


def test_an_absent_store_is_a_reset_not_a_hang() -> None:
    async def scenario() -> None:
        server = LineServer()
        await server.start()
        port = server.port
        await server.stop()
        async with Gate("127.0.0.1", port) as gate:
            client = Client(*await asyncio.open_connection(gate.host, gate.port))
            await client.expect_reset()
            await client.close()

    run(scenario())


def test_the_end_of_a_client_reaches_the_store() -> None:
    async def scenario() -> None:
        async with wired() as (server, gate, client):
            await client.close()
            async with asyncio.timeout(LIMIT_S):
                while server.connections or gate.links:
                    await asyncio.sleep(0)

    run(scenario())


def test_close_leaves_no_link_task_or_thread_even_mid_fault() -> None:
    async def scenario() -> None:
        threads = set(threading.enumerate())
        async with wired() as (_, gate, client):
            gate.set(Mode.HOLD)
            client.send("a")
            await gate.wait_held(LIMIT_S * 1000)
            await gate.close()
            await gate.close()
            assert gate.links == 0
            await client.expect_reset()
        assert set(threading.enumerate()) <= threads

    run(scenario())


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("acme://store.example/db?x=1", "acme://127.0.0.1:7/db?x=1"),
        ("acme://user:p%40ss@store:99/db", "acme://user:p%40ss@127.0.0.1:7/db"),
        ("acme://[::1]:99", "acme://127.0.0.1:7"),
    ],
)
def test_reroute_replaces_host_and_port_only(url: str, expected: str) -> None:
    assert reroute(url, "127.0.0.1", 7) == expected
