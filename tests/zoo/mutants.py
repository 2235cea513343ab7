"""Backends broken on purpose, each in one way that somebody has shipped or nearly shipped. The docstring is the mistake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from anarchon.errors import BackendError, BackendUnavailable
from anarchon.types import Claim, ClaimRequest, Limits, Outcome, RunKey, RunStatus, RunView, new_token

from .store import Board, Row, SimBackend, SimFirst, SimStore

T = TypeVar("T")


class CheckThenSet(SimBackend):
    """Reads whether a fresh slot is free, and writes in a second step."""

    async def claim(self, request: ClaimRequest) -> Claim:
        row = await self.ask("read", lambda: self.row(request.key))
        if row is not None:
            return await super().claim(request)
        refusal = await self.ask("judge", lambda: self.refused(request))
        if refusal is not None:
            return refusal

        def write() -> Claim:
            board = self.board(request.key.job)
            if board is not None:
                board.rows.pop(request.key, None)
            return self.grant(request)

        return await self.ask("write", write)


class TakeoverNotAtomic(SimBackend):
    """Reads that a lease is over, and takes the run in a second step."""

    async def claim(self, request: ClaimRequest) -> Claim:
        def look() -> tuple[bool, int]:
            row = self.row(request.key)
            if row is None or row.token == request.token or self.known(row, request) is not None:
                return False, 0
            return True, row.attempt

        takes, attempt = await self.ask("read", look)
        if not takes:
            return await super().claim(request)

        def take() -> Claim:
            row = self.row(request.key)
            assert row is not None
            row.attempt = attempt
            return self.grant(request)

        return await self.ask("take", take)


class NoTokenCompare(SimBackend):
    """Renews, releases and finishes whatever token asks."""

    def holds(self, row: Row | None, token: str, call: str) -> bool:
        return row is not None and row.status is RunStatus.RUNNING


class NoFenceOnFinish(SimBackend):
    """Finishes for a token that has lost the run."""

    def holds(self, row: Row | None, token: str, call: str) -> bool:
        return super().holds(row, token, call) or (call == "finish" and row is not None and row.status is RunStatus.RUNNING)


class NoFenceOnRenew(SimBackend):
    """Renews for a token that has lost the run."""

    def holds(self, row: Row | None, token: str, call: str) -> bool:
        return super().holds(row, token, call) or (call == "renew" and row is not None and row.status is RunStatus.RUNNING)


class NoFenceOnRelease(SimBackend):
    """Releases for a token that has lost the run."""

    def holds(self, row: Row | None, token: str, call: str) -> bool:
        return super().holds(row, token, call) or (call == "release" and row is not None and row.status is RunStatus.RUNNING)


class InstanceClockLeases(SimBackend):
    """Sets and compares lease ends by the clock of its own host."""

    def lease_now_ms(self) -> int:
        return self.store.now_ms() + self.skew_ms


class AttemptNotRaised(SimBackend):
    """Takes over without raising the attempt."""

    def next_attempt(self, row: Row) -> int:
        return row.attempt


class AttemptSkips(SimBackend):
    """Takes over and raises the attempt by two."""

    def next_attempt(self, row: Row) -> int:
        return row.attempt + 2


class StealsLiveLease(SimBackend):
    """Takes a run over when half of its lease has passed."""

    def alive(self, row: Row, now_ms: int) -> bool:
        return super().alive(row, now_ms + 20_000)


class OffByOneAtLeaseEnd(SimBackend):
    """Treats a lease that ends at this very millisecond as over."""

    def alive(self, row: Row, now_ms: int) -> bool:
        return now_ms < row.end_ms


class ForgetsFinished(SimBackend):
    """Deletes a run when it is finished."""

    def end(self, row: Row, token: str, result: Any) -> None:
        super().end(row, token, result)
        del self.store.boards[self.name(row.key.job)].rows[row.key]


class MemoryShorterThanLateWindow(SimBackend):
    """Prunes finished runs after 30 seconds, whatever the claim says that must be kept, and raises no floor."""

    def decide(self, request: ClaimRequest) -> Claim:
        board, now_ms = self.board(request.key.job), self.store.now_ms()
        for key in list(board.rows) if board else ():
            if board is not None and key.slot_ms < now_ms - 30_000 and board.rows[key].status.final:
                del board.rows[key]
        return super().decide(request)


class OverlapOutsideTheStep(SimBackend):
    """Looks for other live runs in a step of its own, before the claim."""

    async def claim(self, request: ClaimRequest) -> Claim:
        def look() -> Claim | None:
            return None if self.row(request.key) else self.overlapping(request, self.board(request.key.job))

        refusal = await self.ask("overlap", look)
        if refusal is not None:
            return refusal
        return await super().claim(replace(request, exclusive=False))


class NoOverlap(SimBackend):
    """Never refuses overlap."""

    def overlapping(self, request: ClaimRequest, board: Board | None) -> Claim | None:
        return None


class NoAttemptLimit(SimBackend):
    """Takes over for ever."""

    def exhausted(self, row: Row, request: ClaimRequest) -> bool:
        return False


class CountsHandOvers(SimBackend):
    """Counts a hand-over against the attempt limit."""

    def let_go(self, row: Row, delay_ms: int, *, counted: bool) -> None:
        super().let_go(row, delay_ms, counted=True)


class AssumesWonAfterLostReply(SimBackend):
    """Takes a lost reply for a win."""

    async def claim(self, request: ClaimRequest) -> Claim:
        try:
            return await super().claim(request)
        except BackendError:
            return Claim(Outcome.WON, 1)


class AssumesRefusedAfterLostReply(SimBackend):
    """Takes a lost reply for somebody else's win."""

    async def claim(self, request: ClaimRequest) -> Claim:
        try:
            return await super().claim(request)
        except BackendError:
            return Claim(Outcome.RUNNING, left_ms=1)


class NewTokenOnRetry(SimBackend):
    """Asks again by itself, with a new token."""

    async def claim(self, request: ClaimRequest) -> Claim:
        try:
            return await super().claim(request)
        except BackendError:
            return await super().claim(replace(request, token=new_token()))


class ForgetsItsToken(SimBackend):
    """Answers RUNNING to the token that holds the run."""

    def again(self, row: Row, request: ClaimRequest, now_ms: int) -> Claim:
        return Claim(Outcome.RUNNING, left_ms=max(1, row.end_ms - now_ms))


class SaysLost(SimBackend):
    """Says that somebody else was first, where a lease store must say whether the run is alive or done."""

    def known(self, row: Row, request: ClaimRequest) -> Claim | None:
        answer = super().known(row, request)
        return Claim(Outcome.LOST) if answer is not None and answer.outcome is Outcome.RUNNING else answer


class SameTokenKeepsOldLease(SimBackend):
    """Answers WON to the same token without a new lease, though its caller only starts now."""

    def again(self, row: Row, request: ClaimRequest, now_ms: int) -> Claim:
        return Claim(Outcome.WON, row.attempt)


class LateOnInstanceClock(SimBackend):
    """Judges early and late by the clock of its own host."""

    def slot_now_ms(self) -> int:
        return self.store.now_ms() + self.skew_ms


class NoEarly(SimBackend):
    """Lets a slot be won before its time."""

    def early(self, request: ClaimRequest, now_ms: int) -> Claim | None:
        return self.overlapping(request, self.board(request.key.job))


class NoLate(SimBackend):
    """Lets a slot be won at any time later."""

    def late(self, request: ClaimRequest) -> Claim | None:
        return self.overlapping(request, self.board(request.key.job))


class LateTakeover(SimBackend):
    """Refuses a takeover because the slot is late by now."""

    def known(self, row: Row, request: ClaimRequest) -> Claim | None:
        answer = super().known(row, request)
        if answer is None and self.store.now_ms() - row.key.slot_ms > request.max_late_ms:
            return Claim(Outcome.LATE)
        return answer


class WritesWhenLate(SimBackend):
    """Leaves a finished run behind where a claim came too late."""

    def late(self, request: ClaimRequest) -> Claim | None:
        self.grant(request)
        row = self.row(request.key)
        assert row is not None
        row.status, row.token = RunStatus.INTERRUPTED, None
        return Claim(Outcome.LATE)


class PrunesWithoutFloor(SimBackend):
    """Forgets old runs without raising the floor."""

    def raise_floor(self, board: Board, slot_ms: int) -> None:
        """Forget that there was something."""


class TrimsLiveRuns(SimBackend):
    """Lets the history limit remove a run that is still running."""

    def prunable(self, row: Row) -> bool:
        return True

    def raise_floor(self, board: Board, slot_ms: int) -> None:
        """The run is gone, and nobody knows."""


class ReleasedTokenStillWins(SimBackend):
    """Keeps the token on a released run: its claim sent again is told WON."""

    def let_go(self, row: Row, delay_ms: int, *, counted: bool) -> None:
        token = row.token
        super().let_go(row, delay_ms, counted=counted)
        row.token = token

    def known(self, row: Row, request: ClaimRequest) -> Claim | None:
        if row.status is RunStatus.HANDED_OVER and row.token == request.token:
            row.status, row.end_ms = RunStatus.RUNNING, self.lease_now_ms() + request.lease_ms
            return Claim(Outcome.WON, row.attempt)
        return super().known(row, request)


class IgnoresReleaseDelay(SimBackend):
    """Makes a released run claimable at once."""

    def let_go(self, row: Row, delay_ms: int, *, counted: bool) -> None:
        super().let_go(row, 0, counted=counted)


class ReleasedBlocksForEver(SimBackend):
    """Lets a released run refuse overlap after its delay."""

    def blocks(self, other: Row, now_ms: int) -> bool:
        return super().blocks(other, now_ms) or other.status is RunStatus.HANDED_OVER


class PauseOutsideTheStep(SimBackend):
    """Reads the pause in a step of its own, before the claim."""

    async def claim(self, request: ClaimRequest) -> Claim:
        def look() -> bool:
            board = self.board(request.key.job)
            return board is not None and board.paused_ms is not None

        paused = await self.ask("pause?", look)

        def decide() -> Claim:
            board = self.board(request.key.job)
            if board is None:
                return self.stamped(self.decide(request))
            kept, board.paused_ms = board.paused_ms, 1 if paused else None
            try:
                return self.stamped(self.decide(request))
            finally:
                board.paused_ms = kept

        return await self.ask("claim", decide)


class NoPause(SimBackend):
    """Does not look at the pause at all."""

    def refused(self, request: ClaimRequest) -> Claim | None:
        answer = super().refused(request)
        if answer is not None and answer.outcome is Outcome.PAUSED:
            return self.overlapping(request, self.board(request.key.job))
        return answer


class PoisonedAfterCancellation(SimBackend):
    """Fails for ever once a call was cancelled on its way."""

    def __init__(self, store: SimStore, skew_ms: int = 0) -> None:
        super().__init__(store, skew_ms)
        self.poisoned = False

    async def ask(self, label: str, decide: Callable[[], T]) -> T:
        if self.poisoned:
            msg = "connection is busy"
            raise BackendUnavailable(msg)
        try:
            return await super().ask(label, decide)
        except asyncio.CancelledError:
            self.poisoned = True
            raise


class PrefixesCollide(SimBackend):
    """Folds the case of job names: two jobs share their runs."""

    def name(self, job: str) -> str:
        return job.casefold()

    def row(self, key: RunKey) -> Row | None:
        board = self.board(key.job)
        return board.rows.get(replace(key, job=key.job.casefold())) if board else None

    def grant(self, request: ClaimRequest) -> Claim:
        return super().grant(replace(request, key=replace(request.key, job=request.key.job.casefold())))


class ReplyOfAnotherRequest(SimBackend):
    """Leaves a lost reply in the connection and hands it to the next call."""

    def __init__(self, store: SimStore, skew_ms: int = 0) -> None:
        super().__init__(store, skew_ms)
        self.pending: list[Any] = []

    async def ask(self, label: str, decide: Callable[[], T]) -> T:
        def keep() -> T:
            answer = decide()
            self.pending.append(answer)
            return answer

        await super().ask(label, keep)
        return self.pending.pop(0)  # type: ignore[no-any-return]


class FinishOnlyOnce(SimBackend):
    """Says False to the token that finished the run when it asks again."""

    def finished_by(self, row: Row, token: str) -> bool:
        return False


class FinishForAnybody(SimBackend):
    """Says True to any finish of a run that is finished."""

    def finished_by(self, row: Row, token: str) -> bool:
        return row.status.final


class CheckSaysFree(SimBackend):
    """Shows a run as free a while before its lease is over."""

    def view(self, row: Row) -> RunView:
        return replace(super().view(row), left_ms=row.end_ms - self.lease_now_ms() - 60_000)


class CheckMarksInterrupted(SimBackend):
    """Ends a run whose lease is over when somebody only looks at it."""

    def view(self, row: Row) -> RunView:
        if row.status is RunStatus.RUNNING and not self.alive(row, self.lease_now_ms()):
            row.status, row.token = RunStatus.INTERRUPTED, None
        return super().view(row)


class ExpiredCannotBeRenewed(SimBackend):
    """Refuses the holder's renewal once the lease is over, though nobody took the run."""

    def renewable(self, row: Row, token: str) -> bool:
        return super().renewable(row, token) and self.alive(row, self.lease_now_ms())


class TakeoverLeavesNoRecord(SimBackend):
    """Writes the history only for first attempts."""

    def record(self, row: Row) -> None:
        if row.attempt == 1:
            super().record(row)


class ReopensOnClockStep(SimBackend):
    """Believes that a run is finished only while its end lies in the past."""

    def final(self, row: Row) -> bool:
        if row.status.final and row.finished_ms > self.store.now_ms():
            row.status, row.end_ms = RunStatus.RUNNING, 0
            return False
        return row.status.final


class FirstCheckThenSet(SimFirst):
    """Claim-only: reads whether somebody was first, and writes in a second step."""

    async def claim(self, request: ClaimRequest) -> Claim:
        holder = await self.ask("read", lambda: self.holder(request) or self.timed(request))
        return await self.ask("write", lambda: self.write(request)) if holder is None else holder


class FirstForgets(SimFirst):
    """Claim-only: forgets after 30 seconds, and says nothing about it."""

    def holder(self, request: ClaimRequest) -> Claim | None:
        first = self.store.first.get(self.place(request.key))
        if first is not None and request.key.slot_ms < self.store.now_ms() - 30_000:
            return None
        return super().holder(request)


class FirstGuessesLost(SimFirst):
    """Claim-only: takes a lost reply for a lost claim."""

    async def claim(self, request: ClaimRequest) -> Claim:
        try:
            return await super().claim(request)
        except BackendError:
            return Claim(Outcome.LOST)


class FirstForgetsItsToken(SimFirst):
    """Claim-only: does not recognise its own claim, and says that it does."""

    def mine(self) -> Claim:
        return Claim(Outcome.LOST)


class FirstByTheSecond(SimFirst):
    """Claim-only: rounds slots to whole seconds."""

    def place(self, key: RunKey) -> tuple[str, int, str]:
        return key.job, key.slot_ms // 1000, key.space


class FirstWithoutRecord(SimFirst):
    """Claim-only: records nothing of a win whose finish comes twice."""

    def write(self, request: ClaimRequest) -> Claim:
        claim = super().write(request)
        self.records[request.key.job].pop()
        return claim


class FirstOnce(SimFirst):
    """Claim-only and right: it cannot recognise its own claim and says so; a cancelled call costs it its connection."""

    limits = Limits(durable=False, resolves_unknown=False)

    def __init__(self, store: SimStore, skew_ms: int = 0) -> None:
        super().__init__(store, skew_ms)
        self.asked: set[str] = set()
        self.connected = True

    async def claim(self, request: ClaimRequest) -> Claim:
        if request.token in self.asked:
            msg = "this token was asked for before, and nobody can know what came of it"
            raise BackendError(msg)
        self.asked.add(request.token)
        if not self.connected:
            self.connected = True
            msg = "the connection is gone"
            raise BackendUnavailable(msg)
        self.connected = False  # until the answer is here
        claim = await super().claim(request)
        self.connected = True
        return claim

    def mine(self) -> Claim:
        return Claim(Outcome.LOST)


RIGHT: tuple[type[SimBackend | SimFirst], ...] = (SimBackend, SimFirst, FirstOnce)

_KINDS = [value for value in globals().values() if isinstance(value, type) and value.__module__ == __name__]
MUTANTS: tuple[type[SimBackend | SimFirst], ...] = tuple(kind for kind in _KINDS if kind not in RIGHT)
