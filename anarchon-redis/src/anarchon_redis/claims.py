"""The one way of a claim through every strategy: command, reply, sometimes a second question. Many go in one pipeline."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from anarchon.errors import BackendError
from anarchon.types import Claim, ClaimRequest

from anarchon_redis.base import RedisBase
from anarchon_redis.link import Command, Reply
from anarchon_redis.records import claim_of

__all__ = ["Claiming", "Question"]

JOBS_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Question:
    """A command, the places of the requests that it decides, and whether its reply is a list of answers."""

    command: Command
    places: Sequence[int]
    several: bool = False


class Claiming(RedisBase):
    """A backend whose claim is one command a request, each a step of its own in the store (C3)."""

    @abstractmethod
    def _command(self, request: ClaimRequest) -> Command:
        """Return the command that decides a claim."""

    def _second(self, request: ClaimRequest, error: BackendError) -> Command | None:
        """Return what to ask after a refusal that is no answer yet, or None."""
        del request, error
        return None

    async def _prepare(self, jobs: set[str]) -> None:
        """Make the store ready for jobs that this process has not claimed before."""

    async def _born(self, jobs: set[str]) -> None:
        """Take note of jobs that the store did not know before these claims."""

    def _learn(self, claim: Claim, sent_ms: float, received_ms: float) -> None:
        """Take the store's time from an answer; the times are monotonic."""

    def _read(self, request: ClaimRequest, reply: Reply) -> tuple[Claim, bool]:
        return claim_of(request.key.job, reply)

    def _won(self, command: Command, reply: Reply) -> bool:
        """Return whether a reply says that its claim is won."""
        del command
        head = reply[0] if isinstance(reply, list) else reply
        return isinstance(head, bytes) and head.startswith(b"won|")

    async def claim(self, request: ClaimRequest) -> Claim:
        return await self._link.within(lambda: self._claim(request))

    async def _claim(self, request: ClaimRequest) -> Claim:
        """Claim one run: as `_claims`, without what only many need."""
        job = request.key.job
        if job not in self._prepared:
            await self._prepare({job})
            self._remember({job})
        command: Command | None = self._command(request)
        while command is not None:
            sent_ms = time.monotonic() * 1000
            (reply,) = await self._link.run_sure((command,), self._won)
            if not isinstance(reply, BackendError):
                claim, is_new = self._read(request, reply)
                self._learn(claim, sent_ms, time.monotonic() * 1000)
                if is_new:
                    await self._born({job})
                return claim
            command = self._second(request, reply) if command[0] == "XADD" else None
        raise reply

    async def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Claim | BackendError]:
        return await self._link.within(lambda: self._claims(requests)) if requests else []

    async def _claims(self, requests: Sequence[ClaimRequest]) -> list[Claim | BackendError]:
        new = {request.key.job for request in requests} - self._prepared
        if new:
            await self._prepare(new)
            self._remember(new)
        answers: dict[int, Claim | BackendError] = {}
        born: set[str] = set()
        questions = self._questions(requests)
        while questions:
            sent_ms = time.monotonic() * 1000
            replies = await self._link.run_sure([question.command for question in questions], self._won)
            received_ms = time.monotonic() * 1000
            asked, questions = questions, []
            for question, reply in zip(asked, replies, strict=True):
                for place, part in zip(question.places, self._parts(question, reply), strict=True):
                    request = requests[place]
                    if isinstance(part, BackendError):
                        second = self._second(request, part) if question.command[0] == "XADD" else None
                        if second is None:
                            answers[place] = part
                        else:
                            questions.append(Question(second, (place,)))
                        continue
                    claim, is_new = self._read(request, part)
                    answers[place] = claim
                    self._learn(claim, sent_ms, received_ms)
                    if is_new:
                        born.add(request.key.job)
        if born:
            await self._born(born)
        return [answers[place] for place in range(len(requests))]

    def _questions(self, requests: Sequence[ClaimRequest]) -> list[Question]:
        """Return what to ask: one command a request."""
        return [Question(self._command(request), (place,)) for place, request in enumerate(requests)]

    def _parts(self, question: Question, reply: Reply) -> Sequence[Reply]:
        """Return the reply to each request of a question; an item's failure is its own."""
        if not question.several or isinstance(reply, BackendError):
            return [reply] * len(question.places)
        return self._link.explained(reply)

    def _remember(self, jobs: set[str]) -> None:
        if len(self._prepared) > JOBS_REMEMBERED:
            self._prepared.clear()
        self._prepared |= jobs
