"""The chaos tier: verdicts on journals made by hand, then real processes on a real store that is killed."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from anarchon.backend import Backend
from anarchon.memory import MemoryBackend
from anarchon.types import Limits, Outcome, RunRecord, RunStatus
from anarchon.url import BackendUrl
from anarchon_conformance.chaos import run as chaos_run
from anarchon_conformance.chaos import run_chaos
from anarchon_conformance.chaos.journal import Event, Journal, Tail, What
from anarchon_conformance.chaos.nemesis import Fault, Trouble, faults_for
from anarchon_conformance.chaos.plan import Role, WorkerPlan
from anarchon_conformance.chaos.run import Phase, surely_remembered_ms
from anarchon_conformance.chaos.verdicts import Evidence, Finding, cases_of, findings, marks_of
from anarchon_conformance.report import Mark, Profile, RunOptions, TierResult, Verdict
from anarchon_conformance.target import Target

SLOT = 1_000_000


def event(what: What, at_ms: float, who: str = "w0", **fields: Any) -> Event:
    """An event of the one slot of these tests; times in milliseconds from the slot."""
    values: dict[str, Any] = {"slot_ms": SLOT, "attempt": 1, "token": f"token-of-{who}", **fields}
    return Event(what, who, SLOT + at_ms, SLOT + at_ms, **values)


def record(attempt: int, status: RunStatus) -> RunRecord:
    return RunRecord("job", SLOT, "", attempt, "t", "i", status, SLOT)


WON = event(What.WON, 10, sent_ms=SLOT + 5)
FINISHED = event(What.FINISHED, 300, sent_ms=SLOT + 295)
TAKEN = event(What.WON, 700, "w1", attempt=2, sent_ms=SLOT + 690)
GOOD = Evidence(
    events=[WON, FINISHED], slots=[SLOT], asked={SLOT: Outcome.DONE}, records=[record(1, RunStatus.SUCCESS)], lease_ms=600
)
TAKEOVER = Evidence(
    events=[WON, TAKEN],
    slots=[SLOT],
    asked={SLOT: Outcome.DONE},
    records=[record(2, RunStatus.INTERRUPTED), record(1, RunStatus.LOST)],
    lease_ms=600,
)


def test_c02_a_fault_explains_a_slot_whose_claims_were_still_under_way() -> None:
    later = Trouble(Fault.KILL_STORE, "w1", 2_000, 4_000, SLOT + 2_000, SLOT + 4_000)
    asked = Evidence(events=[event(What.UNKNOWN, 2_100)], slots=[SLOT], troubles=[later])
    assert findings(asked) == []
    assert [found.clause for found in findings(replace(asked, events=[event(What.UNKNOWN, 500)]))] == ["C2"]


def test_c05_a_slot_whose_claim_stayed_unknown_is_skipped_where_nobody_can_ask_again() -> None:
    unknown = Evidence(events=[event(What.UNKNOWN, 20)], slots=[SLOT])
    assert [found.clause for found in findings(unknown)] == ["C2"]
    assert findings(replace(unknown, resolves_unknown=False)) == []


@pytest.mark.parametrize("evidence", [GOOD, TAKEOVER], ids=["one attempt", "a takeover"])
def test_a_right_history_is_not_blamed(evidence: Evidence) -> None:
    assert findings(evidence) == []


@pytest.mark.parametrize(
    ("clause", "evidence"),
    [
        ("C1", replace(GOOD, events=[WON, event(What.WON, 11, "w1", sent_ms=SLOT + 6), FINISHED])),
        ("C12", replace(TAKEOVER, events=[WON, TAKEN, event(What.WON, 701, "w2", attempt=2, sent_ms=SLOT + 691)])),
        ("C2", Evidence(events=[], slots=[SLOT])),
        ("C6", replace(GOOD, asked={SLOT: Outcome.WON})),
        ("C8", replace(TAKEOVER, records=[record(3, RunStatus.INTERRUPTED), record(1, RunStatus.LOST)])),
        ("C11", replace(TAKEOVER, events=[WON, event(What.WON, 500, "w1", attempt=2, sent_ms=SLOT + 490)])),
        (
            "C11",
            replace(TAKEOVER, events=[WON, event(What.RENEWED, 205, sent_ms=SLOT + 200), TAKEN]),
        ),
        (
            "C15",
            replace(
                TAKEOVER,
                events=[WON, TAKEN, event(What.FINISHED, 720, sent_ms=SLOT + 710)],
                records=[record(2, RunStatus.RUNNING), record(1, RunStatus.SUCCESS)],
            ),
        ),
        (
            "C18",
            replace(
                GOOD,
                events=[WON, FINISHED, event(What.WON, 900, "w1", attempt=2, sent_ms=SLOT + 890)],
                records=[record(2, RunStatus.RUNNING), record(1, RunStatus.SUCCESS)],
            ),
        ),
        ("C19", replace(GOOD, records=[])),
        ("C19", replace(GOOD, records=[record(1, RunStatus.RUNNING)])),
        ("C23", replace(GOOD, events=[*GOOD.events, event(What.HUNG, 900, note="9000 ms")])),
    ],
)
def test_a_wrong_history_is_blamed_on_its_clause(clause: str, evidence: Evidence) -> None:
    assert clause in {finding.clause for finding in findings(evidence)}


def test_two_attempts_that_both_ended_a_run_break_c18() -> None:
    ends = [event(What.RECORDED, 300, token=""), event(What.RECORDED, 900, "w1", attempt=2, token="")]
    found = findings(replace(TAKEOVER, events=ends, records=[record(2, RunStatus.SUCCESS), record(1, RunStatus.SUCCESS)]))
    assert [finding.clause for finding in found] == ["C18"]


def test_a_fault_explains_a_slot_without_a_run() -> None:
    trouble = Trouble(Fault.KILL_STORE, "w0", SLOT - 100, SLOT + 100, SLOT - 100, SLOT + 100)
    assert findings(Evidence(events=[], slots=[SLOT], troubles=[trouble])) == []


def test_a_note_accounts_for_a_slot() -> None:
    assert findings(Evidence(events=[event(What.NOTED, 20, note="overlap")], slots=[SLOT])) == []


def test_what_the_store_did_not_say_at_the_end_is_told_once() -> None:
    unread = replace(GOOD, records=[], unanswered=[Finding("C19", "the history cannot be read")])
    assert [(found.clause, found.sentence) for found in findings(unread)] == [("C19", "the history cannot be read")]


def test_a_finding_tells_its_slot_and_the_faults_around_it() -> None:
    trouble = Trouble(Fault.FREEZE_INSTANCE, "w0", SLOT + 50, SLOT + 800, SLOT + 50, SLOT + 800)
    early = event(What.WON, 500, "w1", attempt=2, sent_ms=SLOT + 490)
    (found,) = findings(replace(TAKEOVER, events=[WON, early], troubles=[trouble]))
    text = "\n".join(found.story)
    assert "w1  won attempt 2" in text
    assert "freeze an instance past its lease (w0)" in text
    assert "undone" in text


def test_marks_and_counts_follow_the_events() -> None:
    unsure = replace(TAKEOVER, events=[event(What.UNKNOWN, 1, "w1"), WON, TAKEN, event(What.FENCED, 710)])
    marks = marks_of(unsure)
    wanted = {Mark.TAKEOVER: 1, Mark.LOST_REPLY_RETRY: 1, Mark.STALE_FINISH: 1, Mark.CONCURRENT: 1}
    assert {mark: marks[mark] for mark in wanted} == wanted
    assert cases_of(TAKEOVER)["C12"] == 1
    assert "C12" not in cases_of(replace(GOOD, lease=False))


def test_a_journal_outlives_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "w0.jsonl"
    with Journal(path, "w0") as journal:
        journal.tell(What.WON, slot_ms=5, attempt=1, token="t", sent_ms=4.5)
    tail = Tail(path)
    assert [(item.what, item.slot_ms, item.sent_ms) for item in tail.read()] == [(What.WON, 5, 4.5)]
    whole = path.read_text()
    with path.open("a") as file:
        file.write(whole[:20])
    assert tail.read() == []
    with path.open("a") as file:
        file.write(whole[20:])
    assert [item.what for item in tail.read()] == [What.WON]
    assert len(tail.events) == 2


def test_a_plan_survives_its_command_line() -> None:
    plan = WorkerPlan(role=Role.CLAIMS, url="acme://h:1/'x y'", job="jöb", instance="w0", journal="/tmp/x y", skew_ms=-3)
    assert WorkerPlan.of_argument(plan.to_argument()) == plan


class Doors(Target):
    url = "acme://localhost:7777"

    async def kill_store(self) -> None: ...

    async def restart_store(self) -> None: ...


def test_faults_depend_on_the_seed_and_the_side_doors() -> None:
    limits = Limits()
    assert faults_for(Doors(), limits, count=9, store_kills=3, seed=4) == faults_for(
        Doors(), limits, count=9, store_kills=3, seed=4
    )
    found = faults_for(Doors(), limits, count=8, store_kills=3, seed=4)
    assert (set(found), found.count(Fault.KILL_STORE)) == (set(Fault), 3)
    forgetful = faults_for(Doors(), replace(limits, durable=False), count=16, store_kills=3, seed=4)
    assert not set(forgetful) & {Fault.KILL_STORE, Fault.RESTART_STORE}
    bare = Target()
    bare.url = "acme://localhost"
    assert set(faults_for(bare, replace(limits, store_clock=False), count=9, store_kills=1, seed=4)) == {
        Fault.KILL_INSTANCE,
        Fault.FREEZE_INSTANCE,
    }


# -- real processes


def _load(name: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


wire = _load("wire_store")


class WireTarget(Target):
    def __init__(self, process: Any) -> None:
        self.process = process
        self.url = process.url

    def make(self, url: str) -> Backend:
        backend: Backend = wire.WireBackend.from_url(BackendUrl.of(url))
        return backend

    async def restart_store(self) -> None:
        self.process.restart(signal.SIGTERM)

    async def kill_store(self) -> None:
        self.process.restart(signal.SIGKILL)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let worker processes find the wire backend as an installed package."""
    folder = tmp_path / "site" / "wire_store-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: wire-store\nVersion: 0\n")
    (folder / "entry_points.txt").write_text("[anarchon.backends]\nwire = wire_store\n")
    monkeypatch.setenv("PYTHONPATH", f"{folder.parent}:{Path(__file__).parent}")


@pytest.fixture(params=[False, True], ids=["durable", "forgetful"])
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    server = wire.WireProcess(tmp_path, forgetful=request.param)
    server.start()
    yield server
    server.end(signal.SIGKILL)


def chaos(target: Target, monkeypatch: pytest.MonkeyPatch, *phases: Phase) -> TierResult:
    """Run the chaos tier with a short programme."""
    monkeypatch.setitem(chaos_run.PHASES, Profile.DEFAULT, phases)
    return asyncio.run(run_chaos(target, RunOptions(seed=7)))


@pytest.mark.usefixtures("installed")
def test_claims_on_a_killed_store_are_kept_or_the_loss_is_found(process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    phase = Phase(role=Role.CLAIMS, faults=7, store_kills=3, period_ms=200, work_ms=300)
    result = chaos(WireTarget(process), monkeypatch, phase)
    broken = {check.clause: check.failure for check in result.checks if check.verdict is not Verdict.PASS}
    if process.forgetful:
        forgotten = broken.get("C6")
        assert forgotten is not None
        assert forgotten.story[0] == "an acknowledged win was forgotten: the slot could be won again"
    else:
        assert broken == {}
        assert result.vacuous == ()
        assert {check.clause for check in result.checks} >= {"C1", "C2", "C6", "C8", "C12", "C18", "C19", "C23"}


class SilentTarget(WireTarget):
    """A store whose answers to the kit's own clients fail once the storm is over: the named call never works again."""

    silent = "history"

    def make(self, url: str) -> Backend:
        backend = super().make(url)
        failing = RuntimeError("the store lost its mind")

        async def refuse(*_arguments: Any, **_options: Any) -> Any:
            raise failing

        if self.silent != "claim" or self.killed:
            setattr(backend, self.silent, refuse)
        return backend

    killed = False

    async def kill_store(self) -> None:
        await super().kill_store()
        self.killed = True


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("process", [False], indirect=True, ids=["durable"])
@pytest.mark.parametrize(
    ("silent", "clause", "sentence"),
    [
        ("history", "C19", "after the storm the history cannot be read: RuntimeError: the store lost its mind"),
        ("claim", "C6", "after the storm nobody can tell whether an acknowledged win is remembered: RuntimeError: "),
    ],
)
def test_a_store_that_does_not_answer_after_the_storm_is_found_out_and_the_rest_judged(
    process: Any, monkeypatch: pytest.MonkeyPatch, silent: str, clause: str, sentence: str
) -> None:
    monkeypatch.setattr(chaos_run, "ASK_PAUSE_MS", 1.0)
    target = SilentTarget(process)
    target.silent = silent
    phase = Phase(role=Role.CLAIMS, faults=2, store_kills=1, period_ms=200, work_ms=100)
    result = chaos(target, monkeypatch, phase)
    broken = {check.clause: check.failure for check in result.checks if check.verdict is not Verdict.PASS}
    assert list(broken) == [clause]
    failure = broken[clause]
    assert failure is not None
    assert failure.story[0].startswith(sentence)
    assert {"C1", "C2", "C18"} <= {check.clause for check in result.checks if check.verdict is Verdict.PASS}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("process", [False], indirect=True, ids=["durable"])
def test_schedulers_keep_the_contract_under_faults(process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    phase = Phase(role=Role.SCHEDULER, faults=3, store_kills=1, period_ms=1_000, work_ms=500)
    result = chaos(WireTarget(process), monkeypatch, phase)
    assert [check.failure for check in result.checks if check.verdict is not Verdict.PASS] == []
    assert "scheduler: " in result.notes[0]


class OwnProcessTarget(Target):
    url = "memory://chaos"

    def make(self, url: str) -> Backend:
        return MemoryBackend.from_url(BackendUrl.of(url))


def test_a_store_that_processes_cannot_share_is_not_run() -> None:
    result = asyncio.run(run_chaos(OwnProcessTarget(), RunOptions()))
    assert {(check.verdict, check.detail) for check in result.checks} == {
        (Verdict.NOT_RUN, "another process with the same URL does not see this store")
    }


def test_a_url_that_workers_cannot_use_is_not_run() -> None:
    target = OwnProcessTarget()
    target.make = lambda url: MemoryBackend()  # type: ignore[method-assign]
    target.url = "nobody-serves-this://x"
    result = asyncio.run(run_chaos(target, RunOptions()))
    assert {check.verdict for check in result.checks} == {Verdict.NOT_RUN}
    assert "no backend serves 'nobody-serves-this://'" in result.checks[0].detail


def test_a_storm_asks_a_store_with_a_short_memory_only_for_what_it_must_remember() -> None:
    assert surely_remembered_ms(Limits()) > 10**8
    assert surely_remembered_ms(Limits(remembers_ms=300_000)) == 280_000
    assert surely_remembered_ms(Limits(remembers_ms=5_000)) == 0
