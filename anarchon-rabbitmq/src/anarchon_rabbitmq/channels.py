"""Channels whose closing cannot end the connection that they are on."""

from __future__ import annotations

from typing import Final

from aiormq.abc import AbstractConnection
from aiormq.channel import Channel
from anarchon.clock import SystemClock
from pamqp.commands import Channel as Frames

__all__ = ["OurChannel", "open_channel"]

NUMBERS: Final = 1_024
FRAMES_AHEAD: Final = 10
ROOM_POLL_MS: Final = 1.0
_CLOCK: Final = SystemClock()


class OurChannel(Channel):
    """A channel that the broker may close at any time: a refused declaration does that."""

    async def _on_close_frame(self, frame: Frames.Close) -> None:
        """Answer the broker's close before the number is free again.

        The driver drops its answer where its write queue is full, and opening a channel under the number of one whose
        close was not answered is an error that closes the connection, with all that anybody else does on it.
        """
        channels = self.connection.channels
        channels.setdefault(self.number, self)
        try:
            while self.write_queue.full() and not self.connection.is_closed:
                await _CLOCK.sleep_ms(ROOM_POLL_MS)
            await super()._on_close_frame(frame)  # raises what the broker said
        finally:
            if channels.get(self.number) is self:
                del channels[self.number]


async def open_channel(connection: AbstractConnection, after: int, *, confirms: bool) -> OurChannel:
    """Open a channel under the next free number after one that was used: a number rests before it is used again.

    Raises:
        AMQPError: the broker refuses.
        RuntimeError: the connection is closed, or every number is taken.
    """
    await connection.ready()
    if connection.is_closed:
        msg = "the connection is closed"
        raise RuntimeError(msg)
    most = min(NUMBERS, connection.connection_tune.channel_max or NUMBERS)
    for step in range(most):
        number = (after + step) % most + 1
        if number not in connection.channels:
            break
    else:
        msg = f"{most} channels are open on this connection"
        raise RuntimeError(msg)
    channel = OurChannel(connection, number, publisher_confirms=confirms, frame_buffer=FRAMES_AHEAD, on_return_raises=True)
    connection.channels[number] = channel
    await channel.open()
    return channel
