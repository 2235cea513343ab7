"""Channels that no cancelled call and no refusal can turn into the end of the connection that they are on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from aiormq.abc import AbstractConnection
from aiormq.channel import Channel, exception_by_code
from anarchon.clock import SystemClock
from pamqp.commands import Channel as Frames

__all__ = ["OurChannel", "Outbox"]

T = TypeVar("T")

NUMBERS: Final = 1_024
ROOM_POLL_MS: Final = 1.0
_CLOCK: Final = SystemClock()


class Outbox:
    """The way of one channel into the frames that its connection sends: nothing follows the answer to the broker's close."""

    def __init__(self, frames: asyncio.Queue[Any]) -> None:
        self.frames = frames
        self._waiting = 0
        self.refusal: BaseException | None = None
        self.put_nowait = frames.put_nowait

    async def put(self, frame: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        self._waiting += 1
        try:
            await self.frames.put(frame)
        finally:
            self._waiting -= 1

    def ready(self) -> bool:
        """Tell whether an answer has room, and no frame of this channel that waits for room would come behind it."""
        return not self._waiting and not self.frames.full()


class OurChannel(Channel):
    """A channel of which a call may be cancelled, and which the broker may close, at any time.

    What AMQP 0-9-1 punishes by closing the whole connection must not happen on one that is borrowed (C24): a frame on a
    number that is closed already, be it a second close, and the opening of a number that is not closed yet.
    """

    def __init__(self, connection: AbstractConnection, number: int, *, confirms: bool) -> None:
        """Make the channel of a free number; `open` opens it."""
        # No limit to the frames that wait: where one channel's are not taken, the driver reads for no other channel either.
        super().__init__(connection, number, publisher_confirms=confirms, frame_buffer=None, on_return_raises=True)
        self._asides: set[asyncio.Task[Any]] = set()
        self._outbox = Outbox(self.write_queue)
        self.write_queue = self._outbox  # type: ignore[assignment]  # what the driver's channel calls of a queue

    @classmethod
    def after(cls, last: int, connection: AbstractConnection, *, confirms: bool) -> OurChannel:
        """Make a channel of the next free number after one that was used: a number rests before it is used again.

        Raises:
            RuntimeError: the connection is closed, or every number is taken.
        """
        if connection.is_closed:
            msg = "the connection is closed"
            raise RuntimeError(msg)
        most = min(NUMBERS, connection.connection_tune.channel_max or NUMBERS)
        for step in range(most):
            number = (last + step) % most + 1
            if number not in connection.channels:
                connection.channels[number] = channel = cls(connection, number, confirms=confirms)
                return channel
        msg = f"{most} channels are open on this connection"
        raise RuntimeError(msg)

    # Calls have a deadline of the link's. Those of the driver wait by `asyncio.wait_for`, which before Python 3.12 can swallow
    # the end of a connection, and then waits for the answer to a request that was never sent.
    #
    # What is asked is answered, whoever is still there to hear it: the driver would close the channel on its own when a caller
    # is cancelled, without waiting for the broker, and once more where the call was the closing itself.

    async def open(self, timeout: Any = None) -> Any:
        """Open the channel; a caller that is cancelled leaves it opening, and closes it like an open one."""
        del timeout
        return await self._aside(super().open())

    async def rpc(self, frame: Any, timeout: Any = None) -> Any:
        """Exchange a request for its answer, or for the error that closed the channel."""
        del timeout
        return await self._aside(super().rpc(frame))

    async def _aside(self, exchange: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(exchange)
        self._asides.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._asides.discard(task)
        if not task.cancelled():
            task.exception()

    # -- closed by the broker

    async def _on_close_frame(self, frame: Frames.Close) -> None:
        """Answer the broker's close before the number is free again, and send nothing after that answer.

        The driver drops its answer where its write queue is full.
        """
        channels = self.connection.channels
        channels.setdefault(self.number, self)
        self._outbox.refusal = exception_by_code(frame)
        try:
            while not self._outbox.ready() and not self.connection.is_closed:
                await _CLOCK.sleep_ms(ROOM_POLL_MS)
            await super()._on_close_frame(frame)  # raises what the broker said
        finally:
            if channels.get(self.number) is self:
                del channels[self.number]
