"""One attempt: a won run from its grant to its record, through loss, timeout, hand-over and retry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from anarchon.clock import Moment
from anarchon.context import Context
from anarchon.effects import Effects
from anarchon.errors import BackendError
from anarchon.handlers import Ended, Execution, HandlerHost, How
from anarchon.job import Job
from anarchon.lease import Held, Keeper, margin_ms
from anarchon.run import Run
from anarchon.types import Claim, RunKey, RunResult, RunStatus
from anarchon.watch import Watch

__all__ = ["Attempts", "Grant"]

REPORT_PATIENCE_MS = 15_000
RETRY_FIRST_MS = 50
RETRY_MOST_MS = 1_000
BACKOFF_FIRST_MS = 1_000
BACKOFF_MOST_MS = 300_000
LOOK_AGAIN_MS = 10_000
EFFECTS_MOST_MS = 5_000
STOPPING = "hand-over: this instance is stopping"

_log = logging.getLogger("anarchon.run")


class _Stop(StrEnum):
    """Why a handler is asked to stop."""

    LOST = "lease lost"
    TIMEOUT = "timeout"
    HAND_OVER = "hand-over"


@dataclass(slots=True, eq=False)
class Grant:
    """A run that this instance won and has not ended. `result` is its end as far as this instance knows.

    `also` are the same slot's runs under the job's earlier names. `committed` once a transaction of the handler has
    finished the run.
    """

    job: Job
    held: Held
    claim: Claim
    also: tuple[Held, ...] = ()
    started_ms: float = 0
    result: RunResult | None = None
    recorded: bool = False
    committed: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def run(self) -> Run:
        """What the handler is given."""
        return self.held.run


class Attempts:
    """Every run that this instance holds; at most one attempt of a run at a time (K4)."""

    def __init__(
        self,
        context: Context,
        *,
        keeper: Keeper,
        watch: Watch,
        host: HandlerHost,
        max_running: int,
        ended: Callable[[RunKey], None],
    ) -> None:
        self._context = context
        self._store = context.store
        self._clock = context.clock
        self._keeper = keeper
        self._watch = watch
        self._host = host
        self._ended_here = ended
        self._places = asyncio.Semaphore(max_running)
        self._grants: dict[RunKey, Grant] = {}
        self._jobs: dict[str, int] = {}
        self.stopping = False
        self._handing_over = False
        self._closing = False

    def __contains__(self, key: RunKey) -> bool:
        return key in self._grants

    def __len__(self) -> int:
        return len(self._grants)

    def grants(self) -> list[Grant]:
        """Return what runs now."""
        return list(self._grants.values())

    def runs_here(self, job: str) -> bool:
        """Whether this instance holds a run of a job."""
        return job in self._jobs

    async def take_place(self) -> None:
        """Wait for one of the `max_running` places (K9)."""
        await self._places.acquire()

    def give_place(self) -> None:
        """Give a place back."""
        self._places.release()

    def hold(self, job: Job, key: RunKey, token: str, claim: Claim, *, sent: Moment) -> Held:
        """Keep the lease of a run that was won, under whatever name."""
        return self._keeper.hold(job, Run(key, claim.attempt, token, self._context.instance), sent)

    def let_go(self, held: Held) -> None:
        """Stop keeping a lease."""
        self._keeper.drop(held)

    def granted(self, job: Job, key: RunKey, token: str, claim: Claim, *, sent: Moment, also: tuple[Held, ...] = ()) -> Grant:
        """Take a won run in; it occupies a place until its handler has ended. `also` are its runs under earlier names."""
        attempt = max([claim.attempt, *(held.run.attempt for held in also)])
        held = self.hold(job, key, token, replace(claim, attempt=attempt), sent=sent)
        grant = self._grants[key] = Grant(job, held, claim, also)
        for each in also:
            each.signal = held.signal
        left_ms = partial(self._keeper.left_ms, held)
        effects = Effects(self._store, grant, held.run, limit_ms=min(EFFECTS_MOST_MS, job.lease_ms // 3))
        held.run.bind(deadline_ms=lambda: self._store.time.now_ms() + left_ms(), effects=effects)
        self._jobs[job.name] = self._jobs.get(job.name, 0) + 1
        return grant

    def hand_over(self) -> None:
        """Ask every handler to stop; what does not finish is released (K6)."""
        self._handing_over = True
        for grant in self._grants.values():
            grant.held.signal.set()

    def close(self) -> None:
        """Wait for no handler any more: what still runs is released as it is (K6)."""
        self._closing = True
        for grant in self._grants.values():
            grant.held.signal.set()

    async def carry_out(self, grant: Grant) -> None:
        """Run the handler of a grant and record how it ended."""
        held, job, run = grant.held, grant.job, grant.run
        try:
            if self._store.lease is not None and not self._keeper.trusted(held) and not await self._keeper.confirm(held):
                self._tell_lost(grant)
                self._watch.add(job, run.key, None)
                return
            if self.stopping:
                await self._release(grant, why=STOPPING)
                return
            self._tell_started(grant)
            grant.started_ms = self._clock.monotonic_ms()
            execution = self._host.start(job.handler, run)
            execution.done.add_done_callback(lambda _: held.signal.set())
            stop = await self._until_stop(grant, execution)
            if stop is None:
                await self._ended(grant, execution.done.result())
            else:
                await self._stop(grant, execution, stop)
        finally:
            self._drop(grant)
            self._forget(grant)

    def _drop(self, grant: Grant) -> None:
        for held in (*grant.also, grant.held):
            self._keeper.drop(held)

    def _forget(self, grant: Grant) -> None:
        self._grants.pop(grant.run.key, None)
        grant.ended.set()
        left = self._jobs.pop(grant.job.name, 1) - 1
        if left > 0:
            self._jobs[grant.job.name] = left
        self.give_place()
        self._ended_here(grant.run.key)

    # -- while the handler runs -------------------------------------------------------------------------------------

    async def _until_stop(self, grant: Grant, execution: Execution) -> _Stop | None:
        """Wait for the handler's end, or for a reason to stop it."""
        held, timeout_ms = grant.held, grant.job.timeout_ms
        while not execution.done.done():
            lost = next((each for each in (held, *grant.also) if each.lost), None)
            if lost is not None:
                held.lose(lost.why)
                return _Stop.LOST
            if self._handing_over:
                return _Stop.HAND_OVER
            left_ms = float(LOOK_AGAIN_MS)
            if timeout_ms is not None:
                left_ms = min(left_ms, timeout_ms - (self._clock.monotonic_ms() - grant.started_ms))
                if left_ms <= 0:
                    return _Stop.TIMEOUT
            held.signal.clear()
            await self._clock.wait(held.signal, left_ms)
        return None

    async def _stop(self, grant: Grant, execution: Execution, stop: _Stop) -> None:
        """Ask a handler to stop and do what its end then means."""
        grant.run.lost.set()
        execution.cancel()
        if stop is _Stop.LOST:
            self._tell_lost(grant)
            self._drop(grant)
            self._watch.add(grant.job, grant.run.key, None)
            await self._end_of(grant, execution, None)  # K4: the place and the key stay taken until then
        elif stop is _Stop.TIMEOUT:
            await self._timed_out(grant, execution)
        else:
            await self._end_of(grant, execution, None)
            await self._handed_over(grant, execution)

    async def _end_of(self, grant: Grant, execution: Execution, limit_ms: float | None) -> bool:
        """Wait until a handler has ended; False if the engine closes or the limit passes first."""
        until_ms = None if limit_ms is None else self._clock.monotonic_ms() + limit_ms
        while not execution.done.done():
            wait_ms = LOOK_AGAIN_MS if until_ms is None else until_ms - self._clock.monotonic_ms()
            if wait_ms <= 0 or self._closing:
                return False
            grant.held.signal.clear()
            await self._clock.wait(grant.held.signal, wait_ms)
        return True

    async def _handed_over(self, grant: Grant, execution: Execution) -> None:
        if not execution.done.done():
            _log.warning("%s: the handler of slot %d cannot be stopped; its run is released", grant.job.name, grant.run.slot_ms)
        elif grant.committed or execution.done.result().how in {How.RETURNED, How.RAISED}:
            await self._ended(grant, execution.done.result())
            return
        await self._release(grant, why=STOPPING)

    async def _timed_out(self, grant: Grant, execution: Execution) -> None:
        error = f"timeout: not done after {(grant.job.timeout_ms or 0) / 1000:g} s"
        if await self._end_of(grant, execution, margin_ms(grant.job.lease_ms)):
            if execution.done.result().how is How.RETURNED:
                await self._ended(grant, execution.done.result())
            else:
                await self._failed(grant, RunResult(RunStatus.TIMEOUT, error))
            return
        _log.warning(
            "%s: the handler of slot %d goes on past its timeout; its lease is left to end", grant.job.name, grant.run.slot_ms
        )
        self._drop(grant)
        grant.held.lose(error)
        self._tell_lost(grant)
        self._watch.add(grant.job, grant.run.key, None)
        await self._end_of(grant, execution, None)

    # -- after the handler ------------------------------------------------------------------------------------------

    async def _ended(self, grant: Grant, ended: Ended) -> None:
        if grant.committed and ended.how is not How.RETURNED:
            grant.run.log.error("failed after its transaction had finished the run: %s", ended.error)
            ended = Ended(How.RETURNED)
        match ended.how:
            case How.RETURNED:
                await self._finish(grant, RunResult(RunStatus.SUCCESS))
            case How.ORPHANED:
                await self._release(grant, why=f"hand-over: {ended.error}")
            case _:
                grant.run.log.error("failed: %s", ended.error, extra={"trace": ended.trace})
                if ended.trace:
                    _log.debug("%s", ended.trace)
                await self._failed(grant, RunResult(RunStatus.FAILED, ended.error))

    async def _failed(self, grant: Grant, result: RunResult) -> None:
        """Release a failed attempt for a retry while there are any left, else finish it."""
        failures = await self._failures(grant)
        if failures > grant.job.retries:
            await self._finish(grant, result)
            return
        delay_ms = grant.job.retry_delay_ms
        if delay_ms is None:
            delay_ms = min(BACKOFF_FIRST_MS * 2 ** min(failures - 1, 20), BACKOFF_MOST_MS)
        why = f"retry {failures} of {grant.job.retries} in {delay_ms / 1000:g} s: {result.error}"
        await self._release(grant, why=why, delay_ms=delay_ms, counted=True, error=result.error)

    async def _failures(self, grant: Grant) -> int:
        """Return how many attempts of this run failed, this one included; crashes and hand-overs are not failures."""
        if grant.job.retries == 0 or grant.run.attempt == 1:
            return 1
        key = grant.run.key
        try:
            records = await self._store.history(key.job, limit=grant.job.history_size, since_ms=key.slot_ms)
        except BackendError:
            return grant.run.attempt
        return 1 + sum(1 for record in records if record.key == key and record.status is RunStatus.FAILED)

    async def _finish(self, grant: Grant, result: RunResult) -> None:
        """Report a result with the same token until the lease is over (K2)."""
        grant.result = result
        key, token = grant.run.key, grant.run.token
        self._drop(grant)
        begun = self._clock.moment()
        pause_ms = RETRY_FIRST_MS
        while True:
            try:
                for held in grant.also:  # an earlier version of the fleet looks there
                    await self._store.finish(held.run.key, held.run.token, result)
                grant.recorded = await self._store.finish(key, token, result)
                break
            except BackendError as error:
                if not self._may_go_on(grant, begun):
                    _log.error("%s: slot %d ended as %s, not recorded: %s", key.job, key.slot_ms, result.status, error)
                    break
            await self._clock.sleep_ms(pause_ms)
            pause_ms = min(2 * pause_ms, RETRY_MOST_MS)
        self._context.tell(
            "run_finished",
            key=key,
            attempt=grant.run.attempt,
            status=result.status,
            error=result.error,
            duration_ms=int(self._clock.monotonic_ms() - grant.started_ms),
            recorded=grant.recorded,
        )
        if not grant.recorded:
            self._watch.add(grant.job, key, None)

    def _may_go_on(self, grant: Grant, begun: Moment) -> bool:
        if self._store.lease is not None:
            return self._keeper.left_ms(grant.held) > 0
        return self._clock.elapsed_ms(begun) < REPORT_PATIENCE_MS

    async def _release(
        self, grant: Grant, *, why: str, delay_ms: int = 0, counted: bool = False, error: str | None = None
    ) -> None:
        """Give the run back; a release that fails is left to the end of the lease."""
        key, token = grant.run.key, grant.run.token
        self._drop(grant)
        if self._store.lease is None:
            _log.warning("%s: slot %d is not finished and this store cannot hand it over", key.job, key.slot_ms)
            return
        begun = self._clock.moment()
        pause_ms = RETRY_FIRST_MS
        while True:
            try:
                for held in grant.also:
                    await self._store.release(held.run.key, held.run.token, delay_ms=delay_ms, counted=counted, error=error)
                grant.recorded = await self._store.release(key, token, delay_ms=delay_ms, counted=counted, error=error)
                break
            except BackendError as problem:
                if not self._may_go_on(grant, begun) or self._closing:
                    _log.warning("%s: slot %d could not be released: %s", key.job, key.slot_ms, problem)
                    break
            await self._clock.sleep_ms(pause_ms)
            pause_ms = min(2 * pause_ms, RETRY_MOST_MS)
        grant.result = RunResult(RunStatus.FAILED if counted else RunStatus.HANDED_OVER, error or why)
        _log.info("%s: slot %d released, %s", key.job, key.slot_ms, why)
        self._context.tell("run_released", key=key, attempt=grant.run.attempt, why=why)
        if not self.stopping:
            self._watch.add(grant.job, key, delay_ms)

    # -- telling ----------------------------------------------------------------------------------------------------

    def _tell_started(self, grant: Grant) -> None:
        run, late_ms = grant.run, int(self._store.time.now_ms() - grant.run.slot_ms)
        if run.attempt > 1:
            _log.warning("%s: slot %d taken over as attempt %d from %s", run.job, run.slot_ms, run.attempt, grant.claim.winner)
            self._context.tell("run_taken_over", key=run.key, attempt=run.attempt, previous=grant.claim.winner)
        self._context.tell("run_started", key=run.key, attempt=run.attempt, late_ms=late_ms)

    def _tell_lost(self, grant: Grant) -> None:
        run, why = grant.run, grant.held.why
        grant.result = RunResult(RunStatus.LOST, why)
        _log.warning("%s: attempt %d of slot %d lost its lease: %s", run.job, run.attempt, run.slot_ms, why)
        self._context.tell("lease_lost", key=run.key, attempt=run.attempt, why=why)
