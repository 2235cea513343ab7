"""Reports of runs that never happened; the id of each case names the public report."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from anarchon import Cron, Every
from anarchon.engine import Engine, Settings
from anarchon.observers import Metrics
from anarchon.schedule.zones import zone
from anarchon.testing import Fault, FaultKind
from anarchon.types import NOTE, RunKey, RunStatus
from rig import START_MS, FaultyBackend, Grid, Lab, VirtualClock, Work, job_of, observers, passes, until, virtual
from scenes import Scenario, cases, fleet, instant_ms, played, pretend, runs_of, started_once

MINUTE_MS = 60_000
DAY_MS = 1_440 * MINUTE_MS
ZONES = [
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "Europe/Paris",
    "Europe/Madrid",
    "Europe/Rome",
    "Europe/Athens",
    "Europe/Dublin",
    "Europe/Lisbon",
    "Europe/Moscow",
    "Europe/Istanbul",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Africa/Johannesburg",
    "Africa/Lagos",
    "America/New_York",
    "America/Chicago",
    "America/Denver",
    "America/Los_Angeles",
    "America/Phoenix",
    "America/Anchorage",
    "America/Halifax",
    "America/St_Johns",
    "America/Sao_Paulo",
    "America/Bogota",
    "America/Santiago",
    "America/Mexico_City",
    "America/Havana",
    "Asia/Tokyo",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Asia/Tehran",
    "Asia/Gaza",
    "Asia/Shanghai",
    "Australia/Sydney",
    "Australia/Adelaide",
    "Australia/Lord_Howe",
    "Pacific/Auckland",
    "Pacific/Chatham",
    "Pacific/Apia",
]


def slot(number: int) -> int:
    return START_MS + number * 1_000


def known(lab: Lab, slot_ms: int, job: str = "job") -> None:
    """Let the store have seen a job: a run of this slot is done."""
    key = RunKey(job, slot_ms)
    lab.finished(key, lab.won(key, max_late_ms=10 * DAY_MS))


def slot_within_a_restart() -> None:
    """Everybody is down from 11:59:50 to 12:00:20; the slot of noon runs once."""
    down = [Fault(80_000, FaultKind.RESTART, n, 30_000) for n in range(3)]
    report = played(fleet("* * * * *"), *down, start="2027-01-15T11:58:30", seconds=200)
    started_once(report, [instant_ms(f"2027-01-15T{at}:00") for at in ("11:59", "12:00", "12:01")])


def deploy_of_six_minutes() -> None:
    """Each job has its own limit, judged on the store's clock, whatever the instances' clocks show."""
    jobs = fleet("0 * * * *", name="patient", max_late=420)
    jobs.add_job(pretend, "0 * * * *", name="default")
    down = [Fault(3_890_000, FaultKind.RESTART, n, 360_000) for n in range(3)]  # from 11:59:50 to 12:05:50
    noon_ms = instant_ms("2027-01-15T12:00:00")
    seen = played(jobs, *down, start="2027-01-15T10:55:00", seconds=4_500, skews_ms=(600_000.0, -600_000.0))
    assert runs_of(seen, "patient")[noon_ms] == 1
    assert runs_of(seen, "default")[noon_ms] == 0
    assert [told.key for told in seen.told if told.event == "run_missed"] == [RunKey("default", noon_ms)]


def rolling_deploy_around_a_quarter() -> None:
    """Three instances are replaced over three minutes around a slot of a job of each quarter hour."""
    deploys = [Fault(210_000 + 60_000 * n, FaultKind.DEPLOY, n, 50_000) for n in range(3)]
    report = played(fleet("*/15 * * * *"), *deploys, start="2027-01-15T10:10:00", seconds=1_500, handler_s=(5, 20))
    slots = {instant_ms("2027-01-15T10:15:00"), instant_ms("2027-01-15T10:30:00")}
    final = {record.slot_ms: record.status for record in reversed(report.history["job"]) if record.status.final}
    assert {slot for slot, status in final.items() if status is RunStatus.SUCCESS} >= slots


@virtual
async def crash_between_claim_and_start(lab: Lab) -> None:
    """A slot was claimed and its instance died before it began: it is taken over, not counted as done."""
    work = Work()
    await lab.start(job_of(Grid(60_000), work, lease=5))
    await lab.at(59_990)
    lab.clock.step(15)
    lab.won(RunKey("job", slot(60)), lease_ms=5_000)
    lab.clock.step(-15)
    await until(lambda: bool(work.ended), "the slot is taken over", 20_000)
    assert work.started == [(slot(60), 2)]


def leader_after_leader_dies() -> None:
    """Somebody is killed every 20 s for five minutes; there is no leader to wait for."""
    kills = [Fault(20_000 * n, FaultKind.CRASH, n % 3, 5_000) for n in range(1, 16)]
    report = played(fleet(Every(seconds=10), lease=6), *kills, seconds=300)
    assert len(runs_of(report)) >= 30
    assert report.crash_runs >= 0


def a_second_or_two_late() -> None:
    """With every default a slot that comes 1.8 s late, as under a collection of garbage or a throttled CPU, runs."""
    pauses = [Fault(59_500, FaultKind.PAUSE, 0, 2_300), Fault(179_900, FaultKind.PAUSE, 0, 1_900)]
    report = played(fleet("* * * * *", jitter=0), *pauses, instances=1, seconds=240)
    started_once(report, [instant_ms(f"2027-01-15T10:0{n}:00") for n in (1, 2, 3)])
    late_ms = {attempt.key.slot_ms: attempt.store_ms - attempt.key.slot_ms for attempt in report.attempts}
    assert max(late_ms.values()) >= 1_800


@virtual
async def asleep_each_week(lab: Lab) -> None:
    """The only machine sleeps at the weekly slot: an event, a row of history and a metric say so."""
    metrics = Metrics()
    clock, backend = VirtualClock(), FaultyBackend(lab.store)
    loop = asyncio.get_running_loop()
    engine = Engine(backend, clock, Settings(instance="nas"), observers=observers(lab.tape, metrics), handler_loop=loop)
    engine.add_job(job_of(Grid(7 * DAY_MS, phase_ms=START_MS % (7 * DAY_MS) + 3_600_000)))
    known(lab, START_MS - 7 * DAY_MS + 3_600_000)
    task = loop.create_task(engine.run())
    await until(engine.ready.is_set, "the engine is ready")
    clock.suspend(3 * 3_600_000)
    lab.clock.step(3 * 3_600_000)
    await passes(60_000)
    assert lab.tape.slots("run_missed") == [START_MS + 3_600_000]
    assert [(r.slot_ms, r.space, r.status) for r in lab.history()][-1:] == [(START_MS + 3_600_000, NOTE, RunStatus.MISSED)]
    assert metrics.value("anarchon_slots_missed_total", job="job") == 1
    engine.stop()
    await task


@virtual
async def paused_for_days(lab: Lab) -> None:
    """Paused for three days while the fleet is down as well: the past is left alone, the next slot runs."""
    work = Work()
    instance = await lab.start(job_of(Grid(MINUTE_MS), work))
    await lab.at(61_000)
    lab.store.set_paused("job", paused=True)
    await instance.stop()
    lab.clock.step(3 * DAY_MS)
    lab.store.set_paused("job", paused=False)
    again = await lab.start(job_of(Grid(MINUTE_MS), work, catch_up="all"), clock=VirtualClock(lab.clock.offset_ms))
    now_ms = lab.now_ms()
    await passes(MINUTE_MS)
    assert [slot_ms - now_ms <= MINUTE_MS for slot_ms, _ in work.started] == [True, True]
    assert lab.tape.of("run_missed") == []
    assert len(again.backend.calls) < 30
    assert again.engine.store.time.now_ms() - lab.now_ms() < 5


@virtual
async def paused_for_days_while_alive(lab: Lab) -> None:
    """A fleet that lives through the pause notes each slot as it passes, and the next one after it runs."""
    work = Work()
    await lab.start(job_of(Grid(MINUTE_MS), work))
    await lab.at(1_000)
    lab.store.set_paused("job", paused=True)
    await lab.at(DAY_MS // 3 + 1_000)
    assert work.started == []
    lab.store.set_paused("job", paused=False)
    await lab.at(DAY_MS // 3 + MINUTE_MS + 1_000)
    assert work.started == [(START_MS + DAY_MS // 3 + MINUTE_MS, 1)]
    assert len(lab.tape.of("slot_skipped")) == 480
    assert lab.tape.of("run_missed") == []


def only_instance_replaced() -> None:
    """kill -9 the only instance, start another: the next slot runs at its time, what was running is taken over."""
    report = played(
        fleet("* * * * *", jitter=1, lease=6), Fault(62_000, FaultKind.CRASH, 0, 3_000), instances=1, seconds=200,
        handler_s=(5, 5),
    )  # fmt: skip
    late_ms = {(a.key.slot_ms, a.attempt): a.store_ms - a.key.slot_ms for a in report.attempts}
    assert late_ms[instant_ms("2027-01-15T10:02:00"), 1] < 1_500
    assert (instant_ms("2027-01-15T10:01:00"), 2) in late_ms


@virtual
async def laptop_sleeps(lab: Lab) -> None:
    """Ten minutes of suspend: the process goes on, late slots follow each job's `max_late`."""
    strict, patient = Work(), Work()
    instance = await lab.start(
        job_of(Grid(3 * MINUTE_MS), strict, name="strict"), job_of(Grid(3 * MINUTE_MS), patient, name="patient", max_late=900)
    )
    await lab.at(1_000)
    instance.clock.suspend(11 * MINUTE_MS)
    lab.clock.step(11 * MINUTE_MS)
    await lab.at(16 * MINUTE_MS)
    assert instance.engine.ready.is_set()
    assert not instance.task.done()
    assert [slot_ms for slot_ms, _ in strict.started] == [START_MS + n * MINUTE_MS for n in (12, 15)]
    assert sorted(slot_ms for slot_ms, _ in patient.started)[-2:] == [START_MS + n * MINUTE_MS for n in (12, 15)]
    assert len(patient.started) >= 3


@virtual
async def store_away_at_start(lab: Lab) -> None:
    """The store cannot be reached for the first minute; then slots run without a restart."""
    known(lab, slot(-600))
    work = Work()
    backend = FaultyBackend(lab.store)
    backend.down = True
    instance = lab.launch(job_of(Grid(10_000), work), backend=backend)
    await lab.at(60_500)
    assert work.started == []
    backend.down = False
    await lab.at(101_000)
    assert [slot_ms for slot_ms, _ in work.started][-4:] == [slot(n) for n in (70, 80, 90, 100)]
    assert not instance.engine.store.failing


def restart_in_summer() -> None:
    """Restarts of a fleet in London summer time lose no slot: what is stored are instants, not local times."""
    stops = [Fault(300_000 + 600_000 * n, FaultKind.RESTART, n % 2, 20_000) for n in range(6)]
    report = played(fleet("*/30 * * * *", tz="Europe/London"), *stops, instances=2, start="2027-07-01T11:45:00", seconds=5_400)
    wanted = cases(Cron("*/30 * * * *", "Europe/London"), "2027-07-01T11:45:00", "2027-07-01T13:15:00")
    assert wanted == ["2027-07-01T12:00:00", "2027-07-01T12:30:00", "2027-07-01T13:00:00"]
    started_once(report, map(instant_ms, wanted))


def place_lost_with_each_crash() -> None:
    """kill -9 with one place an instance, ten times: the place comes back with the lease's end."""

    def small(backend: Any, clock: Any, settings: Settings, **more: Any) -> Engine:
        return Engine(backend, clock, replace(settings, max_running=1), **more)

    kills = [Fault(12_000 + 20_000 * n, FaultKind.CRASH, 0, 500) for n in range(10)]
    report = played(fleet(Every(seconds=10), lease=3), *kills, instances=1, seconds=260, handler_s=(4, 4), make_engine=small)
    assert sum(1 for attempt in report.attempts if attempt.end == "killed") >= 8
    ended = [attempt.key.slot_ms for attempt in report.attempts if attempt.end == "done"]
    assert max(ended) >= instant_ms("2027-01-15T10:04:10")


@virtual
async def same_interval_from_two(lab: Lab) -> None:
    """Two instances register the same interval 300 ms apart: there is one grid, and nobody moves it."""
    work = Work()
    await lab.start(job_of(Every(seconds=10), work))
    await passes(300)
    await lab.start(job_of(Every(seconds=10), work))
    await lab.at(61_000)
    assert work.started == [(slot(10 * n), 1) for n in range(1, 7)]


def no_weeks_are_skipped() -> None:
    """From each slot to the next, noon of every day of a year, in forty zones, five years in turn."""
    assert len(ZONES) == 40
    for number, name in enumerate(ZONES):
        schedule, place = Cron("0 12 * * *", name), zone(name).info
        t_ms = None
        for _ in range(366):
            following = schedule.next_after(instant_ms(f"{2024 + number % 5}-01-01T00:00:00") if t_ms is None else t_ms)
            assert following is not None
            local = datetime.fromtimestamp(following / 1000, UTC).astimezone(place)
            assert (local.hour, local.minute, local.second) == (12, 0, 0)
            assert t_ms is None or following - t_ms <= 25 * 3_600_000
            t_ms = following


def late_timer_on_a_weekly_slot() -> None:
    """A timer that wakes 900 ms late for a weekly slot: it runs."""
    pause = Fault(59_950, FaultKind.PAUSE, 0, 950)
    report = played(fleet("0 0 * * SUN", jitter=0), pause, instances=1, start="2027-01-16T23:59:00", seconds=120)
    started_once(report, [instant_ms("2027-01-17T00:00:00")])
    assert report.attempts[0].store_ms - report.attempts[0].key.slot_ms >= 880


CASES = [
    pytest.param(slot_within_a_restart, id="sidekiq-cron/sidekiq-cron#111"),
    pytest.param(deploy_of_six_minutes, id="sidekiq-cron/sidekiq-cron#463"),
    pytest.param(rolling_deploy_around_a_quarter, id="sidekiq/sidekiq#6656"),
    pytest.param(crash_between_claim_and_start, id="procrastinate-org/procrastinate#1495"),
    pytest.param(leader_after_leader_dies, id="distribworks/dkron#1210"),
    pytest.param(leader_after_leader_dies, id="distribworks/dkron#998"),
    pytest.param(a_second_or_two_late, id="agronholm/apscheduler#292"),
    pytest.param(a_second_or_two_late, id="agronholm/apscheduler#182"),
    pytest.param(asleep_each_week, id="rfsbraz/deleterr#292"),
    pytest.param(paused_for_days, id="kubernetes/kubernetes#45825"),
    pytest.param(paused_for_days_while_alive, id="kubernetes/kubernetes#42649"),
    pytest.param(only_instance_replaced, id="sibson/redbeat#100"),
    pytest.param(only_instance_replaced, id="sibson/redbeat#85"),
    pytest.param(laptop_sleeps, id="sibson/redbeat#218"),
    pytest.param(store_away_at_start, id="celery/celery#8845"),
    pytest.param(restart_in_summer, id="celery/django-celery-beat#798"),
    pytest.param(place_lost_with_each_crash, id="agronholm/apscheduler#1110"),
    pytest.param(same_interval_from_two, id="taskforcesh/bullmq#3262"),
    pytest.param(no_weeks_are_skipped, id="node-cron/node-cron#510"),
    pytest.param(late_timer_on_a_weekly_slot, id="node-cron/node-cron#485"),
]


@pytest.mark.parametrize("scenario", CASES)
def test_runs_all_the_same(scenario: Scenario) -> None:
    scenario()
