"""The history: a stream of records for each job. Writing it never decides a run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from aiormq.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed
from anarchon.clock import SystemClock
from anarchon.errors import BackendError
from anarchon.types import RunRecord
from pamqp.commands import Basic

from anarchon_rabbitmq.failures import Misfit, misfit_of
from anarchon_rabbitmq.link import Channel, Link
from anarchon_rabbitmq.names import RECORDS_A_RUN, Names, stream_arguments
from anarchon_rabbitmq.records import decoded, encoded, merged

__all__ = ["Journal"]

HISTORY_DEFAULT: Final = 100
AHEAD: Final = 2_000
"""How many messages the broker sends before the first is acknowledged."""
ACK_EVERY: Final = 500
SLACK: Final = 32
"""Offsets are not counts: the broker's own entries take some."""
WIDEN: Final = 4
EMPTY_MS: Final = 200
"""How long a stream that seems to hold nothing is given to say otherwise: rarely its end is sent a moment late."""
FEW: Final = 50
"""How many runs are looked at first where only those since an instant are wanted."""
EARLY_MS: Final = 60_000
"""How much before its slot a run may be claimed: no more than clocks differ."""
STREAMS_MAX: Final = 10_000
PAUSES_MS: Final = (20, 50, 100, 200, 400, 800)
"""A stream that is being made, moved or recovered answers with an error that closes the connection; soon it does not."""
SIZES: Final = frozenset({"x-max-length-bytes", "x-stream-max-segment-size-bytes"})
STARTS_MAX: Final = 1_000
SETTLE_MS: Final = 1_000


class Reader:
    """What a consumer of a stream was sent."""

    def __init__(self, channel: Channel, until: int | None) -> None:
        self._channel = channel
        self._until = until
        self.bodies: list[tuple[int, bytes]] = []
        self.first = asyncio.Event()
        self.complete = asyncio.Event()

    async def take(self, message: Any) -> None:
        offset = int(message.header.properties.headers["x-stream-offset"])
        self.bodies.append((offset, message.body))
        self.first.set()
        if len(self.bodies) % ACK_EVERY == 0:
            await self._channel.basic_ack(message.delivery.delivery_tag, multiple=True, wait=False)
        if self._until is not None and offset >= self._until:
            self.complete.set()

    @property
    def last(self) -> int | None:
        """The highest offset that came."""
        return max((offset for offset, _ in self.bodies), default=None)


def _message() -> Basic.Properties:
    return Basic.Properties(delivery_mode=2, content_type="application/json")


class Journal:
    """The streams of one prefix."""

    def __init__(self, link: Link, names: Names) -> None:
        self._link = link
        self._names = names
        self._sizes: dict[str, int] = {}
        self._made: OrderedDict[str, None] = OrderedDict()
        self._making: dict[str, asyncio.Lock] = {}
        self._starts: list[RunRecord] = []
        self._starting: asyncio.Task[None] | None = None
        self._clock = SystemClock()

    # -- writing

    def begin(self, record: RunRecord, history_size: int) -> None:
        """Write the start of a run aside: the claim is decided and does not wait for it, its end says all of it again."""
        if len(self._sizes) >= STREAMS_MAX:
            self._sizes.clear()
        self._sizes[record.job] = history_size
        if len(self._starts) < STARTS_MAX:
            self._starts.append(record)
        if self._starting is None or self._starting.done():
            self._starting = asyncio.ensure_future(self._begin_all())

    async def _begin_all(self) -> None:
        while self._starts:
            starts, self._starts = self._starts, []
            with contextlib.suppress(BackendError):  # a run without a start in the history is still the winner's
                await self._link.within(functools.partial(self._begin_some, starts))

    async def _begin_some(self, starts: Sequence[RunRecord]) -> None:
        streams = {self._names.history(record.job): record.job for record in starts}
        made = (self._make(stream, self._sizes.get(job, HISTORY_DEFAULT)) for stream, job in streams.items())
        failed = [answer for answer in await asyncio.gather(*made, return_exceptions=True) if isinstance(answer, BaseException)]
        async with self._link.channel(confirms=False) as channel:
            for record in starts:
                body, stream = encoded(record), self._names.history(record.job)
                await channel.basic_publish(body, routing_key=stream, properties=_message(), wait=False)
        if failed:
            raise failed[0]

    async def write(self, record: RunRecord) -> None:
        """Append a record; twice is as good as once.

        Raises:
            BackendError: it may not be there.
        """
        stream, body = self._names.history(record.job), encoded(record)

        async def append() -> None:
            await self._make(stream, self._sizes.get(record.job, HISTORY_DEFAULT))
            try:
                async with self._link.channel(confirms=True) as channel:
                    await channel.basic_publish(body, routing_key=stream, mandatory=True, properties=_message())
            except BaseException:
                self._made.pop(stream, None)  # somebody may have deleted it
                raise

        await self._link.within(append, pauses_ms=PAUSES_MS)

    async def _make(self, stream: str, history_size: int) -> None:
        """Declare a stream; one task at a time, because what meets a stream in the making loses its connection."""
        if stream in self._made:
            return
        async with self._making.setdefault(stream, asyncio.Lock()):
            if stream in self._made:
                return
            arguments = stream_arguments(history_size)
            for _ in range(len(SIZES)):
                misfit = await self._declare(stream, arguments)
                if misfit is None:
                    break
                # It is there with another size, and keeps it.
                arguments[misfit.argument] = int(misfit.said)
            else:
                await self._declare(stream, arguments)
            self._made[stream] = None
            self._making.pop(stream, None)
            if len(self._made) > STREAMS_MAX:
                self._made.popitem(last=False)

    async def _declare(self, stream: str, arguments: dict[str, Any]) -> Misfit | None:
        """Declare a stream; the answer names a size that an existing one has instead.

        Raises:
            ChannelPreconditionFailed: the queue is something else.
        """
        try:
            async with self._link.channel(confirms=False) as channel:
                await channel.queue_declare(stream, durable=True, arguments=arguments)
        except ChannelPreconditionFailed as error:
            misfit = misfit_of(error)
            if misfit is None or misfit.argument not in SIZES or not misfit.whole or not misfit.said.isdigit():
                raise
            return misfit
        return None

    async def settle(self) -> None:
        """Wait until the starts under way are written, for a moment at most."""
        if self._starting is not None and not self._starting.done():
            await asyncio.wait({self._starting}, timeout=SETTLE_MS / 1000)

    async def open(self) -> None:
        """Make ready; the first record or question connects."""
        await self._link.open()

    async def close(self) -> None:
        """Let go of what is still under way, and of the connection."""
        await self.settle()
        starting, self._starting, self._starts = self._starting, None, []
        if starting is not None:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        self._made.clear()
        await self._link.close()

    # -- reading

    async def read(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        """Return the newest claims of a job.

        Raises:
            BackendError: the stream cannot be read.
        """
        return await self._link.within(lambda: self._newest(job, limit, since_ms), pauses_ms=PAUSES_MS)

    async def _newest(self, job: str, limit: int, since_ms: int) -> list[RunRecord]:
        stream = self._names.history(job)
        try:
            last = (await self._consumed(stream, "last", until=None)).last
            if last is None:
                return []
            span = RECORDS_A_RUN * (min(limit, FEW) if since_ms else limit) + SLACK
            while True:
                first = max(0, last - span)
                bodies = sorted((await self._consumed(stream, first, until=last)).bodies)
                records = [record for _, body in bodies if (record := decoded(job, body)) is not None]
                found = [record for record in merged(records) if record.slot_ms >= since_ms]
                # All there is, or enough: whatever lies further back was claimed, so is, older.
                oldest_ms = min((record.claimed_ms for record in records), default=0)
                if len(found) >= limit or first == 0 or bodies[0][0] > first or oldest_ms < since_ms - EARLY_MS:
                    return found[:limit]
                span *= WIDEN
        except ChannelNotFoundEntity as error:
            if "no queue" not in str(error):
                raise
            return []

    async def _consumed(self, stream: str, offset: int | str, *, until: int | None) -> Reader:
        """Read a stream from an offset, up to one that is known to be there or to what is there now."""
        async with self._link.channel(confirms=False) as channel:
            reader = Reader(channel, until)
            await channel.basic_qos(prefetch_count=AHEAD)
            consumer = await channel.basic_consume(stream, reader.take, arguments={"x-stream-offset": offset})
            # What the stream holds is sent before the answer to any later request.
            await channel.basic_qos(prefetch_count=AHEAD)
            if until is not None:
                await reader.complete.wait()
            elif not reader.bodies:
                await self._clock.wait(reader.first, EMPTY_MS)
            await channel.basic_cancel(str(consumer.consumer_tag))
            await channel.close()  # with it goes what is not acknowledged, and the limit
            return reader

    async def forget(self, job: str) -> None:
        """Delete a job's stream."""

        async def delete() -> None:
            async with self._link.channel(confirms=False) as channel:
                await channel.queue_delete(self._names.history(job))

        self._made.pop(self._names.history(job), None)
        await self._link.within(delete)
