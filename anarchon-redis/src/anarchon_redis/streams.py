"""The strategies that only decide who is first. The stream is the claim and the history. Clauses marked [A] hold."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from anarchon.errors import BackendError, StoreSetupError
from anarchon.types import Claim, ClaimRequest, Limits, Outcome, RunKey, RunRecord, RunResult, RunStatus
from redis import exceptions as driver

from anarchon_redis import health
from anarchon_redis.claims import Claiming
from anarchon_redis.keys import field_of
from anarchon_redis.link import Command, Reply, script
from anarchon_redis.lua import load
from anarchon_redis.options import IDMP_KEYS, IDMP_RUNS, Strategy
from anarchon_redis.records import by_slot, fields_of, plain, text_of

__all__ = ["RedisIdmpBackend", "RedisScriptBackend", "RedisStreamIdBackend"]

SCRIPT: Final = load("stream", "script")
ORDERED: Final = load("stream", "ordered")
FINISH: Final = load("stream", "finish")
HISTORY: Final = load("stream", "history")
IDMP: Final = load("stream", "idmp", "idmp")
READY: Final = load("idmp", "ready")

HISTORY_PAGE: Final = 200
ENTRIES_MAX: Final = 10_000
"""Where no run ever ends, a stream-id stream is cut back to this about once a minute."""
ORDERED_KEEP_LEAST: Final = 300
"""How many claims of a stream-id stream are kept at least, so that a repeated question finds its own (C4)."""
ASIDE_WINDOW_MS: Final = 300_000
TRUST_MS: Final = 60_000
REFUSED: Final = "equal or smaller"


class StreamBackend(Claiming):
    """What the three share: ends of runs and the history."""

    def _keys(self, key: RunKey) -> tuple[str, ...]:
        """Return the stream and the hash of ends that hold a run."""
        return self._names.job(key.job, "runs", "ends")

    def _streams(self, job: str) -> tuple[tuple[str, ...], ...]:
        """Return every pair of stream and ends of a job."""
        return (self._names.job(job, "runs", "ends"),)

    def _scanning(self, request: ClaimRequest, window_ms: int) -> Command:
        return script(
            SCRIPT,
            self._keys(request.key),
            field_of(request.key),
            self._token(request.token),
            plain(request.instance),
            request.max_late_ms,
            request.history_size,
            window_ms,
        )

    # -- ends

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        return await self._link.within(lambda: self._finish(key, token, result))

    async def _finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        field = field_of(key)
        start, ordered = self._place(key)
        arguments = (field, self._token(token), str(result.status), plain(result.error), start, int(ordered))
        reply = await self._link.run(script(FINISH, self._keys(key), *arguments, ORDERED_KEEP_LEAST))
        return bool(reply == 1)

    def _place(self, key: RunKey) -> tuple[str, bool]:
        """Return the ID of a run's entry, or where to start looking for it."""
        if key.space:
            return "-", False  # its entry's ID is the time of its claim, which the key does not tell
        return str(max(0, key.slot_ms - 1_000)), False

    # -- the history

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        return await self._link.within(lambda: self._history(job, limit, since_ms))

    async def _history(self, job: str, limit: int, since_ms: int) -> list[RunRecord]:
        records: list[RunRecord] = []
        for keys in self._streams(job) if limit > 0 else ():
            records += await self._newest(job, keys, limit=limit, since_ms=since_ms)
        return by_slot(records, limit)

    async def _newest(self, job: str, keys: Sequence[str], *, limit: int, since_ms: int) -> list[RunRecord]:
        """Read a stream backwards until no older entry can be among the newest `limit`.

        No slot is claimed before its time, so an entry older than a slot belongs to an older slot.
        """
        records: list[RunRecord] = []
        newest, page = "+", min(limit + 1, HISTORY_PAGE)
        while True:
            entries: list[list[Reply]] = await self._link.run(script(HISTORY, keys, newest, page))
            found = _records(job, entries)
            records += (record for record in found if record.slot_ms >= since_ms)
            if len(entries) < page:
                return records
            last_ms, _, number = text_of(entries[-1][0]).partition("-")
            best = by_slot(records, limit)
            if int(last_ms) < since_ms or (len(best) == limit and int(last_ms) < best[-1].slot_ms):
                return records
            newest = f"{last_ms}-{int(number) - 1}" if int(number) else f"{int(last_ms) - 1}"
            if int(last_ms) == 0:
                return records

    async def forget(self, job: str) -> None:
        self._prepared.discard(job)
        keys = [name for pair in self._streams(job) for name in pair]
        await self._link.within(lambda: self._link.run(("UNLINK", *keys)))


def _records(job: str, entries: Iterable[Sequence[Reply]]) -> list[RunRecord]:
    records = []
    for _, end, values in entries:
        entry = fields_of(values)
        try:
            slot_ms, claimed_ms = int(entry["slot"]), int(entry["at"])
            space, token, instance = entry["space"], entry["token"], entry["instance"]
        except (KeyError, ValueError):
            continue  # not ours
        status, finished, error = text_of(end).split("|", 2) if end else (RunStatus.RUNNING, "", "")
        finished_ms = int(finished) if finished else None
        records.append(
            RunRecord(job, slot_ms, space, 1, token, instance, RunStatus(status), claimed_ms, finished_ms, error or None)
        )
    return records


class RedisScriptBackend(StreamBackend):
    """Strategy script: a script looks through the entries of a slot's neighbourhood. Works on every server."""

    strategy = Strategy.SCRIPT

    def _limits(self) -> Limits:
        remembers_ms = self._options.remembers_ms
        return Limits(remembers_ms=remembers_ms, history_ttl=False, notes=(self._lost_by_failover(),))

    def _command(self, request: ClaimRequest) -> Command:
        return self._scanning(request, self._options.window_ms)


class RedisIdmpBackend(StreamBackend):
    """Strategy idmp: Redis 8.6 remembers the slot as the key of an idempotent XADD."""

    strategy = Strategy.IDMP

    def _limits(self) -> Limits:
        remembers_ms, notes = self._options.remembers_ms, (self._lost_by_failover(),)
        return Limits(remembers_ms=remembers_ms, remembers_runs=IDMP_RUNS, history_ttl=False, notes=notes)

    @property
    def _memory(self) -> tuple[int, int]:
        return self._options.duration_ms // 1000, IDMP_KEYS

    def _command(self, request: ClaimRequest) -> Command:
        key = request.key
        return script(
            IDMP,
            self._keys(key),
            field_of(key),
            self._token(request.token),
            plain(request.instance),
            request.max_late_ms,
            request.history_size,
            *self._memory,
            # Notes and manual runs have producers of their own: the keys that are remembered are counted by producer.
            f"{key.job}:{key.space[0]}" if key.space else key.job,
        )

    async def _check_server(self, server: health.Server) -> None:
        try:
            await self._link.run(("XCFGSET", self._names.strategy, "IDMP-DURATION", 1))
        except driver.ResponseError as error:
            if "unknown command" in str(error).lower():
                msg = f"strategy=idmp needs Redis 8.6 or newer, and this is {server.name}; use strategy=script or lease"
                raise StoreSetupError(msg) from error

    async def _prepare(self, jobs: set[str]) -> None:
        """Configure the streams of new jobs once, before their first claim, and look at what is there already."""
        seconds, keys = self._memory
        names = sorted(jobs)
        commands = [script(READY, self._names.job(job, "runs"), seconds, keys) for job in names]
        for job, reply in zip(names, await self._link.run_many(commands), strict=True):
            if isinstance(reply, BackendError):
                raise reply
            have_s, have_keys = (int(cell) for cell in reply)
            if have_s < seconds or have_keys < keys:
                (stream,) = self._names.job(job, "runs")
                msg = (
                    f"job {job!r}: the stream {stream} remembers {have_s} s and {have_keys} slots, this instance needs "
                    f"{seconds} s and {keys}. Changing that forgets every claim: write duration={have_s}, or stop every instance "
                    f"and run XCFGSET {stream} IDMP-DURATION {seconds} IDMP-MAXSIZE {keys}"
                )
                raise StoreSetupError(msg)


class RedisStreamIdBackend(StreamBackend):
    """Strategy stream-id: the slot is the entry's ID, and Redis takes only rising IDs. One command a claim."""

    strategy = Strategy.STREAM_ID

    def _limits(self) -> Limits:
        return Limits(ordered=True, history_ttl=False, notes=(self._lost_by_failover(),))

    def _keys(self, key: RunKey) -> tuple[str, ...]:
        # Manual runs and notes lie in a stream of their own: none of their IDs can refuse a slot.
        return self._names.job(key.job, *(("aside", "asides") if key.space else ("runs", "ends")))

    def _streams(self, job: str) -> tuple[tuple[str, ...], ...]:
        return (self._names.job(job, "runs", "ends"), self._names.job(job, "aside", "asides"))

    def _command(self, request: ClaimRequest) -> Command:
        key = request.key
        if key.space:
            return self._scanning(request, max(ASIDE_WINDOW_MS, request.keep_ms))
        now_ms = self._surely_timely(key.slot_ms, request.max_late_ms)
        if now_ms is None:
            return self._judged(request)
        (stream,) = self._keys(key)[:1]
        token, instance = self._token(request.token), plain(request.instance)
        return (
            *("XADD", stream, f"{key.slot_ms}-0", "slot", key.slot_ms, "space", ""),
            *("token", token, "instance", instance, "at", now_ms, "keep", request.history_size),
        )

    def _judged(self, request: ClaimRequest) -> Command:
        """Return the script that judges on the server's clock before it writes, and reads whose the slot is."""
        token, instance = self._token(request.token), plain(request.instance)
        field, keys = field_of(request.key), self._keys(request.key)[:1]
        return script(ORDERED, keys, field, token, instance, request.max_late_ms, request.history_size, ENTRIES_MAX)

    def _second(self, request: ClaimRequest, error: BackendError) -> Command | None:
        return self._judged(request) if REFUSED in str(error) else None

    def _won(self, command: Command, reply: Reply) -> bool:
        return (command[0] == "XADD" and isinstance(reply, bytes)) or super()._won(command, reply)

    def _read(self, request: ClaimRequest, reply: Reply) -> tuple[Claim, bool]:
        if isinstance(reply, bytes) and b"|" not in reply:
            return Claim(Outcome.WON, 1), False
        return super()._read(request, reply)

    def _place(self, key: RunKey) -> tuple[str, bool]:
        return super()._place(key) if key.space else (f"{key.slot_ms}-0", True)

    # -- the server's clock: an instance that is ahead must not poison the stream with an ID of the future

    def _learn(self, claim: Claim, sent_ms: float, received_ms: float) -> None:
        if claim.store_now_ms is not None:
            self._clock = (claim.store_now_ms, sent_ms, received_ms)

    def _surely_timely(self, slot_ms: int, max_late_ms: int) -> int | None:
        """Return the server's time if a slot is surely neither early nor late by it; None = ask.

        The server's clock was read after the question left and before its answer came, which bounds it from both sides.
        """
        if self._clock is None or slot_ms <= 0:
            return None
        told_ms, sent_ms, received_ms = self._clock
        mine_ms = time.monotonic() * 1000
        least_ms, most_ms = told_ms + mine_ms - received_ms, told_ms + 1 + mine_ms - sent_ms
        if mine_ms - received_ms > TRUST_MS or slot_ms > least_ms or most_ms - slot_ms > max_late_ms:
            return None
        return int(least_ms)

    _clock: tuple[int, float, float] | None = None
