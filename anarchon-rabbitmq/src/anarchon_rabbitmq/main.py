"""The backend: claims, ends of runs, history, and what weakens the promises. Clauses marked [A] hold."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Self

from aio_pika.abc import AbstractConnection
from anarchon.backend import Backend
from anarchon.clock import SystemClock
from anarchon.errors import BackendError, OptionError
from anarchon.types import Claim, ClaimRequest, Limits, Outcome, RunKey, RunRecord, RunResult, RunStatus
from anarchon.url import BackendUrl

from anarchon_rabbitmq import trial
from anarchon_rabbitmq.deciding import Deciding
from anarchon_rabbitmq.journal import Journal
from anarchon_rabbitmq.link import Link
from anarchon_rabbitmq.names import Names
from anarchon_rabbitmq.options import (
    CALL_TIMEOUT_MS,
    JOB_NAME,
    PREFIX,
    SLOT_TTL,
    Address,
    Options,
    Strategy,
    options_from_url,
    slot_ttl_ms,
)

__all__ = ["RabbitMQBackend"]

HELD_MAX: Final = 10_000
COSTLY_QUEUES: Final = 200
FOREIGN_ENDS_MAX: Final = 10_000
TESTED_FROM: Final = (3, 10)
TESTED: Final = "3.10"
LOSES: Final = (
    "cluster_partition_handling = pause_minority on at least three nodes; with ignore or autoheal both sides of a partition "
    "elect a winner"
)


@dataclass(slots=True)
class Held:
    """A run that this process won: what its end repeats."""

    instance: str
    claimed_ms: int
    done: bool = False


class RabbitMQBackend(Backend):
    """One prefix of one virtual host. Decides who is first; knows nobody's death."""

    def __init__(
        self,
        url: str | BackendUrl | None = None,
        *,
        connection: AbstractConnection | None = None,
        prefix: str = PREFIX,
        slot_ttl: float | timedelta = SLOT_TTL.default,
        strategy: Strategy | str = Strategy.TOKEN,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Use a URL (`amqp://localhost` by default), or a borrowed connection, which stays open.

        An option that the URL names counts more than the argument. `loop` is the event loop that a borrowed connection
        belongs to: by default the running one, if there is one.

        Raises:
            OptionError: an argument is refused.
            UrlError: the URL is.
        """
        if strategy not in tuple(Strategy):
            msg = f"strategy={strategy!r:.80} is refused: write one of {', '.join(Strategy)}"
            raise OptionError(msg)
        options = Options(strategy=Strategy(strategy), prefix=prefix, slot_ttl_ms=slot_ttl_ms(slot_ttl))
        if connection is None:
            address, options = options_from_url(BackendUrl.of(url or "amqp://localhost"), options)
            self._set_up(address, options, None)
            return
        if url is not None:
            msg = "url and connection exclude each other: hand over one of them"
            raise OptionError(msg)
        if not isinstance(connection, AbstractConnection):
            msg = f"connection={connection!r:.80} is refused: hand over a connection of aio_pika, or use a URL"
            raise OptionError(msg)
        self._set_up(connection, options, loop or _running_loop())

    @classmethod
    def from_url(cls, url: BackendUrl) -> Self:
        return cls(url)

    def _set_up(self, where: Address | AbstractConnection, options: Options, home: asyncio.AbstractEventLoop | None) -> None:
        gate = options.strategy is Strategy.GATE
        self._options = options
        self._names = Names(options.prefix)
        self._link = Link(where, trial=self._try, home=home)
        self._canary = trial.Canary(self._link, self._names)
        self._deciding = Deciding(self._link, self._names, options.slot_ttl_ms, earlier=self._earlier)
        # Streams answer some questions with an error that closes the connection: they get one of their own.
        self._journal = Journal(Link(where, beside=True, home=home), self._names)
        self._held: OrderedDict[tuple[RunKey, str], Held] = OrderedDict()
        self._clock = SystemClock()
        self.limits = Limits(
            remembers_ms=options.slot_ttl_ms,
            memory_option="slot_ttl",
            costly_runs=COSTLY_QUEUES,
            resolves_unknown=not gate,
            store_clock=False,
            history_ttl=False,
            job_name=JOB_NAME,
            call_timeout_ms=CALL_TIMEOUT_MS,
            notes=(LOSES,),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._link.place}, prefix={self._options.prefix!r}, strategy={self._options.strategy})"

    # -- life

    async def open(self) -> None:
        await self._link.open()
        await self._journal.open()
        try:
            await self._link.within(self._ping)
        except BaseException:
            await self.close()
            raise
        name, _ = trial.version_of(self._link.connection)
        self.limits = replace(self.limits, notes=(f"this is {name}", LOSES))

    async def _try(self, link: Link) -> None:
        """Try a new connection out, before anything is believed that comes over it."""
        trial.check_version(link)
        await trial.try_gate(link, self._names)
        if self._options.strategy is Strategy.TOKEN:
            await trial.try_token(link, self._names)

    async def close(self) -> None:
        await self._journal.close()
        await self._link.close()

    async def ping(self) -> None:
        await self._link.within(self._ping)

    async def _ping(self) -> None:
        async with self._link.channel(confirms=False) as channel:
            await channel.basic_qos(prefetch_count=0)

    # -- claims

    async def claim(self, request: ClaimRequest) -> Claim:
        claimed_ms = int(self._clock.wall_ms())
        decide = self._deciding.by_token if self._options.strategy is Strategy.TOKEN else self._deciding.by_gate
        claim = await self._link.within(lambda: decide(request))
        if claim.won:
            self._hold(request, claimed_ms)
        return claim

    async def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Claim | BackendError]:
        """Decide claims side by side, each with a channel of its own."""
        answers = await asyncio.gather(*(self.claim(request) for request in requests), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, BackendError):
                raise answer
        return [answer for answer in answers if isinstance(answer, Claim | BackendError)]

    async def _earlier(self, request: ClaimRequest) -> Claim | None:
        """Find an earlier winner of a run that a gate has just let in: it wrote its start, which nothing expires (C1).

        Where the canary proves that gates keep their message long enough for a prompt claim, that one is believed at once.
        """
        key = request.key
        if await self._canary.proven() and abs(self._clock.wall_ms() - key.slot_ms) < trial.PROMPT_MS:
            return None
        for record in await self._journal.read(key.job, limit=HELD_MAX, since_ms=key.slot_ms):
            if record.key == key and record.token != request.token:
                return Claim(Outcome.LOST, winner=record.instance)
        return None

    def _hold(self, request: ClaimRequest, claimed_ms: int) -> None:
        name = (request.key, request.token)
        if name not in self._held:
            self._held[name] = Held(request.instance, claimed_ms)
            if len(self._held) > HELD_MAX:
                self._held.popitem(last=False)
        held = self._held[name]
        if not held.done:
            self._journal.begin(_record(request.key, request.token, held), request.history_size)

    # -- ends and history

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        held = self._held.get((key, token))
        if held is None:
            held = await self._found(key, token)
        if held is None and self._deciding.unsure(token):
            msg = f"{self._link.place}: whether {key.job} at {key.slot_ms} was won is not known, so it cannot be finished"
            raise BackendError(msg)
        if held is None:
            return False
        if held.done:
            return True
        record = replace(_record(key, token, held), status=result.status, error=result.error)
        record = replace(record, finished_ms=max(record.claimed_ms, int(self._clock.wall_ms())))
        await self._journal.write(record)
        held.done = True
        return True

    async def _found(self, key: RunKey, token: str) -> Held | None:
        """Look a claim up that this process did not win, or no longer remembers."""
        for record in await self._journal.read(key.job, limit=FOREIGN_ENDS_MAX):
            if record.key == key and record.token == token:
                return Held(record.instance, record.claimed_ms, done=record.status.final)
        return None

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        await self._journal.settle()
        if limit <= 0:
            return []
        return await self._journal.read(job, limit=limit, since_ms=since_ms)

    async def forget(self, job: str) -> None:
        """Delete a job's history; its gates go by themselves after `slot_ttl`."""
        await self._journal.forget(job)

    async def warnings(self) -> list[str]:
        await self.ping()
        name, version = trial.version_of(self._link.connection)
        said = [f"what a cluster of this broker does in a partition cannot be seen from here: set {LOSES}"]
        if version is not None and version < TESTED_FROM:
            said.append(f"this is {name}, and the oldest that is tested is RabbitMQ {TESTED}: expect surprises, or upgrade")
        if version is None:
            said.append(f"this is {name}, and only RabbitMQ is tested")
        if self._options.strategy is Strategy.GATE:
            said.append("strategy=gate cannot ask again: a run whose answer is lost does not happen; strategy=token can")
        return said


def _record(key: RunKey, token: str, held: Held) -> RunRecord:
    return RunRecord(key.job, key.slot_ms, key.space, 1, token, held.instance, RunStatus.RUNNING, held.claimed_ms)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
