"""Channels of one connection, own or borrowed: every call on its loop, in time, its failures explained."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from aiormq.abc import AbstractConnection as Connection
from aiormq.exceptions import DeliveryError
from anarchon.clock import SystemClock
from anarchon.errors import BackendTimeout, BackendUnavailable

from anarchon_rabbitmq.channels import OurChannel as Channel
from anarchon_rabbitmq.failures import FAILURES, explain
from anarchon_rabbitmq.options import Address
from anarchon_rabbitmq.wire import Lent, Wire, connect, connect_beside

__all__ = ["Channel", "Connection", "Lent", "Link"]

T = TypeVar("T")

LIMIT_MS: Final = 4_500
"""How long a call may take: less than the core's limit, so that a silent connection is noticed here and replaced."""
CHANNELS_MAX: Final = 16
IDLE_MAX: Final = 8
CHANNEL_CLOSE_MS: Final = 2_000
"""How long closing waits for the broker's answers."""


class Link:
    """The way of a backend to its broker.

    A channel belongs to one call at a time: a refusal closes it, and what else was under way on it would be lost. A channel
    whose call failed is never used again, and a borrowed connection is never closed.
    """

    def __init__(
        self,
        where: Address | Lent,
        *,
        trial: Callable[[Link], Awaitable[None]] | None = None,
        beside: bool = False,
        home: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`trial` is run once on every new connection, before any other call.

        `beside` makes a connection of our own like a borrowed one, for what may end in an error that closes a connection.
        """
        self._where = where
        self._beside = beside
        self._home = home
        self._trial = trial
        self._wire: Wire | None = None
        self._connection: Connection | None = None
        self._tried: Connection | None = None
        self._connecting: asyncio.Lock | None = None
        self._places: asyncio.Semaphore | None = None
        self._idle: dict[bool, list[Channel]] = {True: [], False: []}
        self._leaving: set[asyncio.Task[None]] = set()
        self._clock = SystemClock()
        self._heard_ms = 0.0
        self._number = 0
        self.place = f"RabbitMQ at {where}" if isinstance(where, Address) else "RabbitMQ (borrowed connection)"

    # -- life

    async def open(self) -> None:
        """Make ready; the first call connects."""
        if self._places is None:
            self._connecting, self._places = asyncio.Lock(), asyncio.Semaphore(CHANNELS_MAX)

    async def close(self) -> None:
        """Close an own connection, and of a borrowed one only our channels (C24)."""
        if self._home is None or self._home is asyncio.get_running_loop() or not self._home.is_running():
            await self._close()
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close(), self._home))

    async def _close(self) -> None:
        self._places = self._connecting = None
        idle, self._idle = self._idle, {True: [], False: []}
        wire, self._wire, self._connection = self._wire, None, None
        if wire is None:
            for channel in (*idle[True], *idle[False]):
                self._leave(channel)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=CHANNEL_CLOSE_MS / 1000)
        if wire is not None:
            await wire.close()
            for task in tuple(self._leaving):
                task.cancel()
            await asyncio.gather(*self._leaving, return_exceptions=True)

    # -- one call of the backend

    async def within(self, work: Callable[[], Awaitable[T]], *, pauses_ms: Sequence[float] = ()) -> T:
        """Do one call: on the loop that the connection belongs to, within `LIMIT_MS`, its failures explained (C23).

        Work that may be done twice is done again after each of `pauses_ms` where the broker was not to be reached.

        Raises:
            BackendError: the call failed, or gave no answer in time.
        """
        if self._home is None or self._home is asyncio.get_running_loop():
            return await self._bounded(work, pauses_ms)
        if not self._home.is_running():
            msg = f"{self.place}: the event loop that it belongs to does not run; open the scheduler while it does"
            raise BackendUnavailable(msg)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._bounded(work, pauses_ms), self._home))

    async def _bounded(self, work: Callable[[], Awaitable[T]], pauses_ms: Sequence[float]) -> T:
        limit, began_ms = asyncio.timeout(LIMIT_MS / 1000), self._clock.monotonic_ms()
        try:
            async with limit:
                for pause_ms in pauses_ms:
                    try:
                        return await self._once(work)
                    except BackendUnavailable:
                        await self._clock.sleep_ms(pause_ms)
                return await self._once(work)
        except TimeoutError as error:
            self._suspect(began_ms)
            msg = f"{self.place} did not answer within {LIMIT_MS / 1000:g} s"
            raise BackendTimeout(msg) from error

    async def _once(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            answer = await work()
        except FAILURES as error:
            raise explain(error, self.place) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The driver cancels what waits on a connection that closes: nobody cancelled this call.
            msg = f"{self.place} closed the connection during a call"
            raise BackendUnavailable(msg) from error
        except Exception as error:
            if type(error) is not Exception:
                raise
            raise explain(error, self.place) from error  # or rejects it with an exception that says nothing
        self._heard_ms = self._clock.monotonic_ms()
        return answer

    def _suspect(self, began_ms: float) -> None:
        """Let go of an own connection on which nothing was answered since a call began: the next call makes a new one."""
        if self._heard_ms >= began_ms or self._wire is None:
            return
        wire, self._wire, self._connection = self._wire, None, None
        self._idle = {True: [], False: []}
        self._see_to(wire.close(gently=False))

    def _see_to(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._leaving.add(task)
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        if not task.cancelled():
            task.exception()

    # -- channels, within a call

    @asynccontextmanager
    async def channel(self, *, confirms: bool) -> AsyncIterator[Channel]:
        """Lend a channel for one exchange; with `confirms` a message that reached no queue raises."""
        if self._places is None:
            msg = f"{self.place} is not open: open the backend first"
            raise BackendUnavailable(msg)
        async with self._places:
            connection = await self._connected()
            async with self._on(connection, confirms=confirms) as channel:
                yield channel

    @asynccontextmanager
    async def trial_channel(self, *, confirms: bool) -> AsyncIterator[Channel]:
        """Lend a channel of a connection that is still on trial."""
        if self._tried is None:
            msg = f"{self.place} is not on trial"
            raise BackendUnavailable(msg)
        async with self._on(self._tried, confirms=confirms) as channel:
            yield channel

    @asynccontextmanager
    async def _on(self, connection: Connection, *, confirms: bool) -> AsyncIterator[Channel]:
        idle = self._idle[confirms]
        channel: Channel | None = None
        while idle and channel is None:
            channel = idle.pop()
            if channel.is_closed or channel.connection is not connection:
                channel = None
        fresh = channel is None
        if channel is None:
            await connection.ready()
            channel = Channel.after(self._number, connection, confirms=confirms)
            self._number = channel.number
        try:
            if fresh:
                await channel.open()
            yield channel
        except DeliveryError:
            self._give_back(channel, confirms=confirms)  # a message was refused or returned, and that was all
            raise
        except BaseException:
            self._leave(channel)
            raise
        self._give_back(channel, confirms=confirms)

    def _give_back(self, channel: Channel, *, confirms: bool) -> None:
        idle = self._idle[confirms]
        if channel.connection not in {self._connection, self._tried} or len(idle) >= IDLE_MAX:
            self._leave(channel)
        elif not channel.is_closed:
            idle.append(channel)

    def _leave(self, channel: Channel) -> None:
        """Close a channel aside: whoever was cancelled or refused does not wait for it."""
        if not channel.is_closed and not channel.connection.is_closed:
            self._see_to(channel.close())

    async def _connected(self) -> Connection:
        """Return a connection that passed its trial.

        Raises:
            BackendError: there is none.
        """
        if self._alive():
            assert self._connection is not None
            return self._connection
        if self._connecting is None:
            msg = f"{self.place} was closed"
            raise BackendUnavailable(msg)
        async with self._connecting:
            if not self._alive():
                self._connection = await self._connect()
            assert self._connection is not None
            return self._connection

    def _alive(self) -> bool:
        if self._connection is None or self._connection.is_closed:
            return False
        # A borrowed connection that reconnects by itself has a new one underneath.
        return self._wire is not None or (not isinstance(self._where, Address) and self._connection is _under(self._where))

    async def _connect(self) -> Connection:
        """Make a connection, and return it once it has passed its trial: until then no other call sees it."""
        wire, self._wire, self._connection = self._wire, None, None
        self._idle = {True: [], False: []}
        if wire is not None:
            self._see_to(wire.close(gently=False))
        wire = None
        if isinstance(self._where, Address):
            wire = await connect(self._where)
        elif self._beside:
            wire = await connect_beside(self._where)
        connection = _under(self._where) if wire is None else wire.connection
        if connection is None or connection.is_closed:
            msg = f"{self.place} is closed; open it again, or lend a connection of aio_pika.connect_robust"
            raise BackendUnavailable(msg)
        try:
            self._tried = connection
            if self._trial is not None:
                await self._trial(self)
        except BaseException:
            if wire is not None:
                self._see_to(wire.close(gently=False))
            raise
        finally:
            self._tried = None
        if self._places is None and wire is not None:
            await wire.close()  # the backend was closed in the meantime
        self._wire = wire
        return connection

    @property
    def connection(self) -> Connection | None:
        """The connection now in use, or on trial."""
        return self._tried or self._connection


def _under(where: Address | Lent) -> Connection | None:
    if isinstance(where, Address):
        return None
    transport = where.transport
    return None if transport is None or where.is_closed else transport.connection
