"""The one place that knows the inside of aiosqlite: whole transactions as one function on its thread.

aiosqlite 0.22 offers one awaited call a statement. A transaction of several such calls stays open across waits of the
event loop, so a blocked loop would hold the write lock of every process. Its thread takes `(future, function)` pairs
from the queue `_tx`, and that is enough to run a function there. `tests/test_worker.py` fails when this changes.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import aiosqlite
from anarchon.errors import BackendUnavailable

__all__ = ["Worker"]

T = TypeVar("T")
_CHUNK_ROWS = 64
_JOIN_S = 1.0


class _Work(Generic[T]):
    """A function on its way to the thread. Its repr says nothing, for aiosqlite logs it (tokens stay out of logs)."""

    __slots__ = ("_function", "_future")

    def __init__(self, function: Callable[[], T], future: asyncio.Future[T]) -> None:
        self._function = function
        self._future = future

    def __call__(self) -> None:
        try:
            answer = self._function()
        except BaseException as error:
            self._post(self._fail, error)
        else:
            self._post(self._succeed, answer)

    def _post(self, deliver: Callable[[Any], None], what: object) -> None:
        # The caller's loop may be closed by now: nobody waits, and the thread must live on for the next loop (C22).
        with suppress(RuntimeError):
            self._future.get_loop().call_soon_threadsafe(deliver, what)

    def _succeed(self, answer: T) -> None:
        if not self._future.done():
            self._future.set_result(answer)

    def _fail(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)


class Worker(aiosqlite.Connection):
    """An aiosqlite connection that also runs functions on its thread, and whose thread never outlives the program."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        made: list[sqlite3.Connection] = []

        def connector() -> sqlite3.Connection:
            made.append(connect())
            return made[0]

        super().__init__(connector, _CHUNK_ROWS)
        self._made = made
        # Not a daemon, it would keep the interpreter from ending when a user forgets close(). Dying in the middle of a
        # transaction is safe: the next process to open the file rolls it back.
        self._thread.daemon = True
        self._thread.name = "anarchon-sqlite"

    async def start(self) -> None:
        """Start the thread and connect; whatever `connect` raises comes out, and then no thread is left."""
        try:
            await self
        except BaseException:
            self._thread.join(0)
            raise

    def stop(self) -> asyncio.Future[None] | None:
        """Queue the end of the thread, and before it the end of a connection that a cancelled start left behind (C22)."""
        made = self._made

        def close() -> None:
            for connection in made:
                connection.close()

        self._tx.put_nowait((None, close))
        future: asyncio.Future[None] | None = super().stop()
        return future

    async def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function with the plain connection on the thread, in one hop, and return what it returns.

        Cancelling the wait does not stop the function: it must be all or nothing by itself (C22).

        Raises:
            BackendUnavailable: the connection is closed.
        """
        if not self._running or not self._made or not self._thread.is_alive():
            msg = "the SQLite backend is not open: call open() first"
            raise BackendUnavailable(msg)
        connection = self._made[0]
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((None, _Work(lambda: function(connection), future)))
        return await future

    def post(self, function: Callable[[sqlite3.Connection], None]) -> None:
        """Queue a function from any thread; nobody waits for it."""
        connection = self._made[0]
        self._tx.put_nowait((None, lambda: function(connection)))

    async def end(self) -> None:
        """Close the connection and wait for the thread to end (C24); may be called again."""
        if not self._running or not self._thread.is_alive():
            return
        future = self.stop()
        self._connection = None
        if future is not None:
            await future
        self._thread.join(_JOIN_S)
