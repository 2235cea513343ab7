"""The one place that knows the inside of aiosqlite: whole transactions as one function on its thread.

aiosqlite 0.22 offers one awaited call a statement. A transaction of several such calls stays open across waits of the
event loop, so a blocked loop would hold the write lock of every process. Its thread `_thread` takes `(future, function)`
pairs from the queue `_tx`, and that is enough to run a function there. `tests/test_worker.py` fails when this changes.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

import aiosqlite
from aiosqlite.core import _STOP_RUNNING_SENTINEL
from anarchon.errors import BackendUnavailable

__all__ = ["Worker"]

T = TypeVar("T")
_CHUNK_ROWS = 64
_JOIN_S = 1.0
_END_S = 5.0
"""How long an end waits for the statement before it; a disk that hangs must not hang the program too (C23)."""


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
    """An aiosqlite connection that also runs functions on its thread, and whose thread never outlives the program.

    Every answer travels by `_Work`, for what aiosqlite does itself ends the thread when the caller's loop is closed.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connect, _CHUNK_ROWS)
        self._made: list[sqlite3.Connection] = []
        # Not a daemon, it would keep the interpreter from ending when a user forgets close(). Dying in the middle of a
        # transaction is safe: the next process to open the file rolls it back.
        self._thread.daemon = True
        self._thread.name = "anarchon-sqlite"

    async def start(self) -> None:
        """Start the thread and connect; whatever `connect` raises comes out, and then no thread is left."""
        connect, made = self._connector, self._made

        def connect_and_keep() -> sqlite3.Connection:
            made.append(connect())
            return made[0]

        self._thread.start()
        try:
            self._connection = await self._submit(connect_and_keep)
        except asyncio.CancelledError:
            self.stop()
            raise
        except BaseException:
            self.stop()
            self._thread.join(_JOIN_S)
            raise

    async def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function with the plain connection on the thread, in one hop, and return what it returns.

        Cancelling the wait does not stop the function: it must be all or nothing by itself (C22).

        Raises:
            BackendUnavailable: the connection is closed.
        """
        connection = self._connection
        if connection is None or not self._running or not self._thread.is_alive():
            msg = "the SQLite backend is not open: call open() first"
            raise BackendUnavailable(msg)
        return await self._submit(lambda: function(connection))

    def post(self, function: Callable[[sqlite3.Connection], None]) -> None:
        """Queue a function from any thread; nobody waits for it."""
        connection = self._made[0]
        self._tx.put_nowait((None, lambda: function(connection)))

    def stop(self) -> None:
        """Queue the end of the connection, also one that a cancelled start left behind (C22), and of the thread."""
        self._running = False
        self._connection = None
        self._tx.put_nowait((None, partial(_close, self._made)))
        self._tx.put_nowait((None, _end_thread))

    async def end(self) -> None:
        """Close the connection and wait for the thread to end (C24), unless its disk hangs; may be called again."""
        if not self._running or not self._thread.is_alive():
            return
        closed = self._submit(partial(_close, self._made))
        self.stop()
        done, _ = await asyncio.wait([closed], timeout=_END_S)
        self._thread.join(_JOIN_S if done else 0)

    def _submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((None, _Work(function, future)))
        return future

    async def _execute(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Carry the statements of aiosqlite's own interface."""
        return await self.run(lambda _: fn(*args, **kwargs))


def _close(connections: list[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()


def _end_thread() -> object:
    return _STOP_RUNNING_SENTINEL
