"""The history: a stream of records for each job. Writing it never decides a run."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import Any, Final

from aiormq.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed
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
        self.complete = asyncio.Event()

    async def take(self, message: Any) -> None:
        offset = int(message.header.properties.headers["x-stream-offset"])
        self.bodies.append((offset, message.body))
        if len(self.bodies) % ACK_EVERY == 0:
            await self._channel.basic_ack(message.delivery.delivery_tag, multiple=True, wait=False)
        if self._until is not None and offset >= self._until:
            self.complete.set()

    @property
    def last(self) -> int | None:
        """The highest offset that came."""
        return max((offset for offset, _ in self.bodies), default=None)


class Journal:
    """The streams of one prefix."""

    def __init__(self, link: Link, names: Names) -> None:
        self._link = link
        self._names = names
        self._sizes: dict[str, int] = {}
        self._made: OrderedDict[str, None] = OrderedDict()
        self._making: dict[str, asyncio.Lock] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._started: dict[str, set[asyncio.Task[None]]] = {}

    # -- writing

    def begin(self, record: RunRecord, history_size: int) -> None:
        """Write the start of a run aside: the claim is decided and does not wait for it, the end says all of it again."""
        if len(self._sizes) >= STREAMS_MAX:
            self._sizes.clear()
        self._sizes[record.job] = history_size
        if len(self._starting) >= STARTS_MAX:
            return
        task = asyncio.ensure_future(self._quietly(record))
        self._starting.add(task)
        jobs = self._started.setdefault(record.job, set())
        jobs.add(task)

        def ended(_: asyncio.Task[None]) -> None:
            self._starting.discard(task)
            jobs.discard(task)
            if not jobs and self._started.get(record.job) is jobs:
                del self._started[record.job]

        task.add_done_callback(ended)

    async def _quietly(self, record: RunRecord) -> None:
        # A run without a start in the history is still the winner's; its end says all of it again.
        with contextlib.suppress(BackendError):
            await self.write(record)

    async def write(self, record: RunRecord) -> None:
        """Append a record; twice is as good as once.

        Raises:
            BackendError: it may not be there.
        """
        stream, body = self._names.history(record.job), encoded(record)

        async def append() -> None:
            if stream not in self._made:
                await self._make(stream, self._sizes.get(record.job, HISTORY_DEFAULT))
            message = Basic.Properties(delivery_mode=2, content_type="application/json")
            try:
                async with self._link.channel(confirms=True) as channel:
                    await channel.basic_publish(body, routing_key=stream, mandatory=True, properties=message)
            except BaseException:
                self._made.pop(stream, None)  # somebody may have deleted it
                raise

        await self._link.within(append, pauses_ms=PAUSES_MS)

    async def _make(self, stream: str, history_size: int) -> None:
        """Declare a stream; one task at a time, because what meets a stream in the making loses its connection."""
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

    async def settle(self, job: str | None = None) -> None:
        """Wait until the starts under way (of one job) are written, for a moment at most."""
        waiting = self._starting if job is None else self._started.get(job, ())
        if waiting:
            await asyncio.wait(tuple(waiting), timeout=SETTLE_MS / 1000)

    async def open(self) -> None:
        """Make ready; the first record or question connects."""
        await self._link.open()

    async def close(self) -> None:
        """Let go of what is still under way, and of the connection."""
        await self.settle()
        for task in tuple(self._starting):
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
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
        except ChannelNotFoundEntity:
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
