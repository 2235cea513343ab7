"""The lease strategy: one key of a bucket a job, one compare-and-set a decision. Clauses marked [A] and [L] hold."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from anarchon.backend import LeaseBackend
from anarchon.errors import BackendError, StoreDamaged, StoreSetupError
from anarchon.types import Claim, ClaimRequest, JobView, Limits, Outcome, RunKey, RunRecord, RunResult, RunView
from nats.aio.client import Client

from anarchon_nats import decisions
from anarchon_nats.base import NatsBase
from anarchon_nats.failures import FAILURES
from anarchon_nats.first import by_slot
from anarchon_nats.jobstate import Chunk, JobState, Run, records_of, runs_from
from anarchon_nats.link import Stored, together
from anarchon_nats.options import Address, Options, Strategy
from anarchon_nats.streams import Found
from anarchon_nats.times import Reading

__all__ = ["NatsLeaseBackend"]

T = TypeVar("T")
Decision = Callable[[JobState | None, int, Run | None], tuple[T, JobState | None]]

SWAPS_MOST: Final = 500
"""How often a call starts anew because somebody else changed the job: each time somebody got on."""
READS_MOST: Final = 5
ENDED_MOST: Final = 16
"""How many ended runs a key holds before the older half of them moves into a message of its own."""
KNOWN_MOST: Final = 1_000
REPLICATED_FROM: Final = (2, 15)
"""The oldest version whose replicated compare-and-set was found exact; 2.9 let two pass in 197 of 300 races of three."""
TOGETHER_MOST: Final = 32
HINGES: Final = {Outcome.RUNNING, Outcome.OVERLAP, Outcome.EARLY}


@dataclass(frozen=True, slots=True)
class Step:
    """What a call needs: its job, and the run that it is about if an ended one matters."""

    job: str
    key: RunKey | None = None
    holder: bool = False
    """Whether the caller wrote the job last, most probably: then what it wrote is tried without reading it again."""


class NatsLeaseBackend(NatsBase, LeaseBackend):
    """NATS as a lease backend: knows who is alive, refuses overlap, hands runs over."""

    strategy = Strategy.LEASE

    def _limits(self, remembers_ms: int | None) -> Limits:
        return Limits(remembers_ms=remembers_ms)

    def _set_up(self, where: Address | Client, options: Options, home: asyncio.AbstractEventLoop | None) -> None:
        super()._set_up(where, options, home)
        # What this process wrote last of a job; only ever tried, because the server compares the sequence.
        self._known: OrderedDict[str, Stored] = OrderedDict()
        self._gone: deque[tuple[str, str]] = deque(maxlen=KNOWN_MOST)

    async def _check_server(self, found: Found, version: str) -> None:
        """Refuse servers whose replicated streams let two compare-and-sets of one moment both pass (C1): 2.9 does."""
        numbers = re.match(r"(\d+)\.(\d+)", version)
        known = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
        if int(found.config.get("num_replicas", 1)) > 1 and known < REPLICATED_FROM:
            msg = (
                f"{self._link.place} is NATS {version}: a lease on several replicas needs 2.15, since older servers can let two "
                "instances win; upgrade, or use replicas=1, strategy=cas or msg-id"
            )
            raise StoreSetupError(msg)

    # -- one step

    async def _step(self, step: Step, decide: Decision[T]) -> T:
        """Read a job, decide, write it if it is still the same, else again (C3)."""
        return await self._link.within(lambda: self._swapped(step, decide))

    async def _swapped(self, step: Step, decide: Decision[T]) -> T:
        subject = self._names.job(step.job)
        stored = self._known.pop(step.job, None) if step.holder else None
        reading: Reading | None = None
        sure = self._found.nodes == 1
        for _ in range(SWAPS_MOST):
            tried = stored is not None
            if stored is None:
                stored, reading = await self._read(subject, reading)
            elif reading is None:
                reading = await self._clock.now()
            job = _job_of(stored, step.job)
            chunks = {chunk.name for chunk in job.chunks} if job else set()
            archived = await self._archived(job, step.key)
            answer, changed = decide(job, reading.least_ms(), archived)
            if changed is None and tried:
                stored = None  # what is remembered may be old: only a write proves that it was not
                continue
            if changed is None and not sure and _must_be_sure(answer):
                # In a cluster a server that led until a moment ago still answers: only a write proves that this is the newest.
                if not stored.data:
                    await self._link.put(self._names.clock, b"")
                    sure, stored = True, None
                    continue
                sure = await self._link.swap(subject, stored.data, stored.sequence) is not None
                if not sure:
                    stored = None
                    continue
            if changed is None:
                if isinstance(answer, Claim) and self._hinges(answer, reading):
                    reading, stored = await self._clock.read(), None
                    continue
                return answer
            if await self._write(changed, stored, chunks, reading):
                if step.holder and self._gone:  # a claim does not wait for this
                    gone, self._gone = list(self._gone), deque(maxlen=KNOWN_MOST)
                    await self._purge_all(gone)
                return answer
            stored = None
        msg = (
            f"job {step.job!r} was changed by others {SWAPS_MOST} times while it was asked for: too many runs of one job at once"
        )
        raise BackendError(msg)

    async def _read(self, subject: str, reading: Reading | None) -> tuple[Stored, Reading]:
        """Read a key and, beside it, the server's clock unless it is known already."""
        reading = reading or self._clock.reading
        if reading is not None:
            found = await self._newest_of(subject)
        else:
            asked = asyncio.ensure_future(self._newest_of(subject))
            try:
                reading = await self._clock.read()
                found = await asked
            finally:
                asked.cancel()
                asked.add_done_callback(lambda task: task.cancelled() or task.exception())
        return found or Stored(0, 0, b""), reading

    def _newest_of(self, subject: str) -> Awaitable[Stored | None]:
        name = self._found.name
        return self._link.peek(name, subject) if self._found.direct else self._link.get(name, subject=subject)

    def _hinges(self, answer: Claim, reading: Reading) -> bool:
        """Return whether a refusal could be wrong by as much as an earlier reading of the clock is not exact."""
        left_ms = answer.wait_ms if answer.wait_ms is not None else answer.left_ms
        inexact_ms = reading.most_ms() - reading.least_ms()
        return answer.outcome in HINGES and left_ms is not None and left_ms <= inexact_ms and reading.age_ms > inexact_ms

    async def _write(self, job: JobState, over: Stored, chunks: set[str], reading: Reading) -> bool:
        moved = await self._move(job)
        data = job.pack()
        sequence = await self._link.swap(self._names.job(job.job), data, over.sequence)
        if sequence is None:
            await self._purge_all([(job.job, moved)] if moved else [])
            return False
        self._known[job.job] = Stored(sequence, reading.most_ms(), data)  # it was stored by now
        while len(self._known) > KNOWN_MOST:
            self._known.popitem(last=False)
        self._gone.extend((job.job, each) for each in chunks - {chunk.name for chunk in job.chunks})
        return True

    async def _purge_all(self, chunks: list[tuple[str, str]]) -> None:
        """Remove chunks that no key names; what stays behind is found by nobody, and goes with its job."""
        for job, each in chunks:
            with suppress(BackendError, *FAILURES):
                await self._purge(self._names.chunk(job, each))

    async def _move(self, job: JobState) -> str:
        """Move older runs that ended into a message of their own, before the key lets go of them; return its name."""
        if len(job.final) <= ENDED_MOST:
            return ""
        oldest = job.ended()[: ENDED_MOST // 2]
        lines = b"\n".join(job.final.pop(name) for _, name in oldest)
        chunk = Chunk(secrets.token_hex(6), oldest[0][0], oldest[-1][0], len(oldest))
        await self._link.put(self._names.chunk(job.job, chunk.name), lines)
        job.chunks.append(chunk)
        return chunk.name

    async def _purge(self, subject: str) -> None:
        await self._link.api(f"STREAM.PURGE.{self._found.name}", {"filter": subject})

    async def _archived(self, job: JobState | None, key: RunKey | None) -> Run | None:
        for chunk in job.elsewhere(key) if job and key else ():
            runs = await self._chunk(key.job if key else "", chunk)
            found = next((run for run in runs or () if run.key == key), None)
            if found is not None:
                return found
        return None

    async def _chunk(self, job: str, chunk: Chunk) -> list[Run] | None:
        stored = await self._link.get(self._found.name, subject=self._names.chunk(job, chunk.name))
        return None if stored is None else runs_from(job, stored.data)

    # -- claims

    async def claim(self, request: ClaimRequest) -> Claim:
        return await self._link.within(lambda: self._claim(request))

    async def _claim(self, request: ClaimRequest) -> Claim:
        self._token(request.token)
        step = Step(request.key.job, request.key)
        return await self._swapped(
            step, lambda job, now_ms, archived: decisions.claim(job, request, now_ms=now_ms, archived=archived)
        )

    async def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Claim | BackendError]:
        return await self._link.within(lambda: self._claims(requests)) if requests else []

    async def _claims(self, requests: Sequence[ClaimRequest]) -> list[Claim | BackendError]:
        """Claim the jobs beside each other, and the runs of one job one after the other: they share a key."""
        answers: dict[int, Claim | BackendError] = {}
        jobs: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            jobs.setdefault(request.key.job, []).append(place)
        if self._clock.reading is None:
            with suppress(BackendError, *FAILURES):
                await self._clock.read()

        async def of_one(places: list[int]) -> None:
            for place in places:
                try:
                    answers[place] = await self._claim(requests[place])
                except (BackendError, *FAILURES) as error:
                    answers[place] = self._link.errors(error)

        await together(*(of_one(places) for places in jobs.values()))
        return [answers[place] for place in range(len(requests))]

    # -- the holder

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        return await self._step(
            Step(key.job, key, holder=True),
            lambda job, now_ms, archived: decisions.finish(
                job, key, self._token(token), result=result, now_ms=now_ms, archived=archived
            ),
        )

    async def renew(self, key: RunKey, token: str, lease_ms: int) -> bool:
        return await self._step(
            Step(key.job, holder=True),
            lambda job, now_ms, _: decisions.renew(job, key, self._token(token), lease_ms=lease_ms, now_ms=now_ms),
        )

    async def renew_many(self, items: Sequence[tuple[RunKey, str, int]]) -> list[bool | BackendError]:
        answers: dict[int, bool | BackendError] = {}
        jobs: dict[str, list[int]] = {}
        for place, (key, _, _) in enumerate(items):
            jobs.setdefault(key.job, []).append(place)

        async def of_one(places: list[int]) -> None:
            for place in places:
                try:
                    answers[place] = await self.renew(*items[place])
                except BackendError as error:
                    answers[place] = error

        await together(*(of_one(places) for places in jobs.values()))
        return [answers[place] for place in range(len(items))]

    async def release(
        self, key: RunKey, token: str, *, delay_ms: int = 0, counted: bool = False, error: str | None = None
    ) -> bool:
        how = decisions.Release(delay_ms, counted, error)
        return await self._step(
            Step(key.job, holder=True),
            lambda job, now_ms, _: decisions.release(job, key, self._token(token), how=how, now_ms=now_ms),
        )

    async def set_paused(self, job: str, paused: bool) -> None:  # noqa: FBT001 - see LeaseBackend
        await self._step(Step(job), lambda state, now_ms, _: decisions.pause(state, job, paused=paused, now_ms=now_ms))

    # -- looking

    async def _jobs_of(self, names: Sequence[str]) -> dict[str, JobState]:
        found: dict[str, JobState] = {}
        for start in range(0, len(names), TOGETHER_MOST):
            some = names[start : start + TOGETHER_MOST]
            cells = await together(*(self._newest_of(self._names.job(name)) for name in some))
            for name, stored in zip(some, cells, strict=True):
                job = _job_of(stored or Stored(0, 0, b""), name)
                if job is not None:
                    found[name] = job
        return found

    async def check(self, keys: Sequence[RunKey]) -> list[RunView | None]:
        return await self._link.within(lambda: self._check(keys)) if keys else []

    async def _check(self, keys: Sequence[RunKey]) -> list[RunView | None]:
        now_ms = (await self._clock.now()).least_ms()
        jobs = await self._jobs_of(list(dict.fromkeys(key.job for key in keys)))
        views: list[RunView | None] = []
        for key in keys:
            job = jobs.get(key.job)
            run = (job.get(key) or await self._archived(job, key)) if job else None
            views.append(run.view(now_ms) if run else None)
        return views

    async def unfinished(self, jobs: Sequence[str]) -> list[RunView]:
        return await self._link.within(lambda: self._unfinished(jobs)) if jobs else []

    async def _unfinished(self, jobs: Sequence[str]) -> list[RunView]:
        now_ms = (await self._clock.now()).least_ms()
        found = await self._jobs_of(list(dict.fromkeys(jobs)))
        runs = [run for job in found.values() for run in job.live.values() if not run.key.note]
        return sorted((run.view(now_ms) for run in runs), key=lambda view: view.key.slot_ms)

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        return await self._link.within(lambda: self._history(job, limit, since_ms)) if limit > 0 else []

    async def _history(self, name: str, limit: int, since_ms: int) -> list[RunRecord]:
        for _ in range(READS_MOST):
            job = (await self._jobs_of([name])).get(name)
            records = None if job is None else await self._newest(job, limit, since_ms)
            if job is None or records is not None:
                return by_slot(records or [], limit)
        msg = f"the history of job {name!r} was pruned faster than it could be read"
        raise BackendError(msg)

    async def _newest(self, job: JobState, limit: int, since_ms: int) -> list[RunRecord] | None:
        """Read what the key holds, then chunks until no older one can be among the newest; None if one went meanwhile."""
        runs = [*job.live.values(), *runs_from(job.job, b"\n".join(job.final.values()))]
        records = [record for run in runs for record in records_of(run) if record.slot_ms >= since_ms]
        for chunk in sorted(job.chunks, key=lambda each: each.high_ms, reverse=True):
            best = by_slot(records, limit)
            if chunk.high_ms < since_ms or (len(best) == limit and best[-1].slot_ms > chunk.high_ms):
                break
            held = await self._chunk(job.job, chunk)
            if held is None:
                return None
            records += (record for run in held for record in records_of(run) if record.slot_ms >= since_ms)
        return records

    async def jobs(self) -> list[JobView]:
        return await self._link.within(self._jobs)

    async def _jobs(self) -> list[JobView]:
        found: dict[str, JobView] = {}
        async for message in self._link.stored(self._found.name, self._names.every_job):
            job = _job_of(message, "")
            if job is not None:
                found[job.job] = JobView(job.job, job.first_ms, job.paused_ms, job.resumed_ms, job.floor_ms, job.info)
        return [found[name] for name in sorted(found)]

    async def forget(self, job: str) -> None:
        self._known.pop(job, None)
        await self._link.within(lambda: self._purge(self._names.all_of(job)))


def _must_be_sure(answer: object) -> bool:
    """Return whether an answer that writes nothing would do harm if it were old: a No to the holder, a slot that is dropped."""
    return answer is False or (isinstance(answer, Claim) and answer.outcome in {Outcome.OVERLAP, Outcome.PAUSED})


def _job_of(stored: Stored, name: str) -> JobState | None:
    """Read a key; a deleted one is empty."""
    if not stored.data:
        return None
    job = JobState.unpack(stored.data, stored.time_ms)
    if name and job.job != name:
        msg = f"the key of job {name!r} holds job {job.job!r}: use another prefix"
        raise StoreDamaged(msg)
    return job
