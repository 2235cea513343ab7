"""A backend with a name whose every call is told to a story, so that a failure explains itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from anarchon.backend import Backend, LeaseBackend
from anarchon.errors import BackendError
from anarchon.types import Claim, ClaimRequest, JobView, Limits, Outcome, RunKey, RunRecord, RunResult, RunStatus, RunView

__all__ = ["ASKS_MAX", "Client", "Story"]

ASKS_MAX = 6
STORY_LINES_MAX = 40

T = TypeVar("T")


class Story:
    """The calls of one test in the order in which they ended."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def tell(self, who: str, what: str, answer: str) -> None:
        """Add one call."""
        self._lines.append(f"{len(self._lines) + 1:4d}  {who}  {what}  -> {answer}")

    def lines(self) -> tuple[str, ...]:
        """Return the newest lines."""
        hidden = len(self._lines) - STORY_LINES_MAX
        head = (f"      ({hidden} earlier calls)",) if hidden > 0 else ()
        return (*head, *self._lines[-STORY_LINES_MAX:])


def _name(key: RunKey) -> str:
    return f"{key.job!r:.60}@{key.slot_ms}{'/' + key.space if key.space else ''}"


def _shown(answer: object) -> str:
    if isinstance(answer, Claim):
        parts = [answer.outcome.name]
        if answer.won:
            parts.append(f"attempt {answer.attempt}")
        if answer.left_ms is not None:
            parts.append(f"{answer.left_ms} ms left")
        if answer.store_now_ms is not None:
            parts.append(f"at {answer.store_now_ms}")
        return " ".join(parts)
    if isinstance(answer, RunView):
        return f"{answer.status.value} attempt {answer.attempt}, {answer.left_ms} ms left"
    if isinstance(answer, RunRecord):
        return f"{answer.slot_ms}{answer.space} attempt {answer.attempt} {answer.status.value}"
    if isinstance(answer, BackendError):
        return f"{type(answer).__name__}: {answer!s:.120}"
    if isinstance(answer, list | tuple):
        return "[" + ", ".join(_shown(item) for item in answer[:8]) + (", ..." if len(answer) > 8 else "") + "]"
    return f"{answer!r:.120}"


class Client:
    """One instance's view of the store."""

    def __init__(self, name: str, backend: Backend, story: Story) -> None:
        self.name = name
        self.backend = backend
        self._story = story

    @property
    def limits(self) -> Limits:
        """What the backend says about itself."""
        return self.backend.limits

    @property
    def lease(self) -> LeaseBackend:
        """The backend as a lease backend."""
        assert isinstance(self.backend, LeaseBackend), "a lease test needs a lease backend"
        return self.backend

    async def _told(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        try:
            answer = await call()
        except BaseException as error:  # border: backend call - told, then raised on
            self._story.tell(self.name, what, f"{type(error).__name__}: {error!s:.120}")
            raise
        self._story.tell(self.name, what, _shown(answer))
        return answer

    async def claim(self, request: ClaimRequest) -> Claim:
        """Claim once."""
        what = f"claim {_name(request.key)} {request.token[:6]}"
        return await self._told(what, lambda: self.backend.claim(request))

    async def claim_surely(self, request: ClaimRequest) -> Claim:
        """Claim as the core does: an unknown answer is asked again with the same token, where that helps (K2)."""
        asks = ASKS_MAX if self.limits.resolves_unknown else 1
        for _ in range(asks - 1):
            try:
                answer = await self.claim(request)
            except BackendError:
                continue
            if answer.outcome is not Outcome.UNKNOWN:
                return answer
        return await self.claim(request)

    async def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Claim | BackendError]:
        """Claim a batch."""
        what = f"claim_many of {len(requests)}: {', '.join(_name(request.key) for request in requests[:4])}"
        return await self._told(what, lambda: self.backend.claim_many(requests))

    async def finish(self, key: RunKey, token: str, status: RunStatus = RunStatus.SUCCESS, error: str | None = None) -> bool:
        """Finish a run."""
        what = f"finish {_name(key)} {token[:6]} {status.value}"
        return await self._told(what, lambda: self.backend.finish(key, token, RunResult(status, error)))

    async def history(self, job: str, *, limit: int = 100, since_ms: int = 0) -> list[RunRecord]:
        """Read the newest attempts."""
        what = f"history {job!r:.60} limit {limit} since {since_ms}"
        return await self._told(what, lambda: self.backend.history(job, limit=limit, since_ms=since_ms))

    async def renew(self, key: RunKey, token: str, lease_ms: int) -> bool:
        """Renew a lease."""
        what = f"renew {_name(key)} {token[:6]} for {lease_ms} ms"
        return await self._told(what, lambda: self.lease.renew(key, token, lease_ms))

    async def renew_many(self, items: Sequence[tuple[RunKey, str, int]]) -> list[bool | BackendError]:
        """Renew a batch."""
        return await self._told(f"renew_many of {len(items)}", lambda: self.lease.renew_many(items))

    async def release(
        self, key: RunKey, token: str, *, delay_ms: int = 0, counted: bool = False, error: str | None = None
    ) -> bool:
        """Release a run."""
        what = f"release {_name(key)} {token[:6]} delay {delay_ms} ms{' counted' if counted else ''}"
        return await self._told(what, lambda: self.lease.release(key, token, delay_ms=delay_ms, counted=counted, error=error))

    async def check(self, *keys: RunKey) -> list[RunView | None]:
        """Look at runs."""
        return await self._told(f"check {', '.join(_name(key) for key in keys[:4])}", lambda: self.lease.check(keys))

    async def unfinished(self, *jobs: str) -> list[RunView]:
        """Look for runs that are not final."""
        return await self._told(f"unfinished {', '.join(jobs)!r:.80}", lambda: self.lease.unfinished(jobs))

    async def job(self, name: str) -> JobView | None:
        """Return what the store keeps about one job."""
        views = await self._told("jobs", self.lease.jobs)
        return next((view for view in views if view.job == name), None)

    async def pause(self, job: str) -> None:
        """Pause a job."""
        await self._told(f"pause {job!r:.60}", lambda: self.lease.set_paused(job, True))  # noqa: FBT003 - the border's signature

    async def resume(self, job: str) -> None:
        """Resume a job."""
        await self._told(f"resume {job!r:.60}", lambda: self.lease.set_paused(job, False))  # noqa: FBT003 - see pause

    async def now_ms(self) -> int | None:
        """Read the store's clock."""
        return await self.backend.now_ms()
