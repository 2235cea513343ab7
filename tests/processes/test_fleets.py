"""What users of other schedulers ran into, where it takes processes: each slot once, none lost, places come back."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from anarchon.types import RunStatus
from workers import JobPlan, Kind, Pack, eventually

Soon = Callable[[float], int]


def ran(pack: Pack, begin_ms: int, until_ms: int) -> Counter[int]:
    """Count the handler starts of each slot in a span, as the workers wrote them down."""
    return Counter(entry.slot_ms for entry in pack.entries("start") if begin_ms <= entry.slot_ms <= until_ms)


def coming(begin_ms: int, period_ms: int, after_ms: int, count: int) -> list[int]:
    """Return the next slots of a job after a time."""
    first = begin_ms + max(0, (after_ms - begin_ms) // period_ms + 1) * period_ms
    return list(range(first, first + count * period_ms, period_ms))


def test_apscheduler_766_and_huey_716_four_processes_with_one_job_list_run_each_slot_once(pack: Pack, soon_ms: Soon) -> None:
    begin_ms = soon_ms(1.0)
    job = JobPlan(begin_ms=begin_ms, period_ms=100)
    for _ in range(4):
        pack.start(job)
    slots = coming(begin_ms, 100, pack.ready(), 20)
    eventually(lambda: any(entry.slot_ms > slots[-1] for entry in pack.entries("finished")), "20 slots pass")
    counts = ran(pack, slots[0], slots[-1])
    skipped = {record.slot_ms for record in pack.history() if record.key.note}
    assert set(counts.values()) == {1}
    assert set(counts) | skipped >= set(slots)


def test_oban_py_32_processes_of_one_host_and_name_still_have_one_winner(pack: Pack, soon_ms: Soon) -> None:
    begin_ms = soon_ms(1.0)
    job = JobPlan(begin_ms=begin_ms, period_ms=100, options={"overlap": "allow"})
    for _ in range(2):
        pack.start(job, host="web")
    for _ in range(2):
        pack.start(job, instance="same", host="web")
    slots = coming(begin_ms, 100, pack.ready(), 20)
    eventually(lambda: any(entry.slot_ms > slots[-1] for entry in pack.entries("finished")), "20 slots pass")
    assert ran(pack, slots[0], slots[-1]) == Counter(slots)
    records = [record for record in pack.history() if record.slot_ms <= slots[-1]]
    assert len({record.token for record in records}) == len(records)
    names = {record.instance for record in records} - {"same"}
    assert all(name.startswith("web-") for name in names)


def test_bullmq_2876_an_instance_that_restarts_every_300_ms_around_a_slot_runs_it_once(pack: Pack, soon_ms: Soon) -> None:
    begin_ms = soon_ms(1.2)
    job = JobPlan(begin_ms=begin_ms, options={"lease": 0.6})
    for _ in range(10):
        worker = pack.up(job)
        pack.hold_for(200)
        # A crash inside the run is another case (test_takeover): here no attempt is under way.
        eventually(
            lambda: len(pack.entries("start")) == len(pack.entries("finished")),
            "no run is under way",
        )
        worker.kill()
    assert time.time() * 1000 > begin_ms + 500
    assert ran(pack, begin_ms, begin_ms) == {begin_ms: 1}
    assert [record.status for record in pack.history()] == [RunStatus.SUCCESS]


def test_apscheduler_1110_ten_kills_of_an_instance_with_one_place_block_nothing(pack: Pack, soon_ms: Soon) -> None:
    options = {"lease": 0.3, "heartbeat": 0.1, "max_attempts": 20}
    job = JobPlan(begin_ms=soon_ms(0.3), durations_s=(*[60.0] * 10, 0.01), options=options)
    for attempt in range(1, 11):
        worker = pack.start(job, max_running=1)
        assert pack.wait("start", attempt)[-1].attempt == attempt
        worker.kill()
    pack.start(job, max_running=1)
    assert pack.wait("finished")[0].attempt == 11
    assert [record.status for record in pack.history()] == [*[RunStatus.LOST] * 10, RunStatus.SUCCESS]


def test_shedlock_6_processes_that_start_at_once_run_a_late_slot_of_a_short_job_once(pack: Pack, soon_ms: Soon) -> None:
    job = JobPlan(begin_ms=soon_ms(-5), durations_s=(0.001,))
    for _ in range(5):
        pack.start(job)
    pack.wait("up", 5)
    pack.wait("finished")
    pack.hold_for(500)
    assert [(entry.slot_ms, entry.attempt) for entry in pack.entries("start")] == [(job.begin_ms, 1)]


def test_sidekiq_cron_111_a_slot_within_the_seconds_of_a_restart_runs_once(pack: Pack, soon_ms: Soon) -> None:
    job = JobPlan(begin_ms=soon_ms(0.8), options={"max_late": 60})
    first = pack.up(job)
    first.terminate()
    first.join()
    assert pack.entries("start") == []
    pack.hold_for(max(0.0, job.begin_ms - time.time() * 1000) + 300)
    for _ in range(3):
        pack.start(job)
    pack.wait("finished")
    pack.wait("up", 4)
    pack.hold_for(300)
    assert len(pack.entries("start")) == 1


def test_redbeat_100_after_a_kill_of_the_only_instance_the_next_slot_of_a_new_one_runs(pack: Pack, soon_ms: Soon) -> None:
    job = JobPlan(begin_ms=soon_ms(0.3), period_ms=1_000, durations_s=(0.01,), options={"lease": 30})
    first = pack.start(job)
    pack.wait("finished")
    first.kill()
    second = pack.up(job)
    up_at = time.time() * 1000
    pack.wait("start", 2)
    entry = pack.entries("start", workers=[second])[0]
    assert entry.slot_ms <= up_at + 1_000
    assert entry.attempt == 1


def test_redbeat_218_a_process_that_was_suspended_goes_on_and_keeps_max_late(pack: Pack, soon_ms: Soon) -> None:
    begin_ms = soon_ms(0.3)
    job = JobPlan(begin_ms=begin_ms, period_ms=500, options={"max_late": 1, "lease": 1})
    worker = pack.start(job)
    pack.wait("finished")
    worker.pause()
    pack.hold_for(3_000)
    resumed = time.time() * 1000
    worker.resume()
    eventually(lambda: any(entry.slot_ms > resumed for entry in pack.entries("finished")), "it goes on")
    late = [entry.slot_ms for entry in pack.entries("start") if resumed - 2_900 < entry.slot_ms < resumed - 1_100]
    assert late == []
    eventually(
        lambda: any(record.status is RunStatus.MISSED for record in pack.history()), "the slots of the suspend are noted", 10
    )
    assert set(ran(pack, begin_ms, int(resumed)).values()) == {1}


def test_dkron_1210_instances_killed_one_after_the_other_lose_no_slot_while_one_lives(pack: Pack, soon_ms: Soon) -> None:
    begin_ms = soon_ms(1.0)
    options = {"overlap": "allow", "lease": 0.6, "heartbeat": 0.2, "max_attempts": 10}
    job = JobPlan(begin_ms=begin_ms, period_ms=200, durations_s=(0.05,), options=options)
    alive = [pack.start(job) for _ in range(3)]
    (first_ms,) = coming(begin_ms, 200, pack.ready(), 1)
    for _ in range(6):
        pack.hold_for(500)
        alive.append(pack.start(job))
        pack.ready(alive[-1:])
        alive.pop(0).kill()
    until_ms = round(time.time() * 1000)
    eventually(lambda: any(entry.slot_ms > until_ms for entry in pack.entries("finished")), "the fleet goes on")
    eventually(lambda: all(view.key.slot_ms > until_ms for view in pack.unfinished()), "every run is final")
    done = {record.slot_ms for record in pack.history() if record.status is RunStatus.SUCCESS}
    assert set(range(first_ms, until_ms, 200)) - done == set()
    counts = Counter(record.slot_ms for record in pack.history() if record.status is RunStatus.SUCCESS)
    assert set(counts.values()) == {1}


def test_apscheduler_843_a_locked_file_delays_claims_and_ends_no_scheduler(pack: Pack, soon_ms: Soon) -> None:
    begin_ms = soon_ms(0.5)
    job = JobPlan(begin_ms=begin_ms, period_ms=1_000, options={"max_late": 30, "overlap": "allow"})
    worker = pack.start(job)
    pack.wait("finished")
    with closing(sqlite3.connect(pack.database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        locked_ms = round(time.time() * 1000)
        pack.hold_for(6_500)  # longer than a call to the store may take
        other.execute("ROLLBACK")
    freed_ms = round(time.time() * 1000)
    eventually(lambda: any(entry.slot_ms > freed_ms for entry in pack.entries("finished")), "it goes on")
    pack.settled()
    assert worker.alive
    due = {slot for slot in range(begin_ms, freed_ms, 1_000) if slot > locked_ms}
    assert len(due) >= 6
    assert due - {record.slot_ms for record in pack.history() if record.status is RunStatus.SUCCESS} == set()
    assert set(ran(pack, begin_ms, freed_ms).values()) == {1}


def test_two_schedules_in_a_rolling_deploy_give_the_union_of_slots_each_once(pack: Pack, soon_ms: Soon) -> None:
    begin_ms = soon_ms(1.0)
    old = JobPlan(begin_ms=begin_ms, period_ms=200, options={"overlap": "allow"})
    new = JobPlan(begin_ms=begin_ms, period_ms=300, options={"overlap": "allow"})
    fleet = [pack.start(old) for _ in range(3)]
    (first_ms,) = coming(begin_ms, 200, pack.ready(), 1)
    new_ms = 0
    for _ in range(3):
        pack.hold_for(700)
        fleet.append(pack.start(new))
        new_ms = new_ms or pack.ready(fleet[-1:])
        pack.ready(fleet[-1:])
        fleet.pop(0).terminate()
    changed_ms = round(time.time() * 1000)
    for worker in pack.workers[:3]:
        worker.join()
    eventually(lambda: any(entry.slot_ms > changed_ms + 600 for entry in pack.entries("finished")), "the new schedule goes on")
    pack.settled()
    counts = ran(pack, first_ms, changed_ms)
    assert set(counts.values()) == {1}
    old_until = max(slot for slot in counts if (slot - begin_ms) % 300)
    new_from = coming(begin_ms, 300, new_ms, 1)[0]
    assert new_from < old_until  # both schedules were in force
    assert set(range(first_ms, old_until, 200)) | set(range(new_from, changed_ms - 100, 300)) <= set(counts)


def test_a_child_that_a_handler_forks_is_ended_by_sigterm_as_any_process(pack: Pack, soon_ms: Soon) -> None:
    job = JobPlan(begin_ms=soon_ms(0.3), kind=Kind.FORKS, durations_s=(0.01,))
    worker = pack.start(job)
    child = int(pack.wait("start")[0].detail)
    os.kill(child, signal.SIGTERM)
    assert pack.wait("end")[0].detail == str(int(signal.SIGTERM))
    pack.wait("finished")
    assert not Path(f"/proc/{child}").exists()
    assert worker.alive
