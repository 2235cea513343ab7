"""A simulated lease store whose every store step is explicit, and right; the mutants break one thing of it each.

It is written apart from the reference backend on purpose: two readings of one contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

from anarchon.backend import Backend, LeaseBackend
from anarchon.types import (
    ATTEMPTS_MAX,
    Claim,
    ClaimRequest,
    JobView,
    Limits,
    Outcome,
    RunKey,
    RunRecord,
    RunResult,
    RunStatus,
    RunView,
)
from anarchon.url import BackendUrl
from anarchon_conformance.steps import store_step
from anarchon_conformance.target import RawRun, Target
from anarchon_conformance.virtual import ManualClock

T = TypeVar("T")


@dataclass(slots=True)
class Row:
    """A run as the store keeps it."""

    key: RunKey
    attempt: int
    token: str | None
    instance: str
    end_ms: int
    status: RunStatus = RunStatus.RUNNING
    uncounted: int = 0
    finisher: str | None = None
    finished_ms: int = 0
    records: list[RunRecord] = field(default_factory=list)


@dataclass(slots=True)
class Board:
    """A job as the store keeps it."""

    first_ms: int
    rows: dict[RunKey, Row] = field(default_factory=dict)
    paused_ms: int | None = None
    resumed_ms: int | None = None
    floor_ms: int | None = None
    info: str = ""


class SimStore:
    """The data, and the clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.boards: dict[str, Board] = {}
        self.first: dict[tuple[str, int, str], tuple[str, str, int]] = {}

    def now_ms(self) -> int:
        return int(self.clock.wall_ms())


class SimBackend(LeaseBackend):
    """Right in every clause. What a mutant may get wrong is a method of its own."""

    limits = Limits(durable=False)

    def __init__(self, store: SimStore, skew_ms: int = 0) -> None:
        self.store, self.skew_ms = store, skew_ms

    @classmethod
    def from_url(cls, url: BackendUrl) -> Self:
        raise NotImplementedError(url)

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to let go of."""

    # -- what mutants override

    async def ask(self, label: str, decide: Callable[[], T]) -> T:
        """Take one store step."""
        async with store_step(label):
            return decide()

    def name(self, job: str) -> str:
        return job

    def lease_now_ms(self) -> int:
        return self.store.now_ms()

    def slot_now_ms(self) -> int:
        return self.store.now_ms()

    def alive(self, row: Row, now_ms: int) -> bool:
        if row.status is RunStatus.RUNNING:
            return now_ms <= row.end_ms
        return row.status is RunStatus.HANDED_OVER and now_ms < row.end_ms

    def holds(self, row: Row | None, token: str, call: str) -> bool:
        del call
        return row is not None and row.status is RunStatus.RUNNING and row.token == token

    def exhausted(self, row: Row, request: ClaimRequest) -> bool:
        return row.attempt - row.uncounted >= request.attempt_limit or row.attempt >= ATTEMPTS_MAX

    def next_attempt(self, row: Row) -> int:
        return row.attempt + 1

    def final(self, row: Row) -> bool:
        return row.status.final

    # -- claim

    async def claim(self, request: ClaimRequest) -> Claim:
        return await self.ask("claim", lambda: self.stamped(self.decide(request)))

    def stamped(self, claim: Claim) -> Claim:
        return replace(claim, store_now_ms=self.store.now_ms())

    def board(self, job: str) -> Board | None:
        return self.store.boards.get(self.name(job))

    def row(self, key: RunKey) -> Row | None:
        board = self.board(key.job)
        return board.rows.get(key) if board else None

    def decide(self, request: ClaimRequest) -> Claim:
        row = self.row(request.key)
        refusal = self.known(row, request) if row else self.refused(request)
        if refusal is None:
            refusal = self.grant(request)
        board = self.board(request.key.job)
        if board is not None and request.info and board.info != request.info:
            refusal = replace(refusal, other_info=board.info or None)
            board.info = request.info
        return refusal

    def known(self, row: Row, request: ClaimRequest) -> Claim | None:
        now_ms = self.lease_now_ms()
        if row.token == request.token and row.status is RunStatus.RUNNING:
            return self.again(row, request, now_ms)
        if self.final(row):
            return Claim(Outcome.DONE, winner=row.instance)
        if self.alive(row, now_ms):
            return Claim(Outcome.RUNNING, left_ms=max(1, row.end_ms - now_ms), winner=row.instance)
        if self.exhausted(row, request):
            if row.status is RunStatus.RUNNING:
                self.seal(row, RunStatus.INTERRUPTED)
            row.status, row.token = RunStatus.INTERRUPTED, None
            return Claim(Outcome.DONE, winner=row.instance)
        return None

    def again(self, row: Row, request: ClaimRequest, now_ms: int) -> Claim:
        row.end_ms = now_ms + request.lease_ms
        return Claim(Outcome.WON, row.attempt)

    def refused(self, request: ClaimRequest) -> Claim | None:
        key, board = request.key, self.board(request.key.job)
        if board and board.floor_ms is not None and key.slot_ms <= board.floor_ms:
            return Claim(Outcome.LATE)
        if not (key.manual or key.note):
            now_ms = self.slot_now_ms()
            if key.slot_ms > now_ms:
                return self.early(request, now_ms)
            if now_ms - key.slot_ms > request.max_late_ms:
                return self.late(request)
            if board and board.paused_ms is not None:
                return Claim(Outcome.PAUSED)
        return self.overlapping(request, board)

    def early(self, request: ClaimRequest, now_ms: int) -> Claim | None:
        return Claim(Outcome.EARLY, wait_ms=request.key.slot_ms - now_ms)

    def late(self, request: ClaimRequest) -> Claim | None:
        del request
        return Claim(Outcome.LATE)

    def overlapping(self, request: ClaimRequest, board: Board | None) -> Claim | None:
        if board is None or not request.exclusive or request.key.note:
            return None
        now_ms = self.lease_now_ms()
        for other in board.rows.values():
            if other.key != request.key and not other.key.note and self.blocks(other, now_ms):
                left_ms = max(1, other.end_ms - now_ms)
                return Claim(Outcome.OVERLAP, left_ms=left_ms, other=other.key, winner=other.instance)
        return None

    def blocks(self, other: Row, now_ms: int) -> bool:
        return not self.final(other) and self.alive(other, now_ms)

    def grant(self, request: ClaimRequest) -> Claim:
        key, now_ms = request.key, self.lease_now_ms()
        board = self.store.boards.setdefault(self.name(key.job), Board(self.store.now_ms(), info=request.info))
        row, previous = board.rows.get(key), None
        if row is None:
            row = board.rows[key] = Row(key, 1, request.token, request.instance, now_ms + request.lease_ms)
        else:
            previous = row.instance
            if row.status is RunStatus.RUNNING:
                self.seal(row, RunStatus.LOST)
            row.attempt = self.next_attempt(row)
            row.token, row.instance, row.status = request.token, request.instance, RunStatus.RUNNING
            row.end_ms = now_ms + request.lease_ms
        self.record(row)
        self.prune(board, request)
        return Claim(Outcome.WON, row.attempt, winner=previous)

    def record(self, row: Row) -> None:
        key = row.key
        row.records.append(
            RunRecord(
                key.job,
                key.slot_ms,
                key.space,
                row.attempt,
                row.token or "",
                row.instance,
                RunStatus.RUNNING,
                self.store.now_ms(),
            )
        )

    def seal(self, row: Row, status: RunStatus, error: str | None = None) -> None:
        if row.records:
            row.records[-1] = replace(row.records[-1], status=status, finished_ms=self.store.now_ms(), error=error)

    def prune(self, board: Board, request: ClaimRequest) -> None:
        now_ms = self.store.now_ms()
        oldest_first = sorted(board.rows, key=lambda key: key.slot_ms)
        surplus = len(oldest_first) - request.history_size
        for place, key in enumerate(oldest_first):
            if key.slot_ms >= now_ms - request.keep_ms:
                return
            expired = request.history_ttl_ms is not None and now_ms - key.slot_ms > request.history_ttl_ms
            if (place < surplus or expired) and self.prunable(board.rows[key]):
                del board.rows[key]
                self.raise_floor(board, key.slot_ms)

    def prunable(self, row: Row) -> bool:
        return row.status.final

    def raise_floor(self, board: Board, slot_ms: int) -> None:
        board.floor_ms = max(slot_ms, slot_ms if board.floor_ms is None else board.floor_ms)

    # -- the rest

    async def renew(self, key: RunKey, token: str, lease_ms: int) -> bool:
        def decide() -> bool:
            row = self.row(key)
            if row is None or not self.renewable(row, token):
                return False
            row.end_ms = self.lease_now_ms() + lease_ms
            return True

        return await self.ask("renew", decide)

    def renewable(self, row: Row, token: str) -> bool:
        return self.holds(row, token, "renew")

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        def decide() -> bool:
            row = self.row(key)
            if row is not None and self.holds(row, token, "finish"):
                self.end(row, token, result)
                return True
            return row is not None and self.finished_by(row, token)

        return await self.ask("finish", decide)

    def end(self, row: Row, token: str, result: RunResult) -> None:
        self.seal(row, result.status, result.error)
        row.status, row.token, row.finisher = result.status, None, token
        row.finished_ms = self.store.now_ms()

    def finished_by(self, row: Row, token: str) -> bool:
        return row.finisher == token

    async def release(
        self, key: RunKey, token: str, *, delay_ms: int = 0, counted: bool = False, error: str | None = None
    ) -> bool:
        def decide() -> bool:
            row = self.row(key)
            if row is None or not self.holds(row, token, "release"):
                return False
            self.seal(row, RunStatus.FAILED if counted else RunStatus.HANDED_OVER, error)
            self.let_go(row, delay_ms, counted=counted)
            return True

        return await self.ask("release", decide)

    def let_go(self, row: Row, delay_ms: int, *, counted: bool) -> None:
        row.status, row.token = RunStatus.HANDED_OVER, None
        row.end_ms = self.lease_now_ms() + delay_ms
        row.uncounted += not counted

    async def check(self, keys: Sequence[RunKey]) -> list[RunView | None]:
        def decide() -> list[RunView | None]:
            rows = [self.row(key) for key in keys]
            return [None if row is None else self.view(row) for row in rows]

        return await self.ask("check", decide)

    def view(self, row: Row) -> RunView:
        now_ms = self.lease_now_ms()
        left_ms = max(1, row.end_ms - now_ms) if self.alive(row, now_ms) else min(0, row.end_ms - now_ms)
        return RunView(row.key, row.status, row.attempt, row.instance, left_ms)

    async def unfinished(self, jobs: Sequence[str]) -> list[RunView]:
        def decide() -> list[RunView]:
            boards = [board for board in map(self.board, jobs) if board is not None]
            rows = [row for board in boards for row in board.rows.values() if not row.status.final and not row.key.note]
            return sorted(map(self.view, rows), key=lambda view: view.key)

        return await self.ask("unfinished", decide)

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        def decide() -> list[RunRecord]:
            board = self.board(job)
            rows = board.rows.values() if board else ()
            records = [record for row in rows for record in row.records if record.slot_ms >= since_ms]
            records.sort(key=lambda record: (record.slot_ms, record.space, record.attempt), reverse=True)
            return records[:limit]

        return await self.ask("history", decide)

    async def jobs(self) -> list[JobView]:
        boards = sorted(self.store.boards.items())
        return [JobView(name, b.first_ms, b.paused_ms, b.resumed_ms, b.floor_ms, b.info) for name, b in boards]

    async def set_paused(self, job: str, paused: bool) -> None:
        def decide() -> None:
            now_ms = self.store.now_ms()
            board = self.store.boards.setdefault(self.name(job), Board(now_ms))
            if paused and board.paused_ms is None:
                board.paused_ms = now_ms
            elif not paused and board.paused_ms is not None:
                board.paused_ms, board.resumed_ms = None, now_ms

        await self.ask("pause", decide)

    async def now_ms(self) -> int:
        return self.store.now_ms()

    async def forget(self, job: str) -> None:
        self.store.boards.pop(self.name(job), None)


class SimFirst(Backend):
    """A claim-only store: the first token of a slot stays, for ever."""

    limits = Limits(durable=False, store_clock=True)

    def __init__(self, store: SimStore, skew_ms: int = 0) -> None:
        self.store, self.skew_ms = store, skew_ms
        self.records: dict[str, list[RunRecord]] = store.__dict__.setdefault("records", {})

    @classmethod
    def from_url(cls, url: BackendUrl) -> Self:
        raise NotImplementedError(url)

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to let go of."""

    async def ask(self, label: str, decide: Callable[[], T]) -> T:
        async with store_step(label):
            return decide()

    def place(self, key: RunKey) -> tuple[str, int, str]:
        return key.job, key.slot_ms, key.space

    async def claim(self, request: ClaimRequest) -> Claim:
        return await self.ask("claim", lambda: self.decide(request))

    def timed(self, request: ClaimRequest) -> Claim | None:
        key, now_ms = request.key, self.store.now_ms()
        if key.manual or key.note:
            return None
        if key.slot_ms > now_ms:
            return Claim(Outcome.EARLY, store_now_ms=now_ms, wait_ms=key.slot_ms - now_ms)
        if now_ms - key.slot_ms > request.max_late_ms:
            return Claim(Outcome.LATE, store_now_ms=now_ms)
        return None

    def decide(self, request: ClaimRequest) -> Claim:
        holder = self.holder(request)
        if holder is not None:
            return holder
        return self.timed(request) or self.write(request)

    def holder(self, request: ClaimRequest) -> Claim | None:
        first = self.store.first.get(self.place(request.key))
        if first is None:
            return None
        if first[0] == request.token:
            return self.mine()
        return Claim(Outcome.LOST, store_now_ms=self.store.now_ms(), winner=first[1])

    def mine(self) -> Claim:
        return Claim(Outcome.WON, 1, store_now_ms=self.store.now_ms())

    def write(self, request: ClaimRequest) -> Claim:
        key, now_ms = request.key, self.store.now_ms()
        self.store.first[self.place(key)] = (request.token, request.instance, now_ms)
        record = RunRecord(
            key.job, key.slot_ms, key.space, 1, request.token, request.instance, RunStatus.RUNNING, claimed_ms=now_ms
        )
        self.records.setdefault(key.job, []).append(record)
        return Claim(Outcome.WON, 1, store_now_ms=now_ms)

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        def decide() -> bool:
            first = self.store.first.get(self.place(key))
            if first is None or first[0] != token:
                return False
            records = self.records.get(key.job, [])
            for place, record in enumerate(records):
                if record.key == key and record.token == token and record.status is RunStatus.RUNNING:
                    finished_ms = self.store.now_ms()
                    records[place] = replace(record, status=result.status, finished_ms=finished_ms, error=result.error)
            return True

        return await self.ask("finish", decide)

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        def decide() -> list[RunRecord]:
            records = [record for record in self.records.get(job, []) if record.slot_ms >= since_ms]
            return sorted(records, key=lambda record: record.slot_ms, reverse=True)[:limit]

        return await self.ask("history", decide)

    async def now_ms(self) -> int:
        return self.store.now_ms()

    async def forget(self, job: str) -> None:
        self.records.pop(job, None)
        for place in [place for place in self.store.first if place[0] == job]:
            del self.store.first[place]


class ZooTarget(Target):
    """A simulated store under test, with every side door that it can offer."""

    simulated = True
    inner_steps = True

    def __init__(self, kind: type[SimBackend | SimFirst] = SimBackend) -> None:
        self.kind = kind
        self.hands = ManualClock()
        self.clock = self.hands
        self.store = SimStore(self.hands)

    @property
    def name(self) -> str:
        return self.kind.__name__

    def make(self, url: str) -> Backend:
        return self.kind(self.store)

    def make_skewed(self, skew_ms: int) -> Backend:
        return self.kind(self.store, skew_ms)

    async def step_clock(self, delta_ms: int) -> None:
        self.hands.step(delta_ms)

    async def raw_run(self, key: RunKey) -> RawRun | None:
        board = self.store.boards.get(key.job)
        row = board.rows.get(key) if board else None
        if row is not None:
            return RawRun(row.status, row.attempt, row.token)
        first = self.store.first.get((key.job, key.slot_ms, key.space))
        return None if first is None else RawRun(None, 1, first[0])
