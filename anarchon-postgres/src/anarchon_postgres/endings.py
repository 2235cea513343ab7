"""The ends of runs: one alone is one statement; what comes while others are under way travels together."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from anarchon.errors import BackendError, BackendUnavailable
from anarchon.types import CLAIM_MANY_MAX, RunKey, RunResult

from anarchon_postgres.calls import Calls, Ready
from anarchon_postgres.codec import key_values, many_arguments, result_values
from anarchon_postgres.lanes import Connection, fetch

__all__ = ["Endings"]

ALONE_MOST = 2
CLOSED = "the PostgreSQL backend was closed before the answer"
COLUMNS = ("place", "job", "slot_ms", "space", "token", "status", "live", "error")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A finish that waits for its turn."""

    values: dict[str, Any]
    answer: asyncio.Future[bool]


class Endings:
    """The finishes of one backend (C15, C18)."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._alone = 0
        self._waiting: list[_Wanted] = []
        self._sender: asyncio.Task[None] | None = None

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        """See `Backend.finish`."""
        values = {**key_values(key, token), **result_values(result), "wait": str(self._calls.options.lock_wait_ms)}
        if self._alone < ALONE_MOST and self._sender is None:
            self._alone += 1
            try:
                return await self._one(values)
            finally:
                self._alone -= 1
        loop = asyncio.get_running_loop()
        wanted = _Wanted(values, loop.create_future())
        self._waiting.append(wanted)
        if self._sender is None:
            self._sender = loop.create_task(self._send())
            self._sender.add_done_callback(self._over)
        return await wanted.answer

    async def close(self) -> None:
        """Give up what waits: it may or may not have been written (C24)."""
        if self._sender is not None:
            self._sender.cancel()
            with suppress(asyncio.CancelledError):
                await self._sender

    async def _one(self, values: dict[str, Any]) -> bool:
        async def act(connection: Connection, ready: Ready) -> bool:
            cursor = await connection.execute(ready.statements.finish, values, prepare=False)
            if cursor.rowcount == 1:
                return True
            # C18: a statement of its own, so that it sees a finish that this one may have waited for.
            rows = await fetch(connection, ready.statements.was_finished, values)
            return bool(rows and rows[0][0])

        return await self._calls.write(act)

    async def _send(self) -> None:
        part: list[_Wanted] = []
        try:
            while self._waiting:
                part = [wanted for wanted in self._waiting[:CLAIM_MANY_MAX] if not wanted.answer.done()]
                del self._waiting[:CLAIM_MANY_MAX]
                await self._together(part)
        finally:
            _fail(part, BackendUnavailable(CLOSED))
            self._over(self._sender)

    def _over(self, sender: asyncio.Task[None] | None) -> None:
        """Leave nobody waiting, also where the sender was cancelled before its first step and never entered its body."""
        if self._sender is sender:
            self._sender = None
            _fail(self._waiting, BackendUnavailable(CLOSED))
            self._waiting = []

    async def _together(self, part: list[_Wanted]) -> None:
        """Finish what this backend's tokens hold with one statement; all else, and what is locked, is asked for alone."""
        places: set[int] = set()
        if len(part) > 1:
            rows = [(place, *(wanted.values[name] for name in COLUMNS[1:])) for place, wanted in enumerate(part)]
            text = many_arguments(COLUMNS, rows)

            async def act(connection: Connection, ready: Ready) -> list[tuple[Any, ...]]:
                return await fetch(connection, ready.statements.finish_many, (text,))

            try:
                places = {place for (place,) in await self._calls.write(act)}
            except BackendError as error:
                _fail(part, error)
                return
        for place in places:
            _settle(part[place], answer=True)
        await asyncio.gather(*(self._later(wanted) for place, wanted in enumerate(part) if place not in places))

    async def _later(self, wanted: _Wanted) -> None:
        try:
            _settle(wanted, answer=await self._one(wanted.values))
        except BackendError as error:
            _fail([wanted], error)


def _settle(wanted: _Wanted, *, answer: bool) -> None:
    if not wanted.answer.done():
        wanted.answer.set_result(answer)


def _fail(part: list[_Wanted], error: BackendError) -> None:
    for wanted in part:
        if not wanted.answer.done():
            wanted.answer.set_exception(error)
