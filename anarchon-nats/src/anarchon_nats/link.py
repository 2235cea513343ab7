"""The wire of a backend, own or borrowed: every call on its loop, in time, its failures explained."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from anarchon.errors import BackendError, BackendTimeout, BackendUnavailable, StoreSetupError
from nats import errors as driver
from nats.aio.client import Client

from anarchon_nats.failures import FAILURES, NOT_FOUND, WRONG_SEQUENCE, ApiError, NoResponder, explain, refused_rights
from anarchon_nats.options import CALL_TIMEOUT_MS, Address
from anarchon_nats.times import text_of, time_ms
from anarchon_nats.wire import Denied, Wire, connect

__all__ = ["Link", "Stored", "together"]

T = TypeVar("T")
EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"


@dataclass(frozen=True, slots=True)
class Stored:
    """A message of a stream, and when its server stored it."""

    sequence: int
    time_ms: int
    data: bytes


async def together(*works: Awaitable[T]) -> list[T]:
    """Do some things beside each other; the first failure ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class Link:
    """One connection at a time, made when it is first needed and again when it is lost."""

    def __init__(self, where: Address | Client, *, home: asyncio.AbstractEventLoop | None = None) -> None:
        self._where = where
        self._home = home
        self._wire: Wire | None = None
        self._connecting: asyncio.Lock | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._next = 0
        self.place = f"NATS at {where}" if isinstance(where, Address) else "NATS (borrowed connection)"

    # -- life

    async def open(self) -> None:
        """Make ready; the first request connects."""
        if self._connecting is None:
            self._connecting = asyncio.Lock()

    async def close(self) -> None:
        """Close an own connection; leave a borrowed one as it is (C24)."""
        self._connecting = None
        self._drop(self._wire)
        while self._ending:
            await asyncio.wait(set(self._ending))

    def _drop(self, wire: Wire | None) -> None:
        """Let go of a connection; closing it may take a moment that no call should wait for."""
        if wire is None:
            return
        if self._wire is wire:
            self._wire = None
        wire.fail(driver.ConnectionClosedError())
        task = asyncio.get_running_loop().create_task(wire.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # -- one call of the backend

    async def within(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do one call: on the loop that the connection belongs to, within `CALL_TIMEOUT_MS`, its failures explained (C23).

        Raises:
            BackendError: the call failed, or gave no answer in time.
        """
        if self._home is None or self._home is asyncio.get_running_loop():
            return await self._bounded(work)
        if not self._home.is_running():
            msg = f"{self.place}: the event loop that it belongs to does not run; open the scheduler while it does"
            raise BackendUnavailable(msg)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._bounded(work), self._home))

    async def _bounded(self, work: Callable[[], Awaitable[T]]) -> T:
        limit = asyncio.timeout(CALL_TIMEOUT_MS / 1000)
        wire = self._wire
        try:
            async with limit:
                return await work()
        except TimeoutError as error:
            if isinstance(self._where, Address) and (wire is None or wire is self._wire):
                self._drop(self._wire)  # it may be half open: the next call has to find out on another one
            if not limit.expired():
                raise explain(error, self.place) from error
            msg = f"{self.place} did not answer within {CALL_TIMEOUT_MS / 1000:g} s"
            raise BackendTimeout(msg) from error
        except Denied as error:
            raise refused_rights(self.place, str(error)) from error
        except FAILURES as error:
            raise explain(error, self.place) from error

    async def _connected(self) -> Wire:
        wire = self._wire
        if wire is not None and wire.usable:
            return wire
        if self._connecting is None:
            msg = f"{self.place} is not open: open the backend first"
            raise BackendUnavailable(msg)
        async with self._connecting:
            wire = self._wire
            if wire is not None and wire.usable:
                return wire
            self._drop(wire)
            self._wire = await self._connect()
            return self._wire

    async def _connect(self) -> Wire:
        where = self._where
        if isinstance(where, Client):
            wire = Wire(where, own=False)
            await wire.start()
            return wire
        failure: Exception | None = None
        for _ in where.servers:
            place = self._next % len(where.servers)
            try:
                return await connect(where, place)
            except FAILURES as error:
                failure = error
                self._next = place + 1
        assert failure is not None
        raise failure

    # -- requests, within a call

    async def api(self, verb: str, asked: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Send a request of JetStream's interface.

        Raises:
            ApiError: it is refused.
        """
        wire = await self._connected()
        payload = b"" if asked is None else json.dumps(asked).encode()
        try:
            return await wire.json(f"$JS.API.{verb}", payload)
        except NoResponder as error:
            if wire.promises_jetstream:
                msg = f"{self.place}: JetStream is starting or has no leader"
                raise BackendUnavailable(msg) from error
            msg = f"JetStream is not enabled on this server ({self.place}): start it with -js"
            raise StoreSetupError(msg) from error

    async def put(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> tuple[int, bool]:
        """Publish one message and return its sequence, and whether the stream had a message of that ID already.

        Raises:
            ApiError: it is refused.
        """
        reply = await (await self._connected()).json(subject, payload, headers)
        return int(reply["seq"]), bool(reply.get("duplicate", False))

    async def swap(self, subject: str, payload: bytes, expected: int) -> int | None:
        """Publish one message if `expected` is the newest of its subject (0: there is none); None if it is not."""
        try:
            sequence, _ = await self.put(subject, payload, {EXPECTED: str(expected)})
        except ApiError as error:
            if error.err_code in WRONG_SEQUENCE:
                return None
            raise
        return sequence

    async def get(self, stream: str, *, sequence: int = 0, subject: str = "") -> Stored | None:
        """Read one message by its sequence, or the newest of a subject; None if there is none.

        Not by a direct get: that may be answered by a replica that is behind.
        """
        try:
            reply = await self.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence} if sequence else {"last_by_subj": subject})
        except ApiError as error:
            if error.err_code == NOT_FOUND:
                return None
            raise
        message = reply["message"]
        return Stored(int(message["seq"]), time_ms(message["time"]), base64.b64decode(message.get("data", "")))

    async def peek(self, stream: str, subject: str) -> Stored | None:
        """Read the newest message of a subject as any server that has it knows it: the shorter way where there is only one."""
        wire = await self._connected()
        message = await wire.ask(f"$JS.API.DIRECT.GET.{stream}.{subject}")
        told = message.headers or {}
        if "Status" in told:
            if told["Status"] == "404":
                return None
            raise ApiError(int(told["Status"]), 0, str(told.get("Description", "refused")))
        return Stored(int(told["Nats-Sequence"]), time_ms(told["Nats-Time-Stamp"]), message.data)

    async def stored(self, stream: str, subject: str, *, since_ms: int | None = None) -> AsyncIterator[Stored]:
        """Give what a stream holds of a subject, oldest first; with `since_ms`, what was stored from then on."""
        config: dict[str, object] = {"filter_subject": subject, "deliver_policy": "all"}
        if since_ms is not None:
            config |= {"deliver_policy": "by_start_time", "opt_start_time": text_of(since_ms)}
        wire = await self._connected()
        async for message in wire.stored(stream, config):
            # $JS.ACK.<stream>.<consumer>.<delivered>.<stream sequence>.<consumer sequence>.<ns>.<pending>, newer ones with more
            parts = message.reply.split(".")
            yield Stored(int(parts[-4]), int(parts[-2]) // 10**6, message.data)

    async def version(self) -> str:
        """Return the server's version."""
        return (await self._connected()).version

    def errors(self, error: Exception) -> BackendError:
        """Return an item's failure as one of ours."""
        return error if isinstance(error, BackendError) else explain(error, self.place)
