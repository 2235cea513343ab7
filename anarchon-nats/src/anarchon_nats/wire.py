"""One connection: requests and their replies, and what the server says about those that it will not answer."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from nats import errors as driver
from nats.aio.client import Client
from nats.aio.msg import Msg

from anarchon_nats.failures import FAILURES, ApiError, NoResponder
from anarchon_nats.options import Address

__all__ = ["Denied", "Wire", "connect"]

Arrival = Callable[[Msg], None]

CLOSE_MS: Final = 1_000
CONNECT_MS: Final = 1_500
STREAMED_MOST: Final = 1_000_000
IDLE_NS: Final = 5 * 10**9
_DENIED: Final = re.compile(r'(?i)permissions violation for (?:publish|subscription) to "([^"]+)"')


class Denied(driver.Error):
    """The server does not let this user use a subject."""


class Sink(asyncio.Future[Msg]):
    """Takes every message of a subscription at once; the driver would start a task that waits for them."""

    def __init__(self, arrived: Arrival) -> None:
        super().__init__()
        self._arrived = arrived

    def set_result(self, result: Msg, /) -> None:
        """Hand a message on; this future is never done."""
        self._arrived(result)


class Prompt(Client):
    """Writes a request at once if no other is under way; the driver would first wake a task of its own that writes."""

    alone = False

    async def _flush_pending(self, force_flush: bool = False) -> Any:  # noqa: FBT001, FBT002 - the driver's own
        if not self.alone or force_flush or not self.is_connected or self._transport is None:
            return await super()._flush_pending(force_flush)
        written, self._pending, self._pending_data_size = self._pending, [], 0
        try:
            self._transport.writelines(written)
            await self._transport.drain()  # type: ignore[no-untyped-call]  # the driver's transport
        except RuntimeError as error:  # uvloop's word for a connection that has just gone
            raise driver.ConnectionClosedError from error
        return None


class Wire:
    """A connection with an inbox of its own for replies; the driver's would wait for a reply that can no longer come."""

    def __init__(self, client: Client, *, own: bool) -> None:
        self._client = client
        self._own = own
        self._inbox = ""
        self._numbers = itertools.count()
        self._waiting: dict[str, tuple[asyncio.Future[Msg], str]] = {}
        self._streams: set[asyncio.Queue[Msg | Exception]] = set()
        self._subscription: Any = None
        self._lost: Exception | None = None

    @property
    def usable(self) -> bool:
        """Whether a request can be sent. A lent connection sees to its own reconnection."""
        return self._lost is None and (not self._own or self._client.is_connected)

    @property
    def version(self) -> str:
        """The server's version."""
        return str(getattr(self._client, "_server_info", {}).get("version", ""))

    @property
    def promises_jetstream(self) -> bool:
        """Whether the server said at the start of the connection that it has JetStream."""
        return bool(getattr(self._client, "_server_info", {}).get("jetstream"))

    async def start(self) -> None:
        """Subscribe to the inbox."""
        self._inbox = self._client.new_inbox()
        self._subscription = await self._client.subscribe(f"{self._inbox}.*", future=Sink(self._arrived))

    # -- one request

    async def ask(self, subject: str, payload: bytes = b"", headers: Mapping[str, str] | None = None) -> Msg:
        """Send one request and return its reply; the caller limits the time.

        Raises:
            Error: nobody serves the subject, or the connection broke: the request may have been carried out.
        """
        if self._lost is not None:
            raise self._lost
        number = f"{next(self._numbers):x}"
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (future, subject)
        try:
            reply = f"{self._inbox}.{number}"
            with self._prompt():
                await self._client.publish(subject, payload, reply=reply, headers=None if headers is None else dict(headers))
            message = await future
        finally:
            del self._waiting[number]
        if message.headers is not None and not message.data and message.headers.get("Status") == "503":
            raise NoResponder(subject)
        return message

    @contextmanager
    def _prompt(self) -> Iterator[None]:
        """Let a client of our own write what is published in here by itself, if nothing else waits for a reply."""
        if not isinstance(self._client, Prompt):
            yield
            return
        self._client.alone = len(self._waiting) == 1
        try:
            yield
        finally:
            self._client.alone = False

    async def json(self, subject: str, payload: bytes = b"", headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Send one request whose reply is JSON.

        Raises:
            ApiError: the reply is a refusal.
        """
        message = await self.ask(subject, payload, headers)
        try:
            told = json.loads(message.data)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            msg = f"{subject} answered {message.data[:80]!r}"
            raise driver.Error(msg)
        error = told.get("error")
        if error:
            text = str(error.get("description", "refused"))
            raise ApiError(int(error.get("code", 0)), int(error.get("err_code", 0)), text)
        return told

    async def stored(self, stream: str, config: Mapping[str, object]) -> AsyncIterator[Msg]:
        """Give what a stream holds now, through a consumer that lives as long as this takes."""
        queue: asyncio.Queue[Msg | Exception] = asyncio.Queue()
        # A consumer's messages keep the subjects under which they were stored: only a subscription tells them apart.
        inbox = self._client.new_inbox()
        base = {"deliver_subject": inbox, "ack_policy": "none", "replay_policy": "instant"}
        asked = {"stream_name": stream, "config": {**base, "inactive_threshold": IDLE_NS, "mem_storage": True, **config}}
        subscription = await self._client.subscribe(inbox, future=Sink(queue.put_nowait))
        self._streams.add(queue)
        made: dict[str, Any] | None = None
        try:
            made = await self.json(f"$JS.API.CONSUMER.CREATE.{stream}", json.dumps(asked).encode())
            left = int(made.get("num_pending", 0))
            for _ in range(STREAMED_MOST):
                if left == 0:
                    break
                message = await queue.get()
                if isinstance(message, Exception):
                    raise message
                left = int(message.reply.rsplit(".", 1)[-1])
                yield message
        finally:
            self._streams.discard(queue)
            if self.usable:
                # Not waited for: the server forgets an idle consumer by itself.
                with suppress(*FAILURES):
                    await subscription.unsubscribe()
                    if made is not None:
                        await self._client.publish(f"$JS.API.CONSUMER.DELETE.{stream}.{made['name']}", b"")

    def _arrived(self, message: Msg) -> None:
        number = message.subject.rpartition(".")[2]
        known = self._waiting.get(number)
        if known is not None and not known[0].done():
            known[0].set_result(message)

    # -- what goes wrong

    async def complain(self, error: Exception) -> None:
        """Take what the driver reports by the way; a refused subject fails the requests that wait for it."""
        found = _DENIED.search(str(error))
        if found is None:
            return
        denied = found[1].lower()  # the driver writes the server's words in small letters
        if denied.startswith(self._inbox.lower() or "_inbox."):
            self.fail(Denied(f"it may not subscribe to {self._inbox}.*"))
        for future, subject in self._waiting.values():
            if not future.done() and subject.lower() == denied:
                future.set_exception(Denied(f"it may not publish to {subject}"))

    async def broken(self) -> None:
        """Fail everything that waits: the connection is gone."""
        self.fail(driver.ConnectionClosedError())

    def fail(self, error: Exception) -> None:
        """Let nothing wait any longer, and nothing more be sent."""
        self._lost = self._lost or error
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        for queue in self._streams:
            queue.put_nowait(error)

    async def close(self) -> None:
        """Close an own connection; give a lent one its inbox back and leave it as it is (C24)."""
        self.fail(driver.ConnectionClosedError())
        with suppress(TimeoutError, *FAILURES):
            async with asyncio.timeout(CLOSE_MS / 1000):
                if self._own:
                    await self._client.close()
                elif self._subscription is not None and self._client.is_connected:
                    await self._subscription.unsubscribe()
        self._subscription = None


async def connect(address: Address, place: int) -> Wire:
    """Connect to one of the servers.

    Raises:
        Error: it cannot be reached, or does not take this user.
    """
    client = Prompt()
    wire = Wire(client, own=True)
    said: list[Exception] = []

    async def complain(error: Exception) -> None:
        said[:] = [error]
        await wire.complain(error)

    host, port = address.servers[place]
    shown = f"[{host}]" if ":" in host else host
    # A user without a password is a token.
    token = address.username if address.password is None else None
    try:
        async with asyncio.timeout(CONNECT_MS / 1000):
            await client.connect(
                servers=[f"{'tls' if address.tls else 'nats'}://{shown}:{port}"],
                name="anarchon",
                user=None if token else address.username,
                password=address.password,
                token=token,
                tls=ssl.create_default_context() if address.tls else None,
                allow_reconnect=False,
                connect_timeout=5,
                reconnect_time_wait=0,
                max_reconnect_attempts=1,
                skip_subject_validation=True,  # every subject is spelled by `names`
                error_cb=complain,
                closed_cb=wire.broken,
            )
            await wire.start()
    except BaseException as error:
        with suppress(TimeoutError, *FAILURES):
            async with asyncio.timeout(CLOSE_MS / 1000):
                await client.close()
        if isinstance(error, driver.NoServersError) and said:
            raise said[0] from error
        if isinstance(error, TimeoutError):
            msg = f"no answer within {CONNECT_MS / 1000:g} s"
            raise driver.Error(msg) from error
        raise
    return wire
