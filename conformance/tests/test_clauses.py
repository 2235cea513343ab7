"""The clause suites: right backends pass, wrong ones fail at the clause that they break, and the story tells why."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from anarchon.backend import Backend
from anarchon.clock import SystemClock
from anarchon.contract import CLAUSES, Scope
from anarchon.errors import BackendError
from anarchon.memory import MemoryBackend, MemoryStore
from anarchon.types import Claim, ClaimRequest, Limits, Outcome, RunKey, RunRecord, RunResult
from anarchon_conformance.clauses import ClaimSuite, LeaseSuite
from anarchon_conformance.report import RunOptions, TierResult, Verdict
from anarchon_conformance.suite import Suite, run_suite
from anarchon_conformance.suite import tests_of as clauses_of
from anarchon_conformance.target import Target


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


wire = _load("wire_store")


class SteppedClock(SystemClock):
    """The store's clock, which a test may step."""

    def __init__(self) -> None:
        self.off_ms = 0

    def wall_ms(self) -> float:
        return super().wall_ms() + self.off_ms


class ReferenceTarget(Target):
    """The reference store in this process, with every side door that makes sense for it."""

    def __init__(self, kind: type[MemoryBackend] = MemoryBackend) -> None:
        self.store_clock = SteppedClock()
        self.store = MemoryStore(self.store_clock)
        self.kind = kind

    def make(self, url: str) -> Backend:
        return self.kind(self.store)

    def make_skewed(self, skew_ms: int) -> Backend:
        return self.kind(self.store)

    async def step_clock(self, delta_ms: int) -> None:
        self.store_clock.off_ms += delta_ms


class WireTarget(Target):
    """The reference store behind a wire, in a process that can be restarted and killed."""

    kind: ClassVar[Any] = wire.WireBackend

    def __init__(self, process: Any, kind: Any = None) -> None:
        self.process = process
        self.url = process.url
        self.made = kind or self.kind

    def make(self, url: str) -> Backend:
        from anarchon.url import BackendUrl

        backend: Backend = self.made.from_url(BackendUrl.of(url))
        return backend

    async def restart_store(self) -> None:
        self.process.restart(signal.SIGTERM)

    async def kill_store(self) -> None:
        self.process.restart(signal.SIGKILL)


def verdicts(result: TierResult) -> dict[str, str]:
    """Return what is not a plain pass: test or clause, and the first line of why."""
    return {
        (check.failure.where if check.failure else check.clause): f"{check.verdict.value}: {check.detail}"
        for check in result.checks
        if check.verdict is not Verdict.PASS
    }


def judged(target: Target, suite: type[Suite] = LeaseSuite, only: str | None = None) -> TierResult:
    """Run a suite, or one test of it."""
    made = type("Made", (suite,), {"target": target})()
    return asyncio.run(run_suite(made, RunOptions(replay=only)))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Any]:
    server = wire.WireProcess(tmp_path)
    server.start()
    yield server
    server.end(signal.SIGKILL)


def test_every_clause_has_a_test_of_its_own() -> None:
    cited = {clause for clause, _ in clauses_of(LeaseSuite)}
    assert cited == {entry.number for entry in CLAUSES if entry.scope is not Scope.SCHEDULER}


def test_the_claim_suite_tests_no_lease() -> None:
    cited = {clause for clause, _ in clauses_of(ClaimSuite)}
    leases = {entry.number for entry in CLAUSES if entry.scope is Scope.LEASE}
    assert cited & leases <= {"C9"}


def test_the_reference_passes() -> None:
    found = verdicts(judged(ReferenceTarget()))
    missing = {"C5": "wire", "C6": "restart_store", "C23": "restart_store", "C24": "wire"}
    assert {clause: verdict.startswith("not run") for clause, verdict in found.items()} == dict.fromkeys(missing, True)


def test_a_store_on_a_wire_passes_with_its_restarts(process: Any) -> None:
    found = verdicts(judged(WireTarget(process)))
    assert found.pop("C11", "").startswith("not run: Target.make_skewed")
    assert found.pop("C25", "").startswith("not run: Target.step_clock")
    assert found.pop("C13", "not claimed").startswith("not claimed")  # 1,000 attempts may be too slow here
    assert found == {}


class FirstOnly(Backend):
    """A claim-only backend: who is first, with the winner's token, on an honest little store."""

    limits = Limits(remembers_ms=900_000, store_clock=False, durable=False)

    def __init__(self, runs: dict[RunKey, RunRecord], *, limits: Limits | None = None) -> None:
        self._runs = runs
        self.limits = limits or type(self).limits

    @classmethod
    def from_url(cls, url: object) -> FirstOnly:
        raise NotImplementedError

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def claim(self, request: ClaimRequest) -> Claim:
        from anarchon.types import RunStatus

        key = request.key
        held = self._runs.get(key)
        if held is not None:
            same = held.token == request.token and self.limits.resolves_unknown
            return Claim(Outcome.WON, 1) if same else Claim(Outcome.LOST)
        if self.limits.ordered and any(run.job == key.job and run.slot_ms > key.slot_ms for run in self._runs):
            return Claim(Outcome.LATE)
        now_ms = int(SystemClock().wall_ms())
        self._runs[key] = RunRecord(
            key.job, key.slot_ms, key.space, 1, request.token, request.instance, RunStatus.RUNNING, now_ms
        )
        return Claim(Outcome.WON, 1)

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        held = self._runs.get(key)
        if held is None or held.token != token:
            return False
        if not held.status.final:
            now_ms = int(SystemClock().wall_ms())
            self._runs[key] = replace(held, status=result.status, error=result.error, finished_ms=now_ms)
        return True

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        runs = [run for run in self._runs.values() if run.job == job and run.slot_ms >= since_ms]
        return sorted(runs, key=lambda run: run.slot_ms, reverse=True)[:limit]


class FirstTarget(Target):
    def __init__(self, limits: Limits) -> None:
        self.runs: dict[RunKey, RunRecord] = {}
        self.told = limits

    def make(self, url: str) -> Backend:
        return FirstOnly(self.runs, limits=self.told)


@pytest.mark.parametrize(
    "limits",
    [
        FirstOnly.limits,
        replace(FirstOnly.limits, resolves_unknown=False),
        replace(FirstOnly.limits, ordered=True),
    ],
    ids=["tokens", "no tokens", "ordered"],
)
def test_claim_only_backends_pass(limits: Limits) -> None:
    result = judged(FirstTarget(limits), ClaimSuite)
    assert [check.failure for check in result.checks if check.failure] == []


def test_what_is_not_promised_is_not_claimed() -> None:
    limits = replace(FirstOnly.limits, resolves_unknown=False)
    rows = {check.clause: check for check in judged(FirstTarget(limits), ClaimSuite).checks if check.clause in {"C4"}}
    assert rows["C4"].verdict is Verdict.NOT_CLAIMED
    assert rows["C4"].detail == "limits.resolves_unknown is False"


# -- backends broken on purpose; the zoo has more, these are the ones that only this tier meets


class GuessesLost(wire.WireBackend):  # type: ignore[misc,name-defined]
    async def claim(self, request: ClaimRequest) -> Claim:
        try:
            return await super().claim(request)  # type: ignore[no-any-return]
        except BackendError:
            return Claim(Outcome.LOST)


class GuessesWon(wire.WireBackend):  # type: ignore[misc,name-defined]
    async def claim(self, request: ClaimRequest) -> Claim:
        try:
            return await super().claim(request)  # type: ignore[no-any-return]
        except BackendError:
            return Claim(Outcome.WON, 1)


class KeepsTheBrokenConnection(wire.WireBackend):  # type: ignore[misc,name-defined]
    def drop(self) -> None: ...

    async def close(self) -> None:
        super().drop()


class HangsInSilence(wire.WireBackend):  # type: ignore[misc,name-defined]
    async def call(self, name: str, *arguments: object, **options: object) -> Any:
        task = asyncio.ensure_future(super().call(name, *arguments, **options))
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                continue
        return task.result()


class AnswersTheLastQuestion(wire.WireBackend):  # type: ignore[misc,name-defined]
    _streams: Any

    async def call(self, name: str, *arguments: object, **options: object) -> Any:
        """Keep the connection when cancelled, so that the next call reads this one's answer."""
        async with self._lock:
            if self._streams is None:
                self._streams = await asyncio.open_connection(*self._address)
            reader, writer = self._streams
            writer.write(wire.message((name, arguments, options)))
            return await wire.read_message(reader)


class LeavesASocket(MemoryBackend):
    kept: ClassVar[list[socket.socket]] = []

    async def open(self) -> None:
        self.kept.append(socket.socket())


class LeavesAThread(MemoryBackend):
    stop: ClassVar[threading.Event] = threading.Event()

    async def open(self) -> None:
        threading.Thread(target=self.stop.wait, daemon=True).start()


class LeavesATask(MemoryBackend):
    kept: ClassVar[list[Any]] = []

    async def open(self) -> None:
        self.kept.append(asyncio.ensure_future(asyncio.Event().wait()))


class FoldsNames(MemoryBackend):
    async def claim(self, request: ClaimRequest) -> Claim:
        return await super().claim(replace(request, key=replace(request.key, job=request.key.job.strip().lower())))


class OldestFirst(MemoryBackend):
    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        return (await super().history(job, limit=limit, since_ms=since_ms))[::-1]


class CannotOpenTwice(MemoryBackend):
    opened = False

    async def open(self) -> None:
        if self.opened:
            msg = "open already"
            raise BackendError(msg)
        self.opened = True


class ForgetsTheRestOfABatch(MemoryBackend):
    async def claim_many(self, requests: Any) -> Any:
        return (await super().claim_many(requests[:5])) + [Claim(Outcome.RUNNING) for _ in requests[5:]]


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (FoldsNames, "test_c07_jobs_with_hostile_names_do_not_touch"),
        (OldestFirst, "test_c19_newest_slot_comes_first"),
        (CannotOpenTwice, "test_c21_opening_twice_works"),
        (ForgetsTheRestOfABatch, "test_c02_a_batch_of_fresh_slots_is_all_won"),
        (LeavesAThread, "test_c24_no_task_thread_or_socket_stays"),
        (LeavesASocket, "test_c24_no_task_thread_or_socket_stays"),
        (LeavesATask, "test_c24_no_task_thread_or_socket_stays"),
    ],
)
def test_a_backend_that_breaks_a_clause_fails_it(kind: type[MemoryBackend], test: str) -> None:
    LeavesAThread.stop.clear()
    (check,) = judged(ReferenceTarget(kind), only=test).checks
    LeavesAThread.stop.set()
    while LeavesASocket.kept:
        LeavesASocket.kept.pop().close()
    assert check.verdict is Verdict.VIOLATED


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (GuessesLost, "test_c05_a_lost_reply_is_no_refusal"),
        (GuessesWon, "test_c05_a_refused_claim_with_a_lost_reply_is_no_win"),
        (KeepsTheBrokenConnection, "test_c23_a_cut_connection_does_not_poison_the_next_call"),
        (HangsInSilence, "test_c23_a_silent_connection_ends_with_the_deadline"),
        (AnswersTheLastQuestion, "test_c22_a_cancelled_claim_is_all_or_nothing"),
    ],
)
def test_a_client_that_breaks_a_clause_fails_it(process: Any, kind: Any, test: str) -> None:
    (check,) = judged(WireTarget(process, kind), only=test).checks
    assert check.verdict is Verdict.VIOLATED


def test_a_store_that_forgets_when_killed_fails_c6(tmp_path: Path) -> None:
    server = wire.WireProcess(tmp_path, forgetful=True)
    server.start()
    try:
        (check,) = judged(WireTarget(server), only="test_c06_a_won_run_survives_a_killed_store").checks
    finally:
        server.end(signal.SIGKILL)
    assert (check.verdict, check.clause) == (Verdict.VIOLATED, "C6")


def test_a_failure_tells_the_story() -> None:
    (check,) = judged(ReferenceTarget(OldestFirst), only="test_c19_the_limit_keeps_the_newest").checks
    assert check.failure is not None
    assert check.failure.story[0].startswith("the slots of a history of two: expected")
    assert "  A  claim " in check.failure.story[1]
    assert "-> WON attempt 1" in check.failure.story[1]
    assert check.failure.replay == "clauses:test_c19_the_limit_keeps_the_newest"
