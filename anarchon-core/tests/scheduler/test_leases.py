"""The keeper (K1, K4) and what becomes of a run whose lease, handler or timeout ends, on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from anarchon.lease import margin_ms
from anarchon.types import Outcome, RunKey, RunStatus
from rig import START_MS, FaultyBackend, Instance, Lab, Slots, Work, job_of, passes, until, virtual

SLOT_MS = START_MS + 1_000
KEY = RunKey("job", SLOT_MS)
YEARS_MS = 10 * 366 * 86_400_000


async def begun(lab: Lab, work: Work, **options: Any) -> Instance:
    """Start an instance with a job of one slot, and let its handler begin; the lease is 10 s, the heartbeat 3 s."""
    options = {"lease": 10, "heartbeat": 3, **options}
    instance = await lab.start(job_of(Slots(SLOT_MS), work, **options))
    await until(lambda: bool(work.started), "the handler begins")
    return instance


@pytest.mark.parametrize(("lease_ms", "margin"), [(30_000, 3_000), (1_000, 100), (500, 50), (200, 50), (100, 50), (60, 30)])
def test_k1_the_margin_is_a_tenth_of_the_lease_and_at_least_50_ms(lease_ms: int, margin: float) -> None:
    assert margin_ms(lease_ms) == margin


@virtual
async def test_k1_a_run_of_many_leases_is_renewed_once_a_heartbeat_and_stays_with_its_holder(lab: Lab) -> None:
    work = Work(duration_ms=100_000)
    instance = await begun(lab, work)
    backup = await lab.start(job_of(Slots(SLOT_MS), Work(), lease=10, heartbeat=3))
    await until(lambda: bool(work.ended), "the handler ends")
    await passes(20_000)
    assert instance.backend.calls.count("renew") == 33
    assert backup.backend.calls.count("claim") <= 1
    assert [(record.attempt, record.status) for record in lab.history()] == [(1, RunStatus.SUCCESS)]


@virtual
async def test_renewals_of_many_runs_travel_in_one_call(lab: Lab) -> None:
    slots = [SLOT_MS + number for number in range(50)]
    work = Work(duration_ms=10_000)
    instance = await lab.start(job_of(Slots(*slots), work, overlap="allow", lease=10, heartbeat=3))
    await until(lambda: len(work.ended) == 50, "all handlers end")
    assert instance.backend.calls.count("renew") + instance.backend.calls.count("renew_many") <= 6


@virtual
async def test_k1_a_refused_renewal_cancels_the_handler_and_nothing_is_reported(lab: Lab) -> None:
    work = Work(duration_ms=60_000)
    instance = await begun(lab, work)
    lab.clock.step(10_001)  # the store's lease ends, and a stranger takes the run
    assert lab.claim(KEY, lease_ms=600_000).attempt == 2
    await until(lambda: bool(work.cancelled), "the handler is cancelled", 4_000)
    assert work.runs[0].lost.is_set()
    await passes(10_000)
    (lost,) = lab.tape.of("lease_lost")
    assert "no longer holds" in lost.facts["why"]
    assert "finish" not in instance.backend.calls
    assert lab.tape.of("run_finished") == []
    assert [record.status for record in lab.history()] == [RunStatus.LOST, RunStatus.RUNNING]


@pytest.mark.parametrize("silent", [False, True], ids=["fails", "silent"])
@virtual
async def test_k1_a_store_that_is_gone_loses_the_lease_at_the_local_deadline(lab: Lab, silent: bool) -> None:
    work = Work(duration_ms=60_000)
    instance = await begun(lab, work)
    await passes(6_500)  # renewed twice, the last time 6 s after the claim
    if silent:
        instance.backend.hooks["renew"] = asyncio.Event().wait  # type: ignore[assignment]  # waits for ever
    else:
        instance.backend.down = True
    await until(lambda: bool(work.cancelled), "the handler is cancelled", 20_000)
    held_ms = work.at_ms("cancelled") - work.at_ms("started")
    assert 6_000 + 9_000 - 20 <= held_ms <= 6_000 + 9_000 + 20
    (lost,) = lab.tape.of("lease_lost")
    assert "did not confirm" in lost.facts["why"]


@virtual
async def test_k1_a_failed_renewal_is_repeated_soon_and_a_short_failure_costs_nothing(lab: Lab) -> None:
    work = Work(duration_ms=20_000)
    instance = await begun(lab, work)
    instance.backend.failing.add("renew")
    await passes(7_500)
    instance.backend.failing.clear()
    await until(lambda: bool(work.ended), "the handler ends")
    await passes(1_000)
    assert lab.tape.of("lease_lost") == []
    assert instance.backend.calls.count("renew") >= 8  # at 3, 4, 5, 6, 7 s without success, then each 3 s
    assert lab.statuses() == {SLOT_MS: "success"}


@virtual
async def test_k1_an_engine_that_wakes_past_its_lease_asks_once_and_goes_on_if_renewed(lab: Lab) -> None:
    work = Work(duration_ms=20_000)
    instance = await begun(lab, work)
    before = instance.backend.calls.count("renew")
    instance.clock.suspend(30_000)
    lab.clock.step(30_000)
    await passes(3_500)
    assert not work.runs[0].lost.is_set()
    assert instance.backend.calls.count("renew") == before + 1
    await until(lambda: bool(work.ended), "the handler ends")
    await passes(1_000)
    assert lab.tape.of("lease_lost") == []
    assert lab.statuses() == {SLOT_MS: "success"}


@pytest.mark.parametrize("what", ["taken", "silent", "fails"])
@virtual
async def test_k1_an_engine_that_wakes_past_its_lease_and_is_not_renewed_has_lost_it(lab: Lab, what: str) -> None:
    work = Work(duration_ms=60_000)
    instance = await begun(lab, work)
    instance.clock.suspend(30_000)
    lab.clock.step(30_000)
    if what == "taken":
        lab.claim(KEY, lease_ms=600_000)
    elif what == "silent":
        instance.backend.hooks["renew"] = asyncio.Event().wait  # type: ignore[assignment]  # waits for ever
    else:
        instance.backend.failing.add("renew")
    await until(lambda: bool(work.cancelled), "the handler is cancelled", 10_000)
    assert instance.backend.calls.count("renew") == 1
    assert "finish" not in instance.backend.calls


@pytest.mark.parametrize("by_ms", [YEARS_MS, -YEARS_MS])
@virtual
async def test_k1_a_wall_clock_that_steps_by_years_costs_no_run(lab: Lab, by_ms: int) -> None:
    work = Work(duration_ms=30_000)
    instance = await begun(lab, work)
    await passes(4_000)
    instance.clock.step(by_ms)
    await until(lambda: bool(work.ended), "the handler ends")
    await passes(1_000)
    assert lab.tape.of("lease_lost") == []
    assert instance.backend.calls.count("renew") <= 11
    assert lab.statuses() == {SLOT_MS: "success"}


@virtual
async def test_k1_a_claim_whose_answer_came_after_its_lease_is_confirmed_before_the_handler_starts(lab: Lab) -> None:
    work = Work(duration_ms=1_000)
    backend = FaultyBackend(lab.store)
    backend.late_ms["claim"] = 4_000
    instance = await lab.start(job_of(Slots(SLOT_MS), work, lease=3), backend=backend)
    await until(lambda: bool(work.ended), "the handler ends")
    await passes(1_000)
    assert instance.backend.calls.index("renew") > instance.backend.calls.index("claim")
    assert lab.statuses() == {SLOT_MS: "success"}


@virtual
async def test_k1_a_claim_whose_answer_came_after_its_lease_was_taken_never_starts(lab: Lab) -> None:
    work = Work(duration_ms=1_000)
    backend = FaultyBackend(lab.store)
    backend.late_ms["claim"] = 4_000
    await lab.start(job_of(Slots(SLOT_MS), work, lease=3), backend=backend)
    await until(lambda: bool(lab.held()), "the claim is in the store")
    await passes(3_500)
    token = lab.won(KEY, lease_ms=60_000)
    await passes(5_000)
    assert work.started == []
    lab.finished(KEY, token)


@virtual
async def test_the_deadline_of_a_run_moves_with_each_renewal(lab: Lab) -> None:
    work = Work(duration_ms=8_000)
    await begun(lab, work)
    first = work.runs[0].deadline
    await passes(4_000)
    assert 2.9 <= (work.runs[0].deadline - first).total_seconds() <= 3.1
    assert 8.9 <= (first.timestamp() * 1000 - SLOT_MS) / 1000 <= 9.1


# -- the handler's end ------------------------------------------------------------------------------------------------


@virtual
async def test_k4_while_a_lost_handler_goes_on_its_instance_does_not_claim_the_run_again(lab: Lab) -> None:
    work = Work(duration_ms=60_000, stubborn_ms=90_000)
    instance = await begun(lab, work)
    instance.backend.failing.add("renew")
    await until(lambda: bool(work.cancelled), "the handler is cancelled")
    instance.backend.failing.clear()
    await passes(80_000)
    assert work.started == [(SLOT_MS, 1)]
    await until(lambda: len(work.started) == 2, "the run is taken over once the handler has ended", 20_000)
    assert work.started[1] == (SLOT_MS, 2)
    assert work.most_running == 1


@virtual
async def test_a_timeout_cancels_and_fails_the_attempt(lab: Lab) -> None:
    work = Work(duration_ms=60_000)
    await begun(lab, work, timeout=5)
    await until(lambda: lab.statuses() == {SLOT_MS: "timeout"}, "the run has timed out", 6_000)
    assert work.at_ms("cancelled") - work.at_ms("started") == pytest.approx(5_000, abs=20)
    (record,) = lab.history()
    assert record.error == "timeout: not done after 5 s"
    assert lab.tape.of("run_finished")[0].facts["status"] is RunStatus.TIMEOUT


@virtual
async def test_a_handler_that_returns_when_it_times_out_has_succeeded(lab: Lab) -> None:
    await begun(lab, Work(duration_ms=60_000, stubborn_ms=500), timeout=5)
    await until(lambda: lab.statuses() == {SLOT_MS: "success"}, "the run has ended", 7_000)


@virtual
async def test_a_handler_that_ignores_its_timeout_loses_its_lease_and_is_taken_over_counted(lab: Lab) -> None:
    work = Work(duration_ms=60_000, stubborn_ms=600_000)
    instance = await begun(lab, work, timeout=5)
    second = Work(duration_ms=10)
    await lab.start(job_of(Slots(SLOT_MS), second, lease=10, heartbeat=3))
    await until(lambda: bool(second.ended), "the other instance has run it", 30_000)
    await passes(1_000)
    assert second.started == [(SLOT_MS, 2)]
    assert [record.status for record in lab.history()] == [RunStatus.LOST, RunStatus.SUCCESS]
    assert work.started == [(SLOT_MS, 1)]
    assert len(instance.engine.attempts) == 1  # K4: its place stays taken
    assert "timeout" in lab.tape.of("lease_lost")[0].facts["why"]


@virtual
async def test_a_failed_run_is_final_without_retries(lab: Lab) -> None:
    work = Work(error=ValueError("no"))
    await begun(lab, work)
    await passes(60_000)
    assert [(record.status, record.error) for record in lab.history()] == [(RunStatus.FAILED, "ValueError: no")]
    assert len(work.started) == 1


@virtual
async def test_retries_wait_with_a_growing_delay_and_end_as_failed(lab: Lab) -> None:
    work = Work(error=ValueError("no"))
    await begun(lab, work, retries=2)
    await passes(60_000)
    assert work.started == [(SLOT_MS, 1), (SLOT_MS, 2), (SLOT_MS, 3)]
    first, second, third = (at_ms for what, at_ms in work.times_ms if what == "started")
    assert 1_000 <= second - first <= 1_200
    assert 2_000 <= third - second <= 2_200
    assert [record.status for record in lab.history()] == [RunStatus.FAILED] * 3


@virtual
async def test_c16_another_instance_may_take_the_retry(lab: Lab) -> None:
    failing, helping = Work(error=ValueError("no")), Work()
    first = await begun(lab, failing, retries=1, retry_delay=5)
    await until(lambda: bool(lab.tape.of("run_released")), "the run is released")
    await lab.start(job_of(Slots(SLOT_MS), helping, lease=10, heartbeat=3, retries=1))
    await first.stop()
    await until(lambda: bool(helping.ended), "the retry has run", 10_000)
    assert helping.started == [(SLOT_MS, 2)]


@virtual
async def test_crashes_and_failures_together_are_limited_by_max_attempts(lab: Lab) -> None:
    lab.won(RunKey("job", START_MS), lease_ms=1_000)
    work = Work(error=ValueError("no"))
    await lab.start(job_of(Slots(), work, retries=2, retry_delay=0.1, max_attempts=3))
    await passes(60_000)
    assert work.started == [(START_MS, 2), (START_MS, 3)]
    assert [record.status for record in lab.history()] == [RunStatus.LOST, RunStatus.FAILED, RunStatus.FAILED]
    assert lab.store.view(RunKey("job", START_MS)).status.final  # type: ignore[union-attr]  # the run is there


# -- reporting --------------------------------------------------------------------------------------------------------


@virtual
async def test_k2_a_finish_is_repeated_with_the_same_token_until_it_is_known(lab: Lab) -> None:
    work = Work(duration_ms=100)
    instance = await begun(lab, work)
    instance.backend.failing.add("finish")
    await passes(5_000)
    assert instance.backend.calls.count("finish") > 3
    instance.backend.failing.clear()
    await until(lambda: bool(lab.tape.of("run_finished")), "the end is told", 3_000)
    assert lab.tape.of("run_finished")[0].facts["recorded"] is True


@virtual
async def test_k2_a_finish_whose_answer_is_lost_is_known_when_asked_again(lab: Lab) -> None:
    instance = await begun(lab, Work(duration_ms=100))
    instance.backend.lose["finish"] = 1
    await until(lambda: bool(lab.tape.of("run_finished")), "the end is told", 3_000)
    assert lab.tape.of("run_finished")[0].facts["recorded"] is True
    assert lab.statuses() == {SLOT_MS: "success"}


@virtual
async def test_k2_an_unknown_finish_is_reported_as_not_recorded_at_the_local_deadline(lab: Lab) -> None:
    work = Work(duration_ms=100)
    instance = await begun(lab, work, max_attempts=1)
    instance.backend.failing.add("finish")
    await until(lambda: bool(lab.tape.of("run_finished")), "the end is told", 12_000)
    (event,) = lab.tape.of("run_finished")
    assert (event.facts["status"], event.facts["recorded"]) == (RunStatus.SUCCESS, False)
    await passes(15_000)
    assert len(work.started) == 1
    assert lab.statuses() == {SLOT_MS: "interrupted"}


@virtual
async def test_k2_a_lost_reply_to_a_claim_is_asked_again_with_the_same_token(lab: Lab) -> None:
    work = Work(duration_ms=100)
    backend = FaultyBackend(lab.store)
    backend.lose["claim"] = 2
    await lab.start(job_of(Slots(SLOT_MS), work), backend=backend)
    await until(lambda: bool(work.ended), "the handler ends", 10_000)
    await passes(60_000)
    assert work.started == [(SLOT_MS, 1)]
    assert [record.attempt for record in lab.history()] == [1]


@virtual
async def test_k2_a_claim_that_stays_unknown_is_given_up_when_the_late_window_closes_and_noted_once(lab: Lab) -> None:
    work, backend = Work(), FaultyBackend(lab.store)
    await lab.start(job_of(Slots(SLOT_MS), work, max_late=20), backend=backend)
    backend.failing.add("claim")
    await passes(30_000)
    backend.failing.clear()
    await passes(60_000)
    assert work.started == []
    assert len(lab.tape.of("run_missed")) == 1
    assert len(set(backend.calls)) >= 3


@virtual
async def test_k2_a_store_that_returns_within_the_late_window_loses_no_slot(lab: Lab) -> None:
    work, backend = Work(), FaultyBackend(lab.store)
    await lab.start(job_of(Slots(SLOT_MS), work, max_late=20), backend=backend)
    backend.down = True
    await passes(15_000)
    backend.down = False
    await until(lambda: bool(work.ended), "the slot runs", 3_000)
    assert work.started == [(SLOT_MS, 1)]
    assert lab.claim(KEY).outcome in {Outcome.DONE, Outcome.RUNNING}


@virtual
async def test_c9_an_early_claim_waits_for_the_stores_clock(lab: Lab) -> None:
    work, backend = Work(), FaultyBackend(lab.store)
    instance = await lab.start(job_of(Slots(SLOT_MS), work), backend=backend)
    instance.engine.store.time._offset_ms += 700  # it believes that it is later than it is
    await until(lambda: bool(work.started), "the slot runs", 5_000)
    assert lab.tape.of("run_started")[0].facts["late_ms"] >= 0
    assert 2 <= backend.calls.count("claim") <= 3
