"""Start, stop and the life between (K5, K6, K9, K12), on virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest
from anarchon.errors import BackendError, StoreSetupError
from anarchon.types import Claim, ClaimRequest, RunKey, RunStatus
from rig import START_MS, FaultyBackend, Grid, Lab, Slots, Work, job_of, passes, until, virtual

SLOT_MS = START_MS + 1_000


# -- stop (K6) --------------------------------------------------------------------------------------------------------


@virtual
async def test_k6_stop_waits_for_running_handlers_and_claims_nothing_new(lab: Lab) -> None:
    work = Work(duration_ms=10_000)
    instance = await lab.start(job_of(Grid(1_000), work, overlap="allow"))
    await lab.at(3_500)
    await instance.stop()
    assert [(slot_ms - START_MS) for slot_ms, _ in work.started] == [1_000, 2_000, 3_000]
    assert len(work.ended) == 3
    assert set(lab.statuses().values()) == {"success"}
    assert instance.backend.closed == 1


@virtual
async def test_k6_what_does_not_finish_within_the_grace_is_cancelled_and_handed_over_uncounted(lab: Lab) -> None:
    work = Work(duration_ms=100_000)
    instance = await lab.start(job_of(Slots(SLOT_MS), work, max_attempts=1), grace_ms=8_000)
    await lab.at(2_000)
    asked_ms = lab.now_ms()
    await instance.stop()
    assert lab.now_ms() - asked_ms <= 8_000 + 100
    assert work.cancelled == [(SLOT_MS, 1)]
    assert lab.held() == []
    second = Work()
    await lab.start(job_of(Slots(SLOT_MS), second, max_attempts=1))
    await until(lambda: bool(second.ended), "another instance runs it", 1_000)
    assert second.started == [(SLOT_MS, 2)]
    assert [record.status for record in lab.history()] == [RunStatus.HANDED_OVER, RunStatus.SUCCESS]


@virtual
async def test_k6_a_handler_that_cannot_be_stopped_is_released_and_named(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    work = Work(duration_ms=100_000, stubborn_ms=1_000_000)
    instance = await lab.start(job_of(Slots(SLOT_MS), work, name="stubborn"), grace_ms=4_000)
    await lab.at(2_000)
    asked_ms = lab.now_ms()
    with caplog.at_level(logging.WARNING, "anarchon"):
        await instance.stop()
    assert lab.now_ms() - asked_ms <= 4_000 + 1_000
    assert lab.held("stubborn") == []
    assert [record.status for record in lab.history("stubborn")] == [RunStatus.HANDED_OVER]
    assert any("stubborn" in text and "cannot be stopped" in text for text in caplog.messages)


@virtual
async def test_k6_a_second_stop_cuts_the_grace_short(lab: Lab) -> None:
    work = Work(duration_ms=100_000)
    instance = await lab.start(job_of(Slots(SLOT_MS), work), grace_ms=60_000)
    await lab.at(2_000)
    instance.engine.stop()
    await passes(5_000)
    assert not instance.task.done()
    asked_ms = lab.now_ms()
    instance.engine.stop_now()
    await asyncio.wait_for(instance.task, 100)
    assert lab.now_ms() - asked_ms <= 2_000
    assert lab.held() == []


@virtual
async def test_k6_a_handler_that_cleans_up_after_its_cancellation_has_time_for_it(lab: Lab) -> None:
    work = Work(duration_ms=100_000, stubborn_ms=500)
    instance = await lab.start(job_of(Slots(SLOT_MS), work), grace_ms=8_000)
    await lab.at(2_000)
    await instance.stop()
    assert work.ended == [(SLOT_MS, 1)]
    assert lab.statuses() == {SLOT_MS: "success"}


@virtual
async def test_k6_a_stop_while_the_store_is_away_ends_within_the_grace_and_a_second(lab: Lab) -> None:
    work = Work(duration_ms=100_000)
    instance = await lab.start(job_of(Slots(SLOT_MS), work), grace_ms=4_000)
    await lab.at(2_000)
    instance.backend.down = True
    asked_ms = lab.now_ms()
    await instance.stop()
    assert lab.now_ms() - asked_ms <= 4_000 + 1_000
    assert work.cancelled == [(SLOT_MS, 1)]


@pytest.mark.parametrize("operation", ["open", "now", "unfinished", "jobs"])
@virtual
async def test_k6_a_stop_while_the_store_hangs_at_the_start_ends(lab: Lab, operation: str) -> None:
    backend = FaultyBackend(lab.store)
    lab.won(RunKey("job", START_MS), lease_ms=100)
    backend.hooks[operation] = asyncio.Event().wait  # type: ignore[assignment]  # waits for ever
    instance = lab.launch(job_of(Grid(1_000)), backend=backend, grace_ms=4_000)
    await lab.at(1_000)
    asked_ms = lab.now_ms()
    await instance.stop()
    assert lab.now_ms() - asked_ms <= 4_000 + 1_000
    assert lab.held() == [] or lab.held()[0].instance == "stranger"


@virtual
async def test_k6_a_stop_during_the_start_hands_over_what_was_recovered_already(lab: Lab) -> None:
    lab.won(RunKey("job", START_MS), lease_ms=100)
    lab.clock.step(200)
    backend, work = FaultyBackend(lab.store), Work(duration_ms=60_000)
    backend.late_ms["jobs"] = 2_000
    instance = lab.launch(job_of(Grid(1_000), work, max_late=600), backend=backend, grace_ms=4_000)
    await until(lambda: bool(work.started), "the left run is taken over", 1_000)
    await instance.stop()
    assert lab.held() == []
    assert work.running == 0


@virtual
async def test_k6_claims_under_way_at_a_stop_leave_nothing_held(lab: Lab) -> None:
    backend = FaultyBackend(lab.store)
    backend.late_ms |= {"claim": 700, "claim_many": 700}
    jobs = [job_of(Slots(SLOT_MS), Work(duration_ms=60_000), name=f"job-{number}") for number in range(20)]
    instance = await lab.start(*jobs, backend=backend, grace_ms=4_000)
    await until(lambda: bool(lab.held("job-0")), "the claims are in the store", 3_000)
    await instance.stop()
    assert [held for number in range(20) for held in lab.held(f"job-{number}")] == []


@virtual
async def test_k6_slots_that_wait_for_a_place_are_left_to_others(lab: Lab) -> None:
    work = Work(duration_ms=5_000)
    instance = await lab.start(job_of(Grid(1_000), work, overlap="allow"), max_running=2)
    await lab.at(4_500)
    await instance.stop()
    assert len(work.started) == 2
    other = Work()
    await lab.start(job_of(Grid(1_000), other, overlap="allow"))
    await passes(2_000)
    assert other.started


# -- bounds (K9) ------------------------------------------------------------------------------------------------------


@virtual
async def test_k9_at_most_max_running_handlers_run_and_all_get_their_turn(lab: Lab) -> None:
    work = Work(duration_ms=500)
    jobs = [job_of(Slots(SLOT_MS), work, name=f"job-{number}") for number in range(30)]
    await lab.start(*jobs, max_running=4)
    await lab.at(10_000)
    assert work.most_running == 4
    assert len(work.ended) == 30


@virtual
async def test_k9_a_full_instance_leaves_slots_to_a_free_one(lab: Lab) -> None:
    mine, theirs = Work(duration_ms=30_000), Work(duration_ms=10)
    names = [f"job-{number}" for number in range(6)]
    await lab.start(*(job_of(Slots(SLOT_MS), mine, name=name) for name in names), max_running=1)
    await lab.start(*(job_of(Slots(SLOT_MS), theirs, name=name, jitter=0) for name in names))
    await lab.at(5_000)
    assert len(mine.started) + len(theirs.started) == 6
    assert len(mine.started) <= 1


@virtual
async def test_k9_places_come_back_after_every_kind_of_end(lab: Lab) -> None:
    work = Work(error=ValueError("no"))
    instance = await lab.start(job_of(Grid(1_000), work, timeout=0.2), max_running=1)
    await lab.at(3_500)
    work.error, work.duration_ms = None, 10_000
    await lab.at(6_500)
    instance.backend.lose["claim"] = 1
    work.duration_ms = 0
    await lab.at(20_500)
    assert len(lab.statuses()) == 20
    assert lab.statuses()[START_MS + 20_000] == "success"
    assert instance.engine.attempts._places._value == 1


# -- the store away (K12) ---------------------------------------------------------------------------------------------


@virtual
async def test_k12_a_store_that_is_unreachable_for_the_first_minute_starts_late_and_runs(lab: Lab) -> None:
    work, backend = Work(), FaultyBackend(lab.store)
    backend.down = True
    instance = lab.launch(job_of(Grid(10_000), work), backend=backend)
    await until(instance.engine.tried.is_set, "the start has been tried", 1_000)
    await lab.at(60_500)
    assert not instance.engine.ready.is_set()
    assert instance.engine.store.failing
    backend.down = False
    await lab.at(85_000)
    assert work.started[-1] == (START_MS + 80_000, 1)
    assert not instance.engine.store.failing
    assert [entry for entry in work.started if entry[0] > START_MS + 66_000] == [
        (START_MS + 70_000, 1),
        (START_MS + 80_000, 1),
    ]


@virtual
async def test_k12_a_store_that_fails_in_the_middle_and_returns_loses_no_slot_within_max_late(lab: Lab) -> None:
    work = Work(duration_ms=100)
    instance = await lab.start(job_of(Grid(10_000), work, overlap="allow"))
    await lab.at(15_000)
    instance.backend.down = True
    await lab.at(55_000)
    instance.backend.down = False
    await lab.at(95_000)
    assert sorted(work.started) == [(START_MS + second * 10_000, 1) for second in range(1, 10)]
    assert lab.tape.of("run_missed") == []


@virtual
async def test_a_store_that_cannot_do_the_work_ends_the_start_with_its_reason(lab: Lab) -> None:
    backend = FaultyBackend(lab.store)

    async def refuse() -> None:
        msg = "no rights"
        raise StoreSetupError(msg)

    backend.hooks["open"] = refuse
    instance = lab.launch(job_of(Grid(1_000)), backend=backend)
    with pytest.raises(StoreSetupError, match="no rights"):
        await asyncio.wait_for(instance.task, 10)


@virtual
async def test_k5_a_backend_that_answers_nonsense_stops_neither_its_slots_nor_others(lab: Lab) -> None:
    class Odd(FaultyBackend):
        odd = True

        async def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Claim | BackendError]:
            answers = await super().claim_many(requests)
            return answers[:1] if self.odd else answers

        async def claim(self, request: ClaimRequest) -> Claim:
            answer = await super().claim(request)
            return answer if not self.odd else None  # type: ignore[return-value]  # that is the nonsense

    backend = Odd(lab.store)
    work = Work()
    jobs = [job_of(Slots(SLOT_MS), work, name=f"job-{number}") for number in range(5)]
    await lab.start(*jobs, backend=backend)
    await lab.at(5_000)
    backend.odd = False
    await lab.at(20_000)
    assert sorted(work.started) == [(SLOT_MS, 1)] * 5


@pytest.mark.parametrize("error", [RuntimeError("odd"), asyncio.CancelledError(), KeyError(), TimeoutError(), OSError(5, "x")])
@virtual
async def test_k5_whatever_a_driver_raises_is_a_failed_call(lab: Lab, error: BaseException) -> None:
    work, backend = Work(), FaultyBackend(lab.store)
    armed = [4]

    async def fail() -> None:
        if armed[0]:
            armed[0] -= 1
            raise error

    await lab.start(job_of(Grid(1_000), work), backend=backend)
    for operation in ("claim", "finish", "renew", "check", "history", "unfinished", "jobs", "now"):
        backend.hooks[operation] = fail
    await lab.at(30_500)
    assert work.started[0] == (SLOT_MS, 1)
    assert len(work.started) == 30


# -- jobs come and go -------------------------------------------------------------------------------------------------


@virtual
async def test_a_job_added_while_running_starts_with_its_next_slot(lab: Lab) -> None:
    work = Work()
    instance = await lab.start()
    await lab.at(2_500)
    instance.engine.add_job(job_of(Grid(1_000), work))
    await lab.at(4_500)
    assert [slot_ms - START_MS for slot_ms, _ in work.started] == [3_000, 4_000]


@virtual
async def test_a_removed_job_claims_no_more_and_its_run_goes_on_to_its_end(lab: Lab) -> None:
    work = Work(duration_ms=3_500)
    instance = await lab.start(job_of(Grid(1_000), work, lease=3), job_of(Grid(1_000), Work(), name="other"))
    await lab.at(1_500)
    instance.engine.remove_job("job")
    await lab.at(10_000)
    assert work.ended == [(SLOT_MS, 1)]
    assert lab.statuses() == {SLOT_MS: "success"}
    assert len(lab.statuses("other")) >= 8


@virtual
async def test_a_run_that_a_removed_jobs_runner_leaves_is_no_business_of_this_instance(lab: Lab) -> None:
    work = Work()
    instance = await lab.start(job_of(Slots(SLOT_MS), work, lease=2))
    lab.clock.step(2_000)
    lab.won(RunKey("job", SLOT_MS), lease_ms=2_000)
    await lab.at(3_500)
    instance.engine.remove_job("job")
    await lab.at(60_000)
    assert work.started == []


@virtual
async def test_a_job_replaced_while_running_runs_the_new_handler_on_the_new_schedule(lab: Lab) -> None:
    old, new = Work(), Work()
    instance = await lab.start(job_of(Grid(1_000), old))
    await lab.at(2_500)
    instance.engine.remove_job("job")
    instance.engine.add_job(job_of(Grid(2_000), new))
    await lab.at(6_500)
    assert len(old.started) == 2
    assert [slot_ms - START_MS for slot_ms, _ in new.started] == [4_000, 6_000]
