"""The strategies that only decide who is first. The stream is the claim and the history. Clauses marked [A] hold."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from anarchon.errors import BackendError, BackendUnavailable, StoreDamaged, StoreSetupError
from anarchon.types import Claim, ClaimRequest, Limits, Outcome, RunKey, RunRecord, RunResult, RunStatus
from nats.aio.client import Client

from anarchon_nats.base import NatsBase
from anarchon_nats.failures import FAILURES
from anarchon_nats.link import Stored, together
from anarchon_nats.names import plain
from anarchon_nats.options import Address, Options, Strategy

__all__ = ["NatsCasBackend", "NatsMsgIdBackend"]

HELD_MOST: Final = 10_000
RECENT_MS: Final = 900_000
BEFORE_MS: Final = 60_000
"""A claim is looked for from this long before its slot on: the clock of its winner may have been ahead."""
SWAPS_MOST: Final = 5
READS_MOST: Final = 5
MESSAGE_ID: Final = "Nats-Msg-Id"


class FirstBackend(NatsBase):
    """What the two share: claims in batches, ends of runs, the history."""

    def _limits(self, remembers_ms: int | None) -> Limits:
        return Limits(remembers_ms=remembers_ms, store_clock=False, history_ttl=False)

    def _set_up(self, where: Address | Client, options: Options, home: asyncio.AbstractEventLoop | None) -> None:
        super()._set_up(where, options, home)
        # The claims that this process won and has not finished, with their sequences.
        self._held: OrderedDict[tuple[RunKey, str], int] = OrderedDict()

    def _hold(self, request: ClaimRequest, sequence: int) -> None:
        self._held[request.key, request.token] = sequence
        while len(self._held) > HELD_MOST:
            self._held.popitem(last=False)

    # -- claims

    async def claim(self, request: ClaimRequest) -> Claim:
        return await self._link.within(lambda: self._claim(request))

    async def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Claim | BackendError]:
        return await self._link.within(lambda: self._claims(requests)) if requests else []

    async def _claims(self, requests: Sequence[ClaimRequest]) -> list[Claim | BackendError]:
        return await together(*(self._one(request) for request in requests))

    async def _one(self, request: ClaimRequest) -> Claim | BackendError:
        try:
            return await self._claim(request)
        except (BackendError, *FAILURES) as error:
            return self._link.errors(error)

    async def _claim(self, request: ClaimRequest) -> Claim:
        self._token(request.token)
        self._refuse_short_memory(request)
        claim = await self._decide(request)
        return Claim(claim.outcome, claim.attempt, await self._told_ms(), winner=claim.winner)

    def _refuse_short_memory(self, request: ClaimRequest) -> None:
        """Refuse a job that was added for a longer memory than the stream that was found has (C6, K10)."""
        remembers_ms = self.limits.remembers_ms
        if remembers_ms is not None and request.keep_ms >= remembers_ms:
            late_s, stream_s = request.keep_ms / 1000, remembers_ms / 1000
            msg = (
                f"job {request.key.job!r} can be claimed up to {late_s:g} s late, but the stream {self._found.name} remembers "
                f"a claim for {stream_s:g} s: shorten max_late, or give the stream a longer memory"
            )
            raise StoreSetupError(msg)

    @abstractmethod
    async def _decide(self, request: ClaimRequest) -> Claim:
        """Publish the claim and say who was first."""

    def _entry(self, key: RunKey, token: str, instance: str) -> dict[str, Any]:
        return {"slot": key.slot_ms, "space": key.space, "token": token, "instance": plain(instance)}

    def _compared(self, request: ClaimRequest, first: Stored | None) -> Claim:
        """Return whose a slot is: the token of the message that came first says it (C4)."""
        if first is None:  # C5: neither ours for sure nor somebody else's
            msg = f"the first claim of slot {request.key.slot_ms} of job {request.key.job!r} is known but no longer stored"
            raise BackendError(msg)
        entry = read(first)
        if entry is None:
            msg = f"the message {first.sequence} of the stream {self._found.name} is no claim: somebody else writes there"
            raise StoreDamaged(msg)
        if entry["token"] == request.token:
            self._hold(request, first.sequence)
            return Claim(Outcome.WON, 1)
        return Claim(Outcome.LOST, winner=str(entry["instance"]))

    # -- ends

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        return await self._link.within(lambda: self._finish(key, self._token(token), result))

    @abstractmethod
    async def _finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        """Record how a run ended."""

    def _end(self, key: RunKey, token: str, result: RunResult) -> bytes:
        ended = {"status": str(result.status), "error": plain(result.error)}
        return json.dumps({**self._entry(key, token, ""), **ended}).encode()

    # -- the history

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        return await self._link.within(lambda: self._history(job, limit, since_ms))

    async def _history(self, job: str, limit: int, since_ms: int) -> list[RunRecord]:
        """Read what was stored lately; if that is too little, read everything."""
        if limit < 1:
            return []
        now_ms = (await self._clock.now()).least_ms()
        recent_ms = now_ms - RECENT_MS
        if since_ms < recent_ms:
            records = await self._records(job, recent_ms)
            records = [record for record in records if record.slot_ms >= since_ms]
            if len(records) >= limit:
                return by_slot(records, limit)
        records = await self._records(job, since_ms - BEFORE_MS if since_ms > 0 else None)
        return by_slot([record for record in records if record.slot_ms >= since_ms], limit)

    async def _records(self, job: str, since_ms: int | None) -> list[RunRecord]:
        found: dict[tuple[int, str, str], RunRecord] = {}
        for message, entry in await self._entries(job, since_ms):
            slot_ms, space, token = int(entry["slot"]), str(entry["space"]), str(entry["token"])
            known = found.get((slot_ms, space, token))
            status = RunStatus(entry.get("status", RunStatus.RUNNING))
            if known is None:
                instance = str(entry["instance"])
                known = RunRecord(job, slot_ms, space, 1, token, instance, RunStatus.RUNNING, message.time_ms)
            if status is not RunStatus.RUNNING and known.finished_ms is None:  # C18: the first end counts
                error = str(entry.get("error", "")) or None
                known = replace(known, status=status, finished_ms=message.time_ms, error=error)
            found[slot_ms, space, token] = known
        return list(found.values())

    async def _entries(self, job: str, since_ms: int | None) -> list[tuple[Stored, dict[str, Any]]]:
        """Read what is stored of a job, oldest first.

        A consumer may live on a server that is behind: the newest message, which the leader tells, must be among it (C19).
        """
        for _ in range(READS_MOST):
            newest = await self._link.get(self._found.name, subject=self._names.job(job)) if self._found.nodes > 1 else None
            stored = [message async for message in self._link.stored(self._found.name, self._names.job(job), since_ms=since_ms)]
            missed = newest is not None and (since_ms is None or newest.time_ms >= since_ms)
            if newest is None or not missed or (stored and stored[-1].sequence >= newest.sequence):
                return [(message, entry) for message in stored if (entry := read(message)) is not None]
        msg = f"{self._link.place}: the server that was asked for the history of job {job!r} is behind the others"
        raise BackendUnavailable(msg)

    async def forget(self, job: str) -> None:
        await self._link.within(lambda: self._forget(job))

    async def _forget(self, job: str) -> None:
        await self._link.api(f"STREAM.PURGE.{self._found.name}", {"filter": self._names.all_of(job)})


def read(message: Stored) -> dict[str, Any] | None:
    """Return a message as an entry; None if it is none of ours."""
    try:
        entry = json.loads(message.data)
        RunStatus(entry.get("status", RunStatus.RUNNING))
        ours = isinstance(entry["slot"], int) and {"space", "token", "instance"} <= entry.keys()
    except (ValueError, AttributeError, KeyError, TypeError):
        return None
    return dict(entry) if ours else None


def by_slot(records: list[RunRecord], limit: int) -> list[RunRecord]:
    """Return the newest records: newest slot first, then the newest attempt (C19)."""
    return sorted(records, key=lambda record: (record.slot_ms, record.claimed_ms, record.attempt), reverse=True)[:limit]


class NatsMsgIdBackend(FirstBackend):
    """Strategy msg-id: JetStream stores the first message of an ID and calls the others duplicates."""

    strategy = Strategy.MSG_ID

    async def _decide(self, request: ClaimRequest) -> Claim:
        key = request.key
        payload = json.dumps(self._entry(key, request.token, request.instance)).encode()
        headers = {MESSAGE_ID: self._names.message_id(key)}
        sequence, duplicate = await self._link.put(self._names.job(key.job), payload, headers)
        if not duplicate:
            self._hold(request, sequence)
            return Claim(Outcome.WON, 1)
        return self._compared(request, await self._link.get(self._found.name, sequence=sequence))

    async def _finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        if (key, token) not in self._held:
            holds, ended = await self._look(key, token)
            if ended or not holds:
                return ended
        headers = {MESSAGE_ID: f"{self._names.message_id(key)}:end:{token}"}
        await self._link.put(self._names.job(key.job), self._end(key, token, result), headers)
        self._held.pop((key, token), None)
        return True

    async def _look(self, key: RunKey, token: str) -> tuple[bool, bool]:
        """Return whether a token won a run, and whether it ended it; the stream knows, however long that takes."""
        for since_ms in (key.slot_ms - BEFORE_MS, None):
            winner, ended = "", False
            for _, entry in await self._entries(key.job, since_ms):
                if (entry["slot"], entry["space"]) != (key.slot_ms, key.space):
                    continue
                winner = winner or str(entry["token"])
                ended = ended or (entry["token"] == token and "status" in entry)
            if winner:
                return winner == token, ended
        return False, False


class NatsCasBackend(FirstBackend):
    """Strategy cas: a slot is a subject, and a claim is stored only if nothing is stored there yet."""

    strategy = Strategy.CAS

    async def _decide(self, request: ClaimRequest) -> Claim:
        key, subject = request.key, self._names.slot(request.key)
        payload = json.dumps(self._entry(key, request.token, request.instance)).encode()
        sequence = await self._link.swap(subject, payload, 0)
        if sequence is not None:
            self._hold(request, sequence)
            return Claim(Outcome.WON, 1)
        return self._compared(request, await self._link.get(self._found.name, subject=subject))

    async def _finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        subject, sequence = self._names.slot(key), self._held.get((key, token), 0)
        for _ in range(SWAPS_MOST):
            if not sequence:
                stored = await self._link.get(self._found.name, subject=subject)
                entry = None if stored is None else read(stored)
                if stored is None or entry is None or entry["token"] != token:
                    return False
                if "status" in entry:  # C18
                    return True
                sequence = stored.sequence
            if await self._link.swap(subject, self._end(key, token, result), sequence) is not None:
                self._held.pop((key, token), None)
                return True
            sequence = 0
        msg = f"slot {key.slot_ms} of job {key.job!r} changes all the time: somebody else writes there"
        raise BackendError(msg)
