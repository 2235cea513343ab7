"""Killed, stopped and paused runners: who runs the slot next, and when. Real processes on SQLite."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from anarchon.types import RunStatus
from workers import JobPlan, Kind, Pack, Pulse, Worker, now_ms

LEASE_MS = 1_000
LEASE = {"lease": 1.0}
HEARTBEAT_MS = 333
SLACK_MS = 500
TRIALS = 20
AT_ONCE = 10

Packs = Callable[[], Pack]
Soon = Callable[[float], int]


def waves(packs: Packs, trials: int) -> list[list[Pack]]:
    """Return packs for trials that run a few at a time."""
    return [[packs() for _ in range(min(AT_ONCE, trials - begun))] for begun in range(0, trials, AT_ONCE)]


def second_starts(pack: Pack, workers: list[Worker]) -> float:
    """Wait for attempt 2 of the job and return when its handler started."""
    starts = pack.wait("start", 2)
    assert [(entry.attempt, entry.pid in {worker.pid for worker in workers}) for entry in starts] == [(1, False), (2, True)]
    return starts[1].at_ms


def test_k12_kill_9_of_the_only_instance_then_a_restart_runs_attempt_2_within_lease_and_half_a_second(
    packs: Packs, pulse: Pulse, soon_ms: Soon
) -> None:
    late: list[float] = []
    for wave in waves(packs, TRIALS):
        job = JobPlan(begin_ms=soon_ms(0.6), durations_s=(60, 0.01), options=LEASE)
        for pack in wave:
            pack.start(job)
        for pack in wave:
            pack.wait("start")
        killed = [pack.workers[0].kill() for pack in wave]
        again = [pack.start(job) for pack in wave]
        for pack, killed_ms, worker in zip(wave, killed, again, strict=True):
            started_ms = second_starts(pack, [worker])
            up_ms = pack.entries("up", workers=[worker])[0].at_ms
            late.append(started_ms - max(killed_ms + LEASE_MS, up_ms))
        for pack, worker in zip(wave, again, strict=True):
            pack.settled()
            assert [record.status for record in pack.history()] == [RunStatus.LOST, RunStatus.SUCCESS]
            worker.kill()
    print(f"attempt 2 after the lease's end or the restart, ms: worst {max(late):.0f} (machine {pulse.worst_ms:.0f})")
    assert len(late) == TRIALS
    assert max(late) <= pulse.limit_ms(SLACK_MS)


def test_k6_sigterm_of_the_only_instance_then_a_restart_runs_attempt_2_within_half_a_second(
    packs: Packs, pulse: Pulse, soon_ms: Soon
) -> None:
    late: list[float] = []
    for wave in waves(packs, TRIALS):
        job = JobPlan(begin_ms=soon_ms(0.6), durations_s=(60, 0.01), options={"lease": 30, "max_attempts": 1})
        for pack in wave:
            pack.start(job, grace_s=0.2)
        for pack in wave:
            pack.wait("start")
        for pack in wave:
            pack.workers[0].terminate()
        for pack in wave:
            pack.workers[0].join()
            assert pack.workers[0].exit_code == 0
        again = [pack.start(job) for pack in wave]
        for pack, worker in zip(wave, again, strict=True):
            late.append(second_starts(pack, [worker]) - pack.entries("up", workers=[worker])[0].at_ms)
        for pack, worker in zip(wave, again, strict=True):
            pack.settled()
            assert [record.status for record in pack.history()] == [RunStatus.HANDED_OVER, RunStatus.SUCCESS]
            worker.kill()
    print(f"attempt 2 after the restart, ms: worst {max(late):.0f} (machine {pulse.worst_ms:.0f})")
    assert len(late) == TRIALS
    assert max(late) <= pulse.limit_ms(SLACK_MS)


def test_c12_kill_9_of_the_runner_with_backups_runs_attempt_2_within_lease_heartbeat_and_half_a_second(
    packs: Packs, pulse: Pulse, soon_ms: Soon
) -> None:
    late: list[float] = []
    job = JobPlan(begin_ms=soon_ms(1.0), durations_s=(60, 0.01), options=LEASE)
    wave = [packs() for _ in range(3)]
    for pack in wave:
        for _ in range(3):
            pack.start(job)
    for pack in wave:
        first = pack.wait("start")[0]
        runner = next(worker for worker in pack.workers if worker.pid == first.pid)
        killed_ms = runner.kill()
        backups = [worker for worker in pack.workers if worker is not runner]
        late.append(second_starts(pack, backups) - killed_ms - LEASE_MS)
    for pack in wave:
        pack.settled()
        assert [record.status for record in pack.history()] == [RunStatus.LOST, RunStatus.SUCCESS]
        assert len(pack.entries("start")) == 2
    print(f"attempt 2 after the kill and the lease, ms: worst {max(late):.0f} (machine {pulse.worst_ms:.0f})")
    assert max(late) <= pulse.limit_ms(HEARTBEAT_MS + SLACK_MS)


def freeze_runners(wave: list[Pack], begin_ms: int) -> None:
    """Pause each pack's runner for three leases, let it go on, and see that it has lost its run (K1, C15)."""
    job = JobPlan(begin_ms=begin_ms, durations_s=(60, 0.01), options=LEASE)
    for pack in wave:
        for _ in range(2):
            pack.start(job)
    runners = []
    for pack in wave:
        first = pack.wait("start")[0]
        runners.append(next(worker for worker in pack.workers if worker.pid == first.pid))
        runners[-1].pause()
    paused_ms = now_ms()
    for pack in wave:
        pack.wait("finished")
    wave[0].hold_until(paused_ms + 3 * LEASE_MS)
    for runner in runners:
        runner.resume()
    for pack, runner in zip(wave, runners, strict=True):
        pack.wait("cancelled")
        pack.wait("lost")
        pack.settled()
        assert [(entry.attempt, entry.pid == runner.pid) for entry in pack.entries("start")] == [(1, True), (2, False)]
        assert [entry.attempt for entry in pack.entries("end")] == [2]
        assert [(entry.attempt, entry.detail) for entry in pack.entries("finished")] == [(2, "success recorded")]
        assert [record.status for record in pack.history()] == [RunStatus.LOST, RunStatus.SUCCESS]
        assert runner.alive
        for worker in pack.workers:
            worker.kill()


def test_k1_sigstop_of_the_runner_for_three_leases_cancels_its_handler_and_refuses_its_end(packs: Packs, soon_ms: Soon) -> None:
    freeze_runners([packs() for _ in range(4)], soon_ms(0.5))


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_k1_sigstop_of_the_runner_a_hundred_times(packs: Packs, soon_ms: Soon) -> None:
    for wave in waves(packs, 100):
        freeze_runners(wave, soon_ms(0.5))


# -- what blocks (K7) -------------------------------------------------------------------------------------------------


def test_k7_a_handler_that_blocks_the_loop_for_three_leases_keeps_its_lease(pack: Pack, soon_ms: Soon) -> None:
    job = JobPlan(begin_ms=soon_ms(0.6), kind=Kind.BLOCKING, durations_s=(3.2,), options=LEASE)
    for _ in range(2):
        pack.start(job)
    pack.wait("finished")
    pack.settled()
    assert [(entry.what, entry.attempt) for entry in pack.entries("start") + pack.entries("end")] == [("start", 1), ("end", 1)]
    assert pack.entries("lost") == []
    assert [record.status for record in pack.history()] == [RunStatus.SUCCESS]


def test_k7_with_a_timeout_a_handler_that_blocks_the_loop_loses_its_lease(pack: Pack, soon_ms: Soon) -> None:
    job = JobPlan(begin_ms=soon_ms(0.6), kind=Kind.BLOCKING, durations_s=(3.2, 0.01), options={**LEASE, "timeout": 0.5})
    for _ in range(2):
        pack.start(job)
    first, second = pack.wait("start", 2)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.pid != second.pid
    assert "timeout" in pack.wait("lost")[0].detail
    pack.settled()
    assert [record.status for record in pack.history()] == [RunStatus.LOST, RunStatus.SUCCESS]


def test_k7_a_sync_handler_of_many_leases_keeps_its_lease(pack: Pack, soon_ms: Soon) -> None:
    job = JobPlan(begin_ms=soon_ms(0.6), kind=Kind.SYNC, durations_s=(3.2,), options=LEASE)
    for _ in range(2):
        pack.start(job)
    pack.wait("finished")
    assert [record.status for record in pack.history()] == [RunStatus.SUCCESS]


# -- stopping (K6) ----------------------------------------------------------------------------------------------------


def test_k6_sigterm_under_load_finishes_or_hands_over_every_run_and_counts_nothing(
    pack: Pack, pulse: Pulse, soon_ms: Soon
) -> None:
    begin_ms = soon_ms(0.6)
    options = {"lease": 30, "heartbeat": 0.5, "max_attempts": 1}
    long = [JobPlan(name=f"long-{n}", begin_ms=begin_ms, durations_s=(60, 0.01), options=options) for n in range(15)]
    short = [JobPlan(name=f"short-{n}", begin_ms=begin_ms, durations_s=(0.8,), options=options) for n in range(15)]
    names = [job.name for job in (*long, *short)]
    leaving = pack.up(*long, *short, grace_s=2)
    pack.wait("start", 30)
    staying = pack.up(*long, *short)
    pack.wait("up", 2)
    asked_ms = leaving.terminate()
    ended_ms = leaving.join()
    assert leaving.exit_code == 0
    assert ended_ms - asked_ms <= pulse.limit_ms(2_000 + 1_000)
    released = {entry.job: entry.at_ms for entry in pack.entries("released")}
    assert set(released) == {job.name for job in long}
    assert sorted(entry.job for entry in pack.entries("end", workers=[leaving])) == sorted(job.name for job in short)
    pack.wait("start", 45)
    pack.settled(*names)
    again = {entry.job: entry for entry in pack.entries("start", workers=[staying])}
    assert {name: entry.attempt for name, entry in again.items()} == dict.fromkeys(released, 2)
    assert max(again[name].at_ms - released[name] for name in released) <= pulse.limit_ms(500 + SLACK_MS)
    for name in names:
        expected = [RunStatus.HANDED_OVER, RunStatus.SUCCESS] if name in released else [RunStatus.SUCCESS]
        assert [record.status for record in pack.history(name)] == expected


def test_k6_a_sync_handler_that_cannot_be_stopped_is_released_named_and_run_returns(
    pack: Pack, pulse: Pulse, soon_ms: Soon
) -> None:
    job = JobPlan(name="stubborn", begin_ms=soon_ms(0.3), kind=Kind.SYNC, durations_s=(60, 0.01), options={"lease": 30})
    leaving = pack.up(job, grace_s=0.8)
    pack.wait("start")
    staying = pack.up(JobPlan(name="stubborn", begin_ms=job.begin_ms, options={"lease": 30, "heartbeat": 0.3}))
    asked_ms = leaving.terminate()
    ended_ms = leaving.join()
    assert ended_ms - asked_ms <= pulse.limit_ms(800 + 1_000)
    assert "stubborn: the handler of slot" in leaving.log()
    assert "cannot be stopped; its run is released" in leaving.log()
    pack.wait("start", 2)
    pack.settled("stubborn")
    assert [record.status for record in pack.history("stubborn")] == [RunStatus.HANDED_OVER, RunStatus.SUCCESS]
    assert staying.alive


@pytest.mark.parametrize("kind", [Kind.ASYNC, Kind.SYNC])
def test_k6_a_second_signal_cuts_the_grace_short(pack: Pack, pulse: Pulse, soon_ms: Soon, kind: Kind) -> None:
    job = JobPlan(begin_ms=soon_ms(0.3), kind=kind, durations_s=(60,))
    worker = pack.up(job, grace_s=60)
    pack.wait("start")
    worker.terminate()
    pack.hold_until(now_ms() + 300)
    assert worker.alive
    asked_ms = worker.signal(signal.SIGINT)
    assert worker.join() - asked_ms <= pulse.limit_ms(2_500)
    assert worker.exit_code == 0
    assert [view.status for view in pack.unfinished()] == [RunStatus.HANDED_OVER]


def test_k6_a_stop_waits_for_a_run_that_fits_into_the_grace(pack: Pack, soon_ms: Soon) -> None:
    worker = pack.up(JobPlan(begin_ms=soon_ms(0.3), durations_s=(1.2,)), grace_s=20)
    pack.wait("start")
    worker.terminate()
    worker.join()
    assert [record.status for record in pack.history()] == [RunStatus.SUCCESS]
    assert [entry.what for entry in worker.entries()][-1] == "down"
