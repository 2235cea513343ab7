"""The façade in real time, with its threads: three ways to run, questions and orders, and what they refuse."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from anarchon import Every, JobRunning, Run, RunStatus, Scheduler
from anarchon.errors import BackendError, BackendUnavailable, OptionError, SchedulerStateError, StoreSetupError, UnknownJob
from anarchon.types import RunKey
from rig import DEADLINE_S, FaultyBackend, Grid, Tape, eventually


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    ours = ("anarchon-engine", "anarchon-handlers")
    left = [thread for thread in threading.enumerate() if thread.name in ours and thread not in before]
    for thread in left:
        thread.join(5)
    assert [thread.name for thread in left if thread.is_alive()] == []


def make(backend: FaultyBackend | None = None, **options: Any) -> tuple[Scheduler, FaultyBackend, Tape]:
    backend, tape = backend or FaultyBackend(), Tape()
    return Scheduler(backend=backend, plugins=[tape], grace=options.pop("grace", 5), **options), backend, tape


# -- three ways to run ------------------------------------------------------------------------------------------------


def test_async_with_runs_async_handlers_on_the_callers_loop_and_sync_ones_in_threads() -> None:
    scheduler, _, tape = make()
    where: dict[str, Any] = {}

    @scheduler.job(Grid(100), jitter=0)
    async def on_loop() -> None:
        where["loop"] = asyncio.get_running_loop()

    @scheduler.job(Grid(100), jitter=0)
    def in_thread(run: Run) -> None:
        where["thread"] = threading.current_thread().name
        where["run"] = run

    async def main() -> None:
        async with scheduler:
            assert scheduler.health().ready
            await asyncio.to_thread(tape.wait, "run_finished", 6)
            where["mine"] = asyncio.get_running_loop()

    asyncio.run(main())
    assert where["loop"] is where["mine"]
    assert where["thread"] == "anarchon-in_thread"
    assert where["run"].job == "in_thread"
    assert all(event.facts["status"] is RunStatus.SUCCESS for event in tape.of("run_finished"))


def test_start_in_thread_gives_async_handlers_a_loop_and_shutdown_ends_it() -> None:
    scheduler, backend, tape = make()
    threads: set[str] = set()

    @scheduler.job(Grid(100), jitter=0)
    async def job() -> None:
        threads.add(threading.current_thread().name)

    scheduler.start_in_thread()
    tape.wait("run_finished", 2)
    scheduler.shutdown()
    assert threads == {"anarchon-handlers"}
    assert backend.closed == 1
    scheduler.shutdown()


def test_run_blocks_until_a_stop_is_requested_from_anywhere() -> None:
    scheduler, backend, tape = make()

    @scheduler.job(Grid(100), jitter=0)
    async def job() -> None: ...

    def stop_later() -> None:
        tape.wait("run_finished")
        scheduler.request_stop()

    stopper = threading.Thread(target=stop_later)
    stopper.start()
    scheduler.run()
    stopper.join(DEADLINE_S)
    assert backend.closed == 1


def test_run_with_a_handler_that_cannot_be_stopped_returns_and_names_it(caplog: pytest.LogCaptureFixture) -> None:
    scheduler, backend, tape = make(grace=0.4)
    free = threading.Event()

    @scheduler.job(Grid(100), jitter=0)
    def stuck() -> None:
        free.wait(DEADLINE_S)

    def stop_later() -> None:
        tape.wait("run_started")
        scheduler.request_stop()

    stopper = threading.Thread(target=stop_later)
    stopper.start()
    scheduler.run()
    stopper.join(DEADLINE_S)
    assert not free.is_set()
    free.set()
    key = tape.of("run_started")[0].key
    view = backend.store.view(key)
    assert view is not None
    assert view.status is RunStatus.HANDED_OVER
    assert any("stuck" in text and "cannot be stopped" in text for text in caplog.messages)


def test_k6_a_sync_handler_that_obeys_raise_if_lost_is_handed_over_and_not_failed() -> None:
    scheduler, backend, tape = make(grace=1)
    obeyed = threading.Event()

    @scheduler.job(Grid(100), jitter=0, max_attempts=1)
    def in_steps(run: Run) -> None:
        run.lost.wait(DEADLINE_S)
        obeyed.set()
        run.raise_if_lost()

    scheduler.start_in_thread()
    key = tape.wait("run_started")[0].key
    scheduler.shutdown()
    assert obeyed.is_set()
    view = backend.store.view(key)
    assert view is not None
    assert view.status is RunStatus.HANDED_OVER
    assert tape.of("run_released")[0].key == key


def test_a_scheduler_can_be_started_again_after_its_end() -> None:
    scheduler, _, tape = make()

    @scheduler.job(Grid(100), jitter=0)
    async def job() -> None: ...

    for round_number in (1, 2):
        scheduler.start_in_thread()
        tape.wait("run_finished", len(tape.of("run_finished")) + 1)
        scheduler.shutdown()
        assert round_number in {1, 2}

    async def main() -> None:
        async with scheduler:
            await asyncio.to_thread(tape.wait, "run_finished", len(tape.of("run_finished")) + 1)

    asyncio.run(main())


def test_starting_twice_is_refused_and_stopping_twice_is_not() -> None:
    scheduler, _, _ = make()

    async def main() -> None:
        await scheduler.start()
        with pytest.raises(SchedulerStateError, match="running already"):
            await scheduler.start()
        with pytest.raises(SchedulerStateError, match="running already"):
            scheduler.start_in_thread()
        await asyncio.gather(scheduler.stop(), scheduler.stop())
        await scheduler.stop()

    asyncio.run(main())


def test_a_stop_that_is_given_up_leaves_a_scheduler_that_cannot_be_started_twice() -> None:
    scheduler, backend, tape = make(grace=5)
    gate = asyncio.Event()

    @scheduler.job(Grid(100), jitter=0)
    async def slow() -> None:
        await gate.wait()

    async def main() -> None:
        await scheduler.start()
        await asyncio.to_thread(tape.wait, "run_started")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(scheduler.stop(), 0.05)
        with pytest.raises(SchedulerStateError, match="running already"):
            await scheduler.start()
        gate.set()
        await scheduler.stop()
        assert backend.closed == 1

    asyncio.run(main())


def test_a_setup_error_comes_out_of_every_way_to_start() -> None:
    async def refuse() -> None:
        msg = "no rights: grant them"
        raise StoreSetupError(msg)

    def broken() -> Scheduler:
        scheduler, backend, _ = make()
        backend.hooks["open"] = refuse
        return scheduler

    for _ in range(2):
        with pytest.raises(StoreSetupError, match="grant them"):
            broken().run()
        with pytest.raises(StoreSetupError, match="grant them"):
            broken().start_in_thread()

    async def main() -> None:
        with pytest.raises(StoreSetupError, match="grant them"):
            async with broken():
                raise AssertionError

    asyncio.run(main())


def test_an_engine_that_ends_by_itself_is_told_and_can_be_started_again(caplog: pytest.LogCaptureFixture) -> None:
    scheduler, backend, _ = make()
    answers: list[Exception] = [BackendUnavailable("not yet"), StoreSetupError("no rights")]

    async def refuse() -> None:
        if answers:
            raise answers.pop(0)

    backend.hooks["open"] = refuse
    scheduler.start_in_thread()
    eventually(lambda: any("no rights" in record.getMessage() for record in caplog.records), "the end is logged")
    eventually(lambda: not scheduler.health().ready, "it is not ready")
    assert any(record.levelno >= logging.ERROR for record in caplog.records)
    with pytest.raises(StoreSetupError, match="no rights"):
        scheduler.shutdown()
    scheduler.start_in_thread()
    eventually(lambda: scheduler.health().ready, "it works now")
    scheduler.shutdown()


def test_start_returns_although_the_store_is_away_and_says_so() -> None:
    backend = FaultyBackend()
    backend.down = True
    scheduler, _, tape = make(backend)

    @scheduler.job(Grid(100), jitter=0)
    async def job() -> None: ...

    scheduler.start_in_thread()
    health = scheduler.health()
    assert (health.ready, health.store_failing) == (False, True)
    backend.down = False
    tape.wait("run_finished")
    assert scheduler.health().ready
    assert not scheduler.health().store_failing
    scheduler.shutdown()


def test_constructing_binds_no_loop_and_opens_nothing() -> None:
    backend = FaultyBackend()
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    scheduler, _, _ = make(backend)
    scheduler.add_job(lambda: None, "* * * * *", name="job")
    assert backend.calls == []
    assert scheduler.next_runs("job", 1)


# -- questions and orders ---------------------------------------------------------------------------------------------


@pytest.fixture
def started() -> Iterator[tuple[Scheduler, FaultyBackend, Tape]]:
    scheduler, backend, tape = make()
    gates: dict[str, threading.Event] = {"slow": threading.Event()}

    @scheduler.job("0 0 1 1 *")
    async def quick() -> None: ...

    @scheduler.job("0 0 1 1 *")
    def slow() -> None:
        gates["slow"].wait(DEADLINE_S)

    @scheduler.job("0 0 1 1 *", overlap="allow")
    def failing() -> None:
        msg = "no"
        raise ValueError(msg)

    scheduler.start_in_thread()
    yield scheduler, backend, tape
    gates["slow"].set()
    scheduler.shutdown()


Started = tuple[Scheduler, FaultyBackend, Tape]


def test_run_now_waits_for_the_end_and_returns_the_record(started: Started) -> None:
    scheduler, _, _ = started
    record = scheduler.portal.run_now("quick")
    assert (record.status, record.attempt, record.space[:1]) == (RunStatus.SUCCESS, 1, "m")
    assert record.finished_ms is not None
    failed = scheduler.portal.run_now("failing")
    assert (failed.status, failed.error) == (RunStatus.FAILED, "ValueError: no")
    assert scheduler.portal.last_run("failing") == failed
    assert [each.status for each in scheduler.portal.history("failing")] == [RunStatus.FAILED]


def test_run_now_without_waiting_returns_a_running_record(started: Started) -> None:
    scheduler, _, tape = started
    record = scheduler.portal.run_now("slow", wait=False)
    assert record.status is RunStatus.RUNNING
    tape.wait("run_started")
    assert scheduler.health().running == 1


def test_run_now_of_a_running_job_is_refused_unless_forced(started: Started) -> None:
    scheduler, _, tape = started
    scheduler.portal.run_now("slow", wait=False)
    tape.wait("run_started")
    with pytest.raises(JobRunning, match="slow is running already"):
        scheduler.portal.run_now("slow")
    assert scheduler.portal.run_now("slow", wait=False, force=True).status is RunStatus.RUNNING
    tape.wait("run_started", 2)


def test_run_now_runs_a_paused_job(started: Started) -> None:
    scheduler, _, _ = started
    scheduler.portal.pause("quick")
    assert scheduler.portal.run_now("quick").status is RunStatus.SUCCESS
    scheduler.portal.resume("quick")


def test_run_now_of_an_unknown_job_or_without_a_store_says_so(started: Started) -> None:
    scheduler, backend, _ = started
    with pytest.raises(UnknownJob):
        scheduler.portal.run_now("nobody")
    with pytest.raises(UnknownJob):
        scheduler.portal.pause("nobody")
    backend.limits = backend.limits
    backend.down = True
    with pytest.raises(BackendError):
        scheduler.portal.history("quick")
    backend.down = False


def test_run_now_that_is_under_way_at_a_stop_returns_what_became_of_it() -> None:
    scheduler, _, tape = make(grace=0.4)

    @scheduler.job("0 0 1 1 *")
    async def endless() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await scheduler.start()
        asked = asyncio.create_task(scheduler.run_now("endless"))
        await asyncio.to_thread(tape.wait, "run_started")
        await scheduler.stop()
        record = await asyncio.wait_for(asked, DEADLINE_S)
        assert record.status is RunStatus.HANDED_OVER

    asyncio.run(main())


def test_run_now_whose_caller_gives_up_runs_all_the_same(started: Started) -> None:
    scheduler, backend, tape = started
    backend.late_ms["claim"] = 300

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(scheduler.run_now("quick"), 0.1)

    asyncio.run(main())
    tape.wait("run_finished")


def test_questions_before_the_start_and_after_the_end_are_refused() -> None:
    scheduler, _, _ = make()
    scheduler.add_job(lambda: None, "* * * * *", name="job")
    for call in (lambda: scheduler.portal.history("job"), lambda: scheduler.portal.run_now("job"), scheduler.health):
        with pytest.raises(SchedulerStateError, match="not running: start it first"):
            call()
    scheduler.start_in_thread()
    scheduler.shutdown()
    with pytest.raises(SchedulerStateError, match="not running"):
        scheduler.portal.last_run("job")


def test_questions_while_the_store_was_never_reached_are_answered_with_the_reason() -> None:
    backend = FaultyBackend(call_timeout_ms=100)
    backend.down = True
    scheduler, _, _ = make(backend)
    scheduler.add_job(lambda: None, "* * * * *", name="job")
    scheduler.start_in_thread()
    with pytest.raises(BackendUnavailable, match="has not been reached yet"):
        scheduler.portal.history("job")
    scheduler.shutdown()


def test_pause_stops_slots_for_the_fleet_and_resume_lets_them_run() -> None:
    scheduler, backend, tape = make()
    other, _, others = make(FaultyBackend(backend.store))
    for each in (scheduler, other):
        each.add_job(lambda: None, Grid(100), name="job", jitter=0)
    scheduler.start_in_thread()
    other.start_in_thread()
    other.portal.pause("job")
    paused = len(tape.of("run_started")) + len(others.of("run_started"))
    eventually(lambda: len(tape.of("slot_skipped")) + len(others.of("slot_skipped")) >= 3, "slots are skipped")
    assert len(tape.of("run_started")) + len(others.of("run_started")) <= paused + 1
    scheduler.portal.resume("job")
    eventually(lambda: len(tape.of("run_started")) + len(others.of("run_started")) >= paused + 3, "it goes on")
    assert scheduler.portal.last_run("job") is not None
    scheduler.shutdown()
    other.shutdown()


def test_last_run_is_no_note(started: Started) -> None:
    scheduler, _, _ = started
    assert scheduler.portal.last_run("quick") is None
    record = scheduler.portal.run_now("quick")
    assert scheduler.portal.last_run("quick") == record


def test_next_runs_are_aware_and_in_the_zone_of_the_schedule() -> None:
    scheduler, _, _ = make()
    scheduler.add_job(lambda: None, "0 3 * * *", tz="Europe/Berlin", name="berlin")
    scheduler.add_job(lambda: None, Every(hours=1), name="hourly")
    berlin = scheduler.next_runs("berlin", 3)
    assert [each.hour for each in berlin] == [3, 3, 3]
    assert str(berlin[0].tzinfo) == "Europe/Berlin"
    hourly = scheduler.next_runs("hourly")
    assert len(hourly) == 5
    assert hourly[0].tzinfo is UTC
    assert hourly[1] - hourly[0] == timedelta(hours=1)
    assert hourly[0] > datetime.now(UTC)


def test_health_tells_the_instance_and_what_the_backend_does_not_do() -> None:
    scheduler, _, _ = make(instance="web-1")
    scheduler.add_job(lambda: None, "* * * * *", name="job")
    scheduler.start_in_thread()
    health = scheduler.health()
    assert (health.instance, health.jobs, health.running, health.watched) == ("web-1", 1, 0, 0)
    assert abs(health.clock_offset_ms) < 1_000
    assert health.unsupported == {}
    scheduler.shutdown()


def test_two_schedulers_in_a_process_have_two_names() -> None:
    first, _, _ = make()
    second, _, _ = make()
    first.start_in_thread()
    second.start_in_thread()
    assert first.health().instance != second.health().instance
    first.shutdown()
    second.shutdown()


def test_why_needs_an_aware_time_and_explains(started: Started) -> None:
    scheduler, _, _ = started
    with pytest.raises(OptionError, match="time zone"):
        asyncio.run(scheduler.why("quick", datetime(2027, 1, 1)))
    assert "2027" in str(asyncio.run(scheduler.why("quick", datetime(2027, 1, 1, tzinfo=UTC))))


def test_jobs_are_added_and_removed_while_running_from_any_thread(started: Started) -> None:
    scheduler, _, tape = started
    ran = threading.Event()
    scheduler.add_job(ran.set, Grid(100), name="added", jitter=0)
    assert ran.wait(DEADLINE_S)
    scheduler.remove_job("added")
    assert "added" not in scheduler.jobs
    scheduler.portal.history("quick")  # the engine has seen the removal
    eventually(lambda: scheduler.health().running == 0, "its last run ends")
    count = len(tape.of("run_started"))
    threading.Event().wait(0.35)
    assert len(tape.of("run_started")) <= count + 1


def test_questions_may_be_asked_from_handlers() -> None:
    scheduler, _, tape = make()
    found: dict[str, Any] = {}

    @scheduler.job("0 0 1 1 *")
    async def asks(run: Run) -> None:
        found["async"] = await scheduler.history("asks")
        found["now"] = await scheduler.run_now("other")

    @scheduler.job("0 0 1 1 *")
    def other() -> None:
        found["sync"] = scheduler.portal.history("asks")

    scheduler.start_in_thread()
    assert scheduler.portal.run_now("asks").status is RunStatus.SUCCESS
    scheduler.shutdown()
    assert [record.status for record in found["async"]] == [RunStatus.RUNNING]
    assert found["now"].status is RunStatus.SUCCESS
    assert len(found["sync"]) == 1
    assert tape.of("run_finished")


def test_c16_a_run_handed_over_in_a_closed_loop_is_released(caplog: pytest.LogCaptureFixture) -> None:
    scheduler, backend, tape = make(grace=1)

    @scheduler.job(Grid(200), jitter=0)
    async def job() -> None: ...

    async def main() -> None:
        await scheduler.start()
        await asyncio.to_thread(tape.wait, "run_finished")

    asyncio.run(main())  # the application's loop ends, and nobody stopped the scheduler
    tape.wait("run_released")
    scheduler.shutdown()
    held = [view for view in backend.store.unfinished(["job"]) if view.status is RunStatus.RUNNING]
    assert held == []
    assert RunKey("job", 0) not in {view.key for view in held}


def test_a_refused_second_start_leaves_the_first_one_alone() -> None:
    scheduler, backend, _ = make()
    scheduler.start_in_thread()
    with pytest.raises(SchedulerStateError, match="running already"):
        scheduler.run()
    with pytest.raises(SchedulerStateError, match="running already"):
        scheduler.start_in_thread()
    assert scheduler.health().ready
    scheduler.shutdown()
    assert backend.closed == 1


def test_after_a_failed_start_stopping_is_harmless() -> None:
    scheduler, backend, _ = make()

    async def refuse() -> None:
        msg = "no rights"
        raise StoreSetupError(msg)

    backend.hooks["open"] = refuse

    async def main() -> None:
        with pytest.raises(StoreSetupError):
            await scheduler.start()
        await scheduler.stop()

    asyncio.run(main())
    with pytest.raises(StoreSetupError):
        scheduler.start_in_thread()
    scheduler.shutdown()
