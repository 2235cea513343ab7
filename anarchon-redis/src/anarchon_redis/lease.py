"""The lease strategy: one script a decision, on Redis's own clock. Clauses marked [A] and [L] hold."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from anarchon.backend import LeaseBackend
from anarchon.errors import BackendError
from anarchon.types import ClaimRequest, JobView, Limits, RunKey, RunRecord, RunResult, RunView

from anarchon_redis.claims import Claiming, Question
from anarchon_redis.keys import field_of, key_of
from anarchon_redis.link import Command, Reply, script
from anarchon_redis.lua import load
from anarchon_redis.options import Strategy
from anarchon_redis.records import by_slot, fields_of, merge, plain, text_of, view_of

__all__ = ["RedisLeaseBackend"]

CLAIM: Final = load("lease", "claim", "claim")
CLAIMS: Final = load("lease", "claims", "claim")
RENEW: Final = load("lease", "renew")
RELEASE: Final = load("lease", "release")
FINISH: Final = load("lease", "finish")
CHECK: Final = load("lease", "check")
UNFINISHED: Final = load("lease", "unfinished")
HISTORY: Final = load("lease", "history")
PAUSE: Final = load("lease", "pause")

CLAIMS_TOGETHER: Final = 10
"""How many claims one script decides: the server answers nobody else for some 200 µs."""
HISTORY_PAGE: Final = 50
UNFINISHED_MAX: Final = 10_000
_SUFFIXES: Final = ("state", "runs", "live", "final")
_JOB_CELLS: Final = ("@first", "@paused", "@resumed", "@floor", "@info")


class RedisLeaseBackend(Claiming, LeaseBackend):
    """Redis as a lease backend: knows who is alive, refuses overlap, hands runs over."""

    strategy = Strategy.LEASE

    def _limits(self) -> Limits:
        return Limits(notes=(self._lost_by_failover(),))

    def _keys(self, job: str) -> tuple[str, ...]:
        return self._names.job(job, *_SUFFIXES)

    # -- claims

    def _command(self, request: ClaimRequest) -> Command:
        return script(CLAIM, self._keys(request.key.job), *self._arguments(request))

    def _questions(self, requests: Sequence[ClaimRequest]) -> list[Question]:
        """Put some claims into each script where the server allows it: a cluster's keys lie in slots of their own.

        A win that has to be confirmed by replicas travels alone, so that no refusal is kept waiting for it.
        """
        if len(requests) == 1 or self._options.cluster or self._options.wait_replicas:
            return super()._questions(requests)
        questions = []
        for start in range(0, len(requests), CLAIMS_TOGETHER):
            some = requests[start : start + CLAIMS_TOGETHER]
            keys = [name for request in some for name in self._keys(request.key.job)]
            arguments = [argument for request in some for argument in self._arguments(request)]
            questions.append(Question(script(CLAIMS, keys, *arguments), range(start, start + len(some)), several=True))
        return questions

    def _arguments(self, request: ClaimRequest) -> tuple[str | int, ...]:
        return (
            field_of(request.key),
            self._token(request.token),
            plain(request.instance),
            request.attempt_limit,
            request.lease_ms,
            request.max_late_ms,
            int(request.exclusive),
            request.keep_ms,
            request.history_size,
            "" if request.history_ttl_ms is None else request.history_ttl_ms,
            plain(request.info),
        )

    async def _prepare(self, jobs: set[str]) -> None:
        """Write jobs into the registry before their first claim of this process, and again when the store is new to them.

        The registry lies in another hash slot than the job, so no script can do both.
        """
        await self._link.run(("SADD", self._names.registry, *sorted(jobs)))

    _born = _prepare

    # -- the holder

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        arguments = (field_of(key), self._token(token), str(result.status), plain(result.error))
        return await self._ask(script(FINISH, self._keys(key.job), *arguments))

    def _renewal(self, key: RunKey, token: str, lease_ms: int) -> Command:
        state, _, live, _ = self._keys(key.job)
        return script(RENEW, (state, live), field_of(key), self._token(token), lease_ms)

    async def renew(self, key: RunKey, token: str, lease_ms: int) -> bool:
        return await self._ask(self._renewal(key, token, lease_ms))

    async def renew_many(self, items: Sequence[tuple[RunKey, str, int]]) -> list[bool | BackendError]:
        commands = [self._renewal(*item) for item in items]
        replies = await self._link.within(lambda: self._link.run_many(commands)) if commands else []
        return [reply if isinstance(reply, BackendError) else reply.startswith(b"1") for reply in replies]

    async def release(
        self, key: RunKey, token: str, *, delay_ms: int = 0, counted: bool = False, error: str | None = None
    ) -> bool:
        arguments = (field_of(key), self._token(token), delay_ms, int(counted), plain(error))
        return await self._ask(script(RELEASE, self._keys(key.job)[:3], *arguments))

    async def _ask(self, command: Command) -> bool:
        reply: bytes = await self._link.within(lambda: self._link.run(command))
        return reply.startswith(b"1")

    # -- looking

    async def check(self, keys: Sequence[RunKey]) -> list[RunView | None]:
        places: dict[str, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(key.job, []).append(place)
        commands = [
            script(CHECK, self._keys(job)[:1], *(field_of(keys[place]) for place in where)) for job, where in places.items()
        ]
        views: list[RunView | None] = [None] * len(keys)
        for where, (now, *cells) in zip(places.values(), await self._all(commands), strict=True):
            for place, packed in zip(where, cells, strict=True):
                views[place] = view_of(keys[place], packed, int(now)) if packed else None
        return views

    async def unfinished(self, jobs: Sequence[str]) -> list[RunView]:
        names = list(dict.fromkeys(jobs))
        commands = []
        for job in names:
            state, _, live, _ = self._keys(job)
            commands.append(script(UNFINISHED, (state, live), UNFINISHED_MAX))
        views = []
        for job, (now, *cells) in zip(names, await self._all(commands), strict=True):
            for field, packed in zip(cells[::2], cells[1::2], strict=True):
                key = key_of(job, text_of(field))
                if packed and not key.note:
                    views.append(view_of(key, packed, int(now)))
        return sorted(views, key=lambda view: view.key.slot_ms)

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        return await self._link.within(lambda: self._history(job, limit, since_ms))

    async def _history(self, job: str, limit: int, since_ms: int) -> list[RunRecord]:
        """Read what is not final, then the final runs page by page, until no older one can be among the newest `limit`.

        A run that ends in between is read twice, and its later record counts.
        """
        found: dict[tuple[RunKey, str, int], RunRecord] = {}
        for since in ("", since_ms):
            offset, page = 0, min(limit, HISTORY_PAGE)
            while limit > 0:
                runs = await self._link.run(script(HISTORY, self._keys(job), offset, page, since))
                records = [record for entries in runs for record in merge(job, (fields_of(entry) for entry in entries))]
                found |= {(record.key, record.token, record.attempt): record for record in records if record.slot_ms >= since_ms}
                offset += len(runs)
                if len(runs) < page or (since != "" and self._complete(found.values(), records, limit)):
                    break
        return by_slot(list(found.values()), limit)

    @staticmethod
    def _complete(found: Collection[RunRecord], page: Sequence[RunRecord], limit: int) -> bool:
        """Return whether every run that comes after a page of final runs is older than the newest `limit` records."""
        if len(found) < limit or not page:
            return False
        return by_slot(list(found), limit)[-1].slot_ms > min(record.slot_ms for record in page)

    async def jobs(self) -> list[JobView]:
        found: list[bytes] = await self._link.within(lambda: self._link.run(("SMEMBERS", self._names.registry)))
        names = sorted(text_of(name) for name in found)
        cells = await self._all([("HMGET", self._keys(name)[0], *_JOB_CELLS) for name in names])
        return [_job_view(name, cell) for name, cell in zip(names, cells, strict=True) if cell[0] is not None]

    async def set_paused(self, job: str, paused: bool) -> None:  # noqa: FBT001 - see LeaseBackend
        await self._link.within(lambda: self._pause(job, paused=paused))

    async def _pause(self, job: str, *, paused: bool) -> None:
        await self._prepare({job})
        await self._link.run(script(PAUSE, self._keys(job)[:1], int(paused)))

    async def _all(self, commands: Sequence[Command]) -> list[Reply]:
        replies = await self._link.within(lambda: self._link.run_many(commands)) if commands else []
        for reply in replies:
            if isinstance(reply, BackendError):
                raise reply
        return replies

    async def forget(self, job: str) -> None:
        self._prepared.discard(job)
        await self._all([("UNLINK", *self._keys(job)), ("SREM", self._names.registry, job)])


def _job_view(job: str, cells: Sequence[bytes | None]) -> JobView:
    first, paused, resumed, floor, info = cells
    assert first is not None
    return JobView(
        job,
        int(first),
        None if paused is None else int(paused),
        None if resumed is None else int(resumed),
        None if floor is None else int(floor),
        text_of(info),
    )
