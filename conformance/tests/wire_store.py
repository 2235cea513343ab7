"""A store on TCP for the kit's own tests: the reference store in a process that can be killed, and a client for it.

`python wire_store.py PORT JOURNAL` serves on loopback (port 0 = any, printed) and keeps every change in the journal;
`--forgetful` keeps nothing. Requests and answers are pickles, for this test only.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from anarchon.backend import LeaseBackend
from anarchon.clock import SystemClock
from anarchon.errors import BackendUnavailable
from anarchon.hookspecs import hookimpl
from anarchon.memory import MemoryStore
from anarchon.types import Claim, ClaimRequest, JobView, Limits, RunKey, RunRecord, RunResult, RunView
from anarchon.url import BackendUrl

CONTRACT_VERSION = 1
SIZE = struct.Struct("!I")
START_S = 20.0


async def read_message(reader: asyncio.StreamReader) -> Any:
    (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
    return pickle.loads(await reader.readexactly(size))


def message(value: object) -> bytes:
    body = pickle.dumps(value)
    return SIZE.pack(len(body)) + body


class WireBackend(LeaseBackend):
    """One connection, made anew after it broke; a call that does not end in order drops it (C22, C23)."""

    limits = Limits(call_timeout_ms=2_000)

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @classmethod
    def from_url(cls, url: BackendUrl) -> Self:
        url.done()
        assert url.host is not None
        assert url.port is not None
        return cls(url.host, url.port)

    async def call(self, name: str, *arguments: object, **options: object) -> Any:
        async with self._lock:
            try:
                if self._streams is None:
                    self._streams = await asyncio.open_connection(*self._address)
                reader, writer = self._streams
                writer.write(message((name, arguments, options)))
                return await read_message(reader)
            except (OSError, asyncio.IncompleteReadError) as error:
                self.drop()
                msg = f"the connection to port {self._address[1]} broke; call again"
                raise BackendUnavailable(msg) from error
            except BaseException:
                self.drop()
                raise

    def drop(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].transport.abort()

    async def open(self) -> None:
        await self.call("now_ms")

    async def close(self) -> None:
        self.drop()

    async def claim(self, request: ClaimRequest) -> Claim:
        claim: Claim = await self.call("claim", request)
        return claim

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        return bool(await self.call("finish", key, token, result))

    async def renew(self, key: RunKey, token: str, lease_ms: int) -> bool:
        return bool(await self.call("renew", key, token, lease_ms))

    async def release(
        self, key: RunKey, token: str, *, delay_ms: int = 0, counted: bool = False, error: str | None = None
    ) -> bool:
        return bool(await self.call("release", key, token, delay_ms=delay_ms, counted=counted, error=error))

    async def check(self, keys: Sequence[RunKey]) -> list[RunView | None]:
        return [await self.call("view", key) for key in keys]

    async def unfinished(self, jobs: Sequence[str]) -> list[RunView]:
        return list(await self.call("unfinished", list(jobs)))

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        return list(await self.call("history", job, limit, since_ms))

    async def jobs(self) -> list[JobView]:
        return list(await self.call("jobs"))

    async def set_paused(self, job: str, paused: bool) -> None:
        await self.call("set_paused", job, paused=paused)

    async def now_ms(self) -> int:
        return int(await self.call("now_ms"))


@hookimpl
def anarchon_backend(url: BackendUrl) -> WireBackend | None:
    """Serve `wire://`."""
    return WireBackend.from_url(url) if url.scheme == "wire" else None


class WireProcess:
    """The server as a process that may be killed and comes back on its port with its data."""

    def __init__(self, folder: Path, *, forgetful: bool = False) -> None:
        self._folder = folder
        self.forgetful = forgetful
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"wire://127.0.0.1:{self.port}"

    def start(self) -> None:
        options = ["--forgetful"] if self.forgetful else []
        command = [sys.executable, __file__, str(self.port), str(self._folder / "journal"), *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(START_S)
            assert process.stdout is not None
            process.stdout.close()

    def restart(self, number: signal.Signals) -> None:
        self.end(number)
        self.start()


class CallClock(SystemClock):
    """Stands still for the length of a call, so that the journal can play the call again."""

    now_ms = 0.0

    def wall_ms(self) -> float:
        return self.now_ms


def play(journal: Path, store: MemoryStore, clock: CallClock) -> None:
    """Make all calls of a journal again; a last entry that was cut off by a kill was never answered."""
    if journal.exists():
        with journal.open("rb") as file:
            while True:
                try:
                    clock.now_ms, name, arguments, options = pickle.load(file)
                except (EOFError, pickle.UnpicklingError):
                    return
                getattr(store, name)(*arguments, **options)


async def serve(port: int, journal: Path, *, keep: bool) -> None:
    clock = CallClock()
    store = MemoryStore(clock)
    play(journal, store, clock)
    log = journal.open("ab", buffering=0) if keep else None

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                name, arguments, options = await read_message(reader)
                clock.now_ms = SystemClock().wall_ms()
                answer = getattr(store, name)(*arguments, **options)
                if log and name in {"claim", "finish", "renew", "release", "set_paused"}:
                    log.write(pickle.dumps((clock.now_ms, name, arguments, options)))
                writer.write(message(answer))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(client, "127.0.0.1", port)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    print(server.sockets[0].getsockname()[1], flush=True)
    parent = os.getppid()
    while not stop.is_set() and os.getppid() == parent:  # an orphan ends by itself
        try:
            await asyncio.wait_for(stop.wait(), 1)
        except TimeoutError:
            continue
    os._exit(0)  # nothing to put in order: the journal is written call by call


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2]), keep="--forgetful" not in sys.argv))
