"""A TCP proxy for one client: it holds requests until they are released, loses them, or loses their replies.

The gate knows no protocol. A request is what the client wrote since the gate last let something through. Every fault
ends with `heal`, or with the `fault` block that began it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from typing import Self
from urllib.parse import urlsplit

from anarchon.clock import Clock, SystemClock

from anarchon_conformance.link import Link, reset

__all__ = ["Gate", "Mode", "Settled", "never_ungated", "reroute"]

SETTLE_MS = 20.0
CUT_AFTER_MS = 2_000.0
CONNECT_MS = 5_000.0
CLOSE_MS = 2_000.0
CHUNK_BYTES = 65_536
HELD_BYTES_MAX = 16 * 1024 * 1024
LINKS_MAX = 256


class Mode(StrEnum):
    """What happens to a request that arrives."""

    PASS = "pass"  # noqa: S105 - a mode, no secret
    HOLD = "hold"
    CUT_BEFORE = "cut_before"
    CUT_AFTER = "cut_after"
    DELAY = "delay"
    HALF_OPEN = "half_open"


class Settled(StrEnum):
    """What a release led to."""

    REPLIED = "replied"
    QUIET = "quiet"
    NOTHING = "nothing"


def never_ungated(chunk: bytes) -> bool:
    """Treat every chunk as a request; the default predicate."""
    del chunk
    return False


def reroute(url: str, host: str, port: int) -> str:
    """Return a URL with its host and port replaced; user, path and options stay."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    shown = f"[{host}]" if ":" in host else host
    return parts._replace(netloc=f"{user}{at}{shown}:{port}").geturl()


class Gate:
    """Stands between one client and a store on TCP; connect the client to `host` and `port`."""

    host = "127.0.0.1"

    def __init__(
        self,
        store_host: str,
        store_port: int,
        *,
        ungated: Callable[[bytes], bool] = never_ungated,
        clock: Clock | None = None,
    ) -> None:
        """`ungated` recognises keep-alive traffic, which passes even while requests are held."""
        self._store = (store_host, store_port)
        self._ungated = ungated
        self._clock = clock or SystemClock()
        self._mode = Mode.PASS
        self._left: int | None = None
        self._after = 0
        self._delay_ms = 0.0
        self._changed = asyncio.Event()
        self._arrived = asyncio.Event()
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that the client connects to; free, chosen at `start`."""
        assert self._server is not None, "start the gate first"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def mode(self) -> Mode:
        """What happens to the next request."""
        return self._mode

    @property
    def links(self) -> int:
        """How many client connections are open through the gate."""
        return len(self._links)

    async def start(self) -> None:
        """Listen on a free loopback port."""
        assert self._server is None, "a gate starts once"
        self._server = await asyncio.start_server(self._serve, self.host, 0, limit=CHUNK_BYTES)

    async def close(self) -> None:
        """Reset what is open and wait until every task of the gate has ended; may be called twice."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        self._wake()
        self._reset_all()
        if self._tasks:
            _, stuck = await asyncio.wait(self._tasks, timeout=CLOSE_MS / 1000)
            for task in stuck:  # still connecting to a store that does not answer
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)
        await server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- what the schedule says

    def set(self, mode: Mode, *, count: int | None = None, after: int = 0, delay_ms: float = 0.0) -> None:
        """Choose what happens to requests from now on, or to the next `count` of them and then pass again.

        The first `after` requests still pass, so that a fault can hit any step of a call that takes several.
        What is held already stays held until `release`, `cut_before`, `cut_after` or `heal`. `HALF_OPEN` without a count
        silences open connections at once, in both directions.
        """
        assert count is None or count > 0, "a fault of no request is none"
        self._mode, self._left, self._after, self._delay_ms = mode, count, after, delay_ms
        self._wake()
        if self._dark:
            for link in self._links:
                link.silenced = True

    def heal(self) -> None:
        """Undo every fault: held requests go through, silent connections are reset, new traffic passes."""
        self.set(Mode.PASS)
        for link in list(self._links):
            if link.silenced or link.swallow:
                link.reset()
            elif link.pending:
                self._deliver(link)
        self._note_held()

    @asynccontextmanager
    async def fault(self, mode: Mode, *, count: int | None = None, after: int = 0, delay_ms: float = 0.0) -> AsyncIterator[None]:
        """Apply a fault for the length of a block, and heal."""
        self.set(mode, count=count, after=after, delay_ms=delay_ms)
        try:
            yield
        finally:
            self.heal()

    @property
    def held(self) -> int:
        """How many connections have a request that waits for its release."""
        return sum(1 for link in self._links if link.pending)

    async def wait_held(self, timeout_ms: float) -> bool:
        """Wait until a request is held; False if none came in time."""
        return await self._clock.wait(self._arrived, timeout_ms)

    async def release(self, *, settle_ms: float = SETTLE_MS) -> Settled:
        """Deliver what is held and wait until it settled: a reply came, or `settle_ms` passed (a lock may block it)."""
        links = [link for link in self._links if link.pending]
        for link in links:
            self._deliver(link)
        self._note_held()
        if not links:
            return Settled.NOTHING
        end_ms = self._clock.monotonic_ms() + settle_ms
        answers = [await self._clock.wait(link.replied, end_ms - self._clock.monotonic_ms()) for link in links]
        return Settled.REPLIED if all(answers) else Settled.QUIET

    def cut_before(self) -> int:
        """Lose what is held, undelivered, and reset those connections; returns how many."""
        links = [link for link in self._links if link.pending]
        for link in links:
            link.pending.clear()
            link.reset()
        self._note_held()
        return len(links)

    async def cut_after(self) -> int:
        """Deliver what is held, swallow the replies and reset those connections; returns how many.

        Waits for each reply, at most `CUT_AFTER_MS`, so that the store has decided when this returns.
        """
        links = [link for link in self._links if link.pending]
        for link in links:
            link.swallow = True
            self._deliver(link)
        self._note_held()
        end_ms = self._clock.monotonic_ms() + CUT_AFTER_MS
        for link in links:
            await self._clock.wait(link.replied, end_ms - self._clock.monotonic_ms())
            link.reset()
        return len(links)

    def cut_now(self) -> int:
        """Reset every open connection, whatever it is doing; returns how many."""
        return self._reset_all()

    # -- the plumbing

    @property
    def _dark(self) -> bool:
        return self._mode is Mode.HALF_OPEN and self._left is None and self._after == 0

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _note_held(self) -> None:
        if self.held:
            self._arrived.set()
        else:
            self._arrived.clear()

    def _deliver(self, link: Link) -> None:
        data = bytes(link.pending)
        link.pending.clear()
        link.send_up(data)

    def _reset_all(self) -> int:
        links = list(self._links)
        for link in links:
            link.pending.clear()
            link.reset()
        self._note_held()
        return len(links)

    def _next_mode(self) -> Mode:
        if self._after > 0:
            self._after -= 1
            return Mode.PASS
        mode = self._mode
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self._mode, self._left = Mode.PASS, None
        return mode

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link: Link | None = None
        try:
            if len(self._links) >= LINKS_MAX:
                return
            async with asyncio.timeout(CONNECT_MS / 1000):
                up_reader, up_writer = await asyncio.open_connection(*self._store, limit=CHUNK_BYTES)
            link = Link(writer, up_writer)
            link.silenced = self._dark
            self._links.add(link)
            await self._pump(link, reader, up_reader)
        except (OSError, TimeoutError):
            pass  # the store is down or the peer is gone: the client sees a reset
        finally:
            reset(writer)
            if link is not None:
                link.reset()
                self._links.discard(link)
                self._note_held()
            self._tasks.discard(task)

    async def _pump(self, link: Link, client: asyncio.StreamReader, store: asyncio.StreamReader) -> None:
        pumps = [
            asyncio.create_task(self._pump_up(link, client)),
            asyncio.create_task(self._pump_down(link, store)),
            asyncio.create_task(link.ended.wait()),
        ]
        try:
            # The client's end alone does not end the link: what it sent may still be held.
            await asyncio.wait(pumps[1:], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump_up(self, link: Link, client: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await client.read(CHUNK_BYTES):
                await self._take(link, data)
                await link.up.drain()
        link.client_gone = True
        if not link.silenced:
            link.pass_end()

    async def _take(self, link: Link, data: bytes) -> None:
        if link.silenced:
            return
        if link.swallow or self._ungated(data):  # what follows a request whose reply is lost shares its fate
            link.up.write(data)
            return
        if link.pending:  # the rest of a request that is held already, or one pipelined behind it
            self._hold(link, data)
            return
        mode = self._next_mode()
        if mode is Mode.DELAY:
            await self._clock.wait(self._changed, self._delay_ms)
        if mode in {Mode.PASS, Mode.DELAY}:
            link.send_up(data)
        elif mode is Mode.HOLD:
            self._hold(link, data)
        elif mode is Mode.CUT_BEFORE:
            link.reset()
        elif mode is Mode.CUT_AFTER:
            link.swallow = True
            link.send_up(data)
            self._start(self._cut_unanswered(link))
        else:
            link.silenced = True

    async def _cut_unanswered(self, link: Link) -> None:
        """Reset a connection whose first reply is to be lost, should none come; a reply itself ends it."""
        await self._clock.wait(link.ended, CUT_AFTER_MS)
        link.reset()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _hold(self, link: Link, data: bytes) -> None:
        link.pending += data
        if len(link.pending) > HELD_BYTES_MAX:
            link.pending.clear()
            link.reset()
        self._note_held()

    async def _pump_down(self, link: Link, store: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await self._reply(link, store):
                link.replied.set()
                if link.swallow:
                    return
                if not link.silenced and not link.down.is_closing():
                    link.down.write(data)
                    await link.down.drain()
        if link.silenced:
            await link.ended.wait()  # a black hole does not pass on the store's end either

    async def _reply(self, link: Link, store: asyncio.StreamReader) -> bytes:
        data = await store.read(CHUNK_BYTES)
        if data and self._mode is Mode.DELAY:
            await self._clock.wait(self._changed, self._delay_ms)
        return data
