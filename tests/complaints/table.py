"""Public reports about other schedulers, by id, and the tests that show that it does not happen here.

Each report is a case of its own in this folder, with the report for its id; `FURTHER` names tests of the packages that go
deeper. A report stands for a kind of fault: when a new one of a known kind appears, it gets a row and a case.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FURTHER", "SECTIONS", "Row", "Section"]

CORE = "anarchon-core/tests"
SCHEDULER = f"{CORE}/scheduler"
REPORTED = f"{CORE}/schedule/test_complaints.py"


@dataclass(frozen=True, slots=True)
class Row:
    """One report: its id and the scenario that was made of it."""

    report: str
    scenario: str


@dataclass(frozen=True, slots=True)
class Section:
    """The reports of one kind, and the test of this folder that has each of them as a case."""

    test: str
    rows: tuple[Row, ...]


SECTIONS: tuple[Section, ...] = (
    Section(
        "test_duplicates.py::test_runs_once",
        (
            Row(
                "agronholm/apscheduler#766",
                "Four application processes hold the same list: one runs each slot, the others are told that they lost",
            ),
            Row("viniciuschiele/flask-apscheduler#139", "A parent and its reloaded child hold the same application"),
            Row("lukas-krecan/ShedLock#6", "All instances start at once and claim the same late slot of a job of a millisecond"),
            Row("lukas-krecan/ShedLock#8", "All instances start at once and claim the same late slot of a job of a millisecond"),
            Row("go-co-op/gocron#799", "A job of five leases keeps its run while its heartbeats arrive"),
            Row("python-arq/arq#196", "A slower instance asks 10 ms after the run was finished"),
            Row("rq/rq#1531", "Four instances, an hour, a reset of somebody's connection every fifteen seconds"),
            Row("oban-bg/oban-py#32", "Three processes of one host share a name: tokens tell them apart, names decide nothing"),
            Row("sibson/redbeat#127", "Somebody took the run over: the old holder's renewal is refused and it is told"),
            Row(
                "quartz-scheduler/quartz#847",
                "Both instances are cut off while one runs; the other may take over only once the lease has ended",
            ),
            Row(
                "HangfireIO/Hangfire#1208",
                "The reply to a successful claim is lost: asked again it is the same win; milliseconds of a slot are kept",
            ),
            Row(
                "taskforcesh/bullmq#2876",
                "An instance that dies and starts again every 300 ms around a slot, beside a steady one",
            ),
            Row("coleifer/huey#716", "Four pods of one image, with no difference between them"),
            Row("agenda/agenda#905", "Both instances spread their claims over three seconds"),
            Row(
                "rq/rq-scheduler#312",
                "5,000 jobs are due at once at a slow store: each slot is claimed on its own, there is no lock around the batch",
            ),
        ),
    ),
    Section(
        "test_missed.py::test_runs_all_the_same",
        (
            Row("sidekiq-cron/sidekiq-cron#111", "Everybody is down from 11:59:50 to 12:00:20; the slot of noon runs once"),
            Row(
                "sidekiq-cron/sidekiq-cron#463",
                "Each job has its own limit, judged on the store's clock, whatever the instances' clocks show",
            ),
            Row(
                "sidekiq/sidekiq#6656",
                "Three instances are replaced over three minutes around a slot of a job of each quarter hour",
            ),
            Row(
                "procrastinate-org/procrastinate#1495",
                "A slot was claimed and its instance died before it began: it is taken over, not counted as done",
            ),
            Row("distribworks/dkron#1210", "Somebody is killed every 20 s for five minutes; there is no leader to wait for"),
            Row("distribworks/dkron#998", "Somebody is killed every 20 s for five minutes; there is no leader to wait for"),
            Row(
                "agronholm/apscheduler#292",
                "With every default a slot that comes 1.8 s late, as under a collection of garbage or a throttled CPU, runs",
            ),
            Row(
                "agronholm/apscheduler#182",
                "With every default a slot that comes 1.8 s late, as under a collection of garbage or a throttled CPU, runs",
            ),
            Row(
                "rfsbraz/deleterr#292",
                "The only machine sleeps at the weekly slot: an event, a row of history and a metric say so",
            ),
            Row(
                "kubernetes/kubernetes#45825",
                "Paused for three days while the fleet is down as well: the past is left alone, the next slot runs",
            ),
            Row(
                "kubernetes/kubernetes#42649",
                "A fleet that lives through the pause notes each slot as it passes, and the next one after it runs",
            ),
            Row(
                "sibson/redbeat#100",
                "kill -9 the only instance, start another: the next slot runs at its time, what was running is taken over",
            ),
            Row(
                "sibson/redbeat#85",
                "kill -9 the only instance, start another: the next slot runs at its time, what was running is taken over",
            ),
            Row("sibson/redbeat#218", "Ten minutes of suspend: the process goes on, late slots follow each job's `max_late`"),
            Row("celery/celery#8845", "The store cannot be reached for the first minute; then slots run without a restart"),
            Row(
                "celery/django-celery-beat#798",
                "Restarts of a fleet in London summer time lose no slot: what is stored are instants, not local times",
            ),
            Row(
                "agronholm/apscheduler#1110",
                "kill -9 with one place an instance, ten times: the place comes back with the lease's end",
            ),
            Row(
                "taskforcesh/bullmq#3262",
                "Two instances register the same interval 300 ms apart: there is one grid, and nobody moves it",
            ),
            Row(
                "node-cron/node-cron#510",
                "From each slot to the next, noon of every day of a year, in forty zones, five years in turn",
            ),
            Row("node-cron/node-cron#485", "A timer that wakes 900 ms late for a weekly slot: it runs"),
        ),
    ),
    Section(
        "test_schedules.py::test_slots_are_what_was_written",
        (
            Row("kubernetes/kubernetes#121594", "Daily at 02:00 in Berlin, in the night when 02:00 comes twice: once"),
            Row(
                "agronholm/apscheduler#980",
                "Every two hours in London: whatever the moment around the change, the next slot is after it",
            ),
            Row(
                "agronholm/apscheduler#1059",
                "02:00 in New York on a day without 02:00: the first instant that exists, and the next day as ever",
            ),
            Row("celery/celery#6438", "A minutely and a daily job go on through the autumn change"),
            Row("pallets-eco/croniter#25", "20:00 is 20:00 also two days after the change, walked from three days before"),
            Row(
                "HangfireIO/Hangfire#567", "Each minute of London's repeated hour: 120 slots between 01:00 and 02:00 of the wall"
            ),
            Row("apache/airflow#35272", "A dense list of minutes and hours next to the day of the change"),
            Row("PrefectHQ/prefect#7461", "Slots computed before and after the change are the same numbers"),
            Row("PrefectHQ/prefect#7381", "Slots computed before and after the change are the same numbers"),
            Row("cronie-crond/cronie#218", "Noon on Sundays, over a Sunday of 23 hours"),
            Row(
                "agronholm/apscheduler#120",
                "One table says what happens in gap and fold, to both kinds of expressions, at half hours and changes for good",
            ),
            Row(
                "pallets-eco/croniter#40", 'A day field that begins with a star does not switch on the "or" of the two day fields'
            ),
            Row(
                "pallets-eco/croniter#41", 'A day field that begins with a star does not switch on the "or" of the two day fields'
            ),
            Row("pallets-eco/croniter#243", "31 February or Sunday: Sundays"),
            Row("taichino/croniter#34", "Dates that never come are refused at once: what took a scan took seconds"),
            Row(
                "Steve-Mcl/node-red-contrib-cron-plus#110",
                "Dates that never come are refused at once: what took a scan took seconds",
            ),
            Row(
                "taichino/croniter#131",
                "Started on 29 February and on the days around a year's and a month's end, ordinary expressions go on",
            ),
            Row(
                "taichino/croniter#55",
                "Started on 29 February and on the days around a year's and a month's end, ordinary expressions go on",
            ),
            Row(
                "pallets-eco/croniter#253",
                "Over 20,000 names `H/60` reaches every minute and `H(50-52)/10` stays where it was put",
            ),
            Row("taichino/croniter#119", "Ranges over the end of the week, and 7 for Sunday"),
            Row("node-cron/node-cron#580", "Ranges over the end of the week, and 7 for Sunday"),
            Row("agronholm/apscheduler#349", "`1,7` is Monday and Sunday"),
            Row(
                "PGQueuer docs/guides/scheduling.md",
                "Six fields are seconds first, and what looks like seconds last is refused with the word for it",
            ),
            Row(
                "croniter CHANGELOG 6.1/6.2", "Thousands of different expressions fill caches that have a limit, and nothing else"
            ),
        ),
    ),
    Section(
        "test_clock.py::test_clocks_neither_double_nor_lose",
        (
            Row(
                "agronholm/apscheduler#351",
                "The machine's clock goes back two minutes: the next slot of the store's clock runs, none repeats",
            ),
            Row(
                "agronholm/apscheduler#752",
                "The machine's clock goes back two minutes: the next slot of the store's clock runs, none repeats",
            ),
            Row("agronholm/apscheduler#339", "Steps of two seconds, back and forth, on every machine each hour of a day"),
            Row(
                "taskiq-python/taskiq#296",
                "Timers that wake early or late by a little, on machines that are ahead and behind by a little",
            ),
            Row(
                "kelektiv/node-cron#180",
                "The last second of 2016 comes twice on one fleet and is smeared over others: midnight and 04:00 run once",
            ),
            Row(
                "kagkarlsson/db-scheduler#364",
                "One instance is an hour ahead: it takes nothing early, and the others run each slot at its time",
            ),
            Row(
                "oban-py CHANGELOG 0.6.2",
                "Every clock goes back by two minutes and a new process starts in between: no evaluated minute is entered again",
            ),
            Row(
                "nopSolutions/nopCommerce#8105",
                "Clocks of 15.6 ms granularity: nothing is left out, nothing doubled, and nobody spins",
            ),
        ),
    ),
    Section(
        "test_lives.py::test_lives_and_changes",
        (
            Row(
                "agronholm/apscheduler#1116",
                "An async handler blocks its loop for three leases: the lease is renewed from elsewhere, nobody starts it again",
            ),
            Row(
                "agronholm/apscheduler#1030",
                "The first run begins with the start itself; its first heartbeat comes within a third of the lease",
            ),
            Row("Kludex/uvicorn#941", "A scheduler made at import opens nothing; two forks of it run each slot once"),
            Row("Kludex/uvicorn#85", "A scheduler made at import opens nothing; two forks of it run each slot once"),
            Row(
                "agronholm/apscheduler#447",
                "Constructed under one loop, run under another: asyncio's own and, where it is installed, uvloop's",
            ),
            Row(
                "agronholm/apscheduler#481",
                "The only worker with the job died without a word: asked for a later slot, `why` says that nobody had the job",
            ),
            Row("agenda/agenda#1405", "`stop` within its grace: no new claims, the running handler goes on to its end"),
            Row(
                "graphile/worker#526",
                "The grace is over: another instance begins attempt 2 at once, not after the lease of four hours",
            ),
            Row(
                "r-spade/ormah#271",
                "Killed after 15 s: a handler that will not stop is released, `stop` returns within grace + 1 s",
            ),
            Row(
                "sidekiq-cron/sidekiq-cron#192",
                "Removed from the code of every instance: no more runs, and `orphans` lists what is left of it",
            ),
            Row(
                "sidekiq-cron/sidekiq-cron#267",
                "Removed from the code of every instance: no more runs, and `orphans` lists what is left of it",
            ),
            Row(
                "sidekiq-cron/sidekiq-cron#504",
                "Removed from the code of every instance: no more runs, and `orphans` lists what is left of it",
            ),
            Row("taskforcesh/bullmq#3430", "A changed interval is in force from the next slot on, on every instance that has it"),
            Row(
                "sidekiq/sidekiq#5035",
                "A rolling deploy over ten minutes: what either version names runs, each slot once, and nothing vanishes",
            ),
            Row(
                "celery/celery#4777",
                "There is no local state that could be damaged, and a damaged SQLite file is named in one sentence",
            ),
            Row(
                "celery/celery#346",
                "There is no local state that could be damaged, and a damaged SQLite file is named in one sentence",
            ),
            Row(
                "kubernetes/kubernetes#123220",
                "`0 21 * * tue,fri` becomes `0 23 * * wed,sun` on a Friday before 21:00: nothing runs that Friday",
            ),
        ),
    ),
    Section(
        "test_stores.py::test_stores_fail_and_come_back",
        (
            Row(
                "agronholm/apscheduler#843",
                "Another process holds SQLite's write lock for 8 s: claims wait or come late, and the scheduler goes on",
            ),
            Row("celery/celery#10205", "Five resets in three seconds: claims are back within two"),
            Row("celery/celery#8030", "Five resets in three seconds: claims are back within two"),
            Row(
                "agronholm/apscheduler#386",
                "A handler that holds a lock works, since what crosses the store are names, numbers and JSON",
            ),
        ),
    ),
    Section(
        "test_stores.py::test_transaction_pooling_breaks_nothing",
        (
            Row("bensheldon/good_job#269", "A pooler in transaction mode breaks prepared statements and session locks"),
            Row("malthe/pq#30", "A pooler in transaction mode breaks prepared statements and session locks"),
        ),
    ),
)

FURTHER: dict[str, tuple[str, ...]] = {
    "agronholm/apscheduler#766": (
        "anarchon-sqlite/tests/test_fleet.py::test_c1_eight_processes_and_500_slots_make_500_wins_and_no_error",
    ),
    "lukas-krecan/ShedLock#6": (f"{SCHEDULER}/test_accounts.py::test_a_fleet_that_comes_back_catches_each_slot_up_once",),
    "go-co-op/gocron#799": (
        f"{SCHEDULER}/test_leases.py::test_k1_a_run_of_many_leases_is_renewed_once_a_heartbeat_and_stays_with_its_holder",
    ),
    "rq/rq#1531": (f"{CORE}/simulation/test_fleets.py::test_k_clauses_hold_in_hundreds_of_faulty_fleets",),
    "oban-bg/oban-py#32": (f"{SCHEDULER}/test_scheduler.py::test_two_schedulers_in_a_process_have_two_names",),
    "sibson/redbeat#127": (f"{SCHEDULER}/test_leases.py::test_k1_a_refused_renewal_cancels_the_handler_and_nothing_is_reported",),
    "quartz-scheduler/quartz#847": (
        f"{SCHEDULER}/test_watch.py::test_a_partition_that_heals_after_a_takeover_refuses_the_first_finish",
    ),
    "HangfireIO/Hangfire#1208": (
        f"{SCHEDULER}/test_leases.py::test_k2_a_lost_reply_to_a_claim_is_asked_again_with_the_same_token",
        "anarchon-postgres/tests/test_faults.py::test_c4_a_lost_reply_is_asked_again_with_the_same_token",
    ),
    "rq/rq-scheduler#312": (f"{SCHEDULER}/test_idle.py::test_k8_claims_of_one_moment_travel_in_calls_of_a_hundred",),
    "procrastinate-org/procrastinate#1495": (
        f"{SCHEDULER}/test_watch.py::test_c12_a_dead_runners_run_is_taken_over_within_lease_and_heartbeat",
    ),
    "rfsbraz/deleterr#292": (
        f"{SCHEDULER}/test_accounts.py::test_k13_slots_that_pass_while_an_instance_sleeps_are_noted_as_missed",
    ),
    "kubernetes/kubernetes#45825": (f"{SCHEDULER}/test_accounts.py::test_k13_a_long_pause_is_followed_by_the_next_slot_alone",),
    "celery/celery#8845": (
        f"{SCHEDULER}/test_life.py::test_k12_a_store_that_is_unreachable_for_the_first_minute_starts_late_and_runs",
    ),
    "celery/django-celery-beat#798": (f"{REPORTED}::test_changed_zone_data_is_noticed_django_celery_beat_798",),
    "taskforcesh/bullmq#3262": (f"{REPORTED}::test_two_instances_started_apart_share_one_grid_bullmq_3262",),
    "node-cron/node-cron#510": (f"{REPORTED}::test_no_rule_jumps_weeks_ahead_at_a_months_end_node_cron_510",),
    "agronholm/apscheduler#351": (f"{SCHEDULER}/test_clock_steps.py::test_c9_a_stepped_clock_runs_each_slot_once_at_its_time",),
    "kagkarlsson/db-scheduler#364": (
        f"{SCHEDULER}/test_clock_steps.py::test_c9_an_instance_with_a_wrong_clock_runs_each_slot_once_at_its_time",
    ),
    "taskiq-python/taskiq#296": (f"{REPORTED}::test_early_and_late_wake_ups_name_the_same_slot_taskiq_296",),
    "kelektiv/node-cron#180": (f"{REPORTED}::test_a_leap_second_has_no_slot_of_its_own_kelektiv_node_cron_180",),
    "oban-py CHANGELOG 0.6.2": (f"{REPORTED}::test_a_backward_step_gives_no_new_slots_oban_py",),
    "Kludex/uvicorn#941": (f"{SCHEDULER}/test_scheduler.py::test_constructing_binds_no_loop_and_opens_nothing",),
    "agenda/agenda#1405": (f"{SCHEDULER}/test_life.py::test_k6_stop_waits_for_running_handlers_and_claims_nothing_new",),
    "graphile/worker#526": (f"{SCHEDULER}/test_watch.py::test_c16_a_handed_over_run_is_taken_within_a_heartbeat",),
    "r-spade/ormah#271": (f"{SCHEDULER}/test_scheduler.py::test_run_with_a_handler_that_cannot_be_stopped_returns_and_names_it",),
    "celery/celery#4777": ("anarchon-sqlite/tests/test_open.py::test_a_damaged_page_found_later_names_the_file",),
    "agronholm/apscheduler#843": (
        "anarchon-sqlite/tests/test_failures.py::test_c23_a_writer_busy_for_8_s_ends_in_a_timeout_and_later_claims_work",
    ),
    "bensheldon/good_job#269": (
        "anarchon-postgres/tests/test_equivalence.py::test_c3_random_calls_answer_as_the_reference_does",
    ),
    "celery/celery#10205": (
        "anarchon-postgres/tests/test_faults.py::test_c23_an_idle_connection_closed_by_a_restart_is_not_used",
        "anarchon-redis/tests/test_losses.py::test_c23_a_connection_reset_while_idle_costs_one_call_at_most",
    ),
    "pallets-eco/croniter#253": (f"{CORE}/schedule/test_spread.py::test_first_values_are_uniform_over_20_000_names",),
    "HangfireIO/Hangfire#567": (f"{REPORTED}::test_minutely_job_runs_through_the_repeated_hour_hangfire_567_celery_6438",),
    "apache/airflow#35272": (f"{REPORTED}::test_dense_ranges_advance_after_the_change_airflow_35272",),
    "PrefectHQ/prefect#7461": (f"{REPORTED}::test_slots_made_before_and_after_the_change_are_the_same_prefect_7461_7381",),
    "taichino/croniter#34": (f"{REPORTED}::test_impossible_dates_are_refused_at_once_croniter_34_cron_plus_110",),
    "taichino/croniter#131": (f"{REPORTED}::test_corpus_on_days_that_broke_others_croniter_131_55",),
    "taichino/croniter#119": (f"{REPORTED}::test_weekday_ranges_are_valid",),
    "PGQueuer docs/guides/scheduling.md": (f"{REPORTED}::test_six_fields_are_never_read_silently_pgqueuer",),
    "kubernetes/kubernetes#121594": (f"{REPORTED}::test_reported_case",),
    "agronholm/apscheduler#980": (f"{REPORTED}::test_reported_case",),
    "agronholm/apscheduler#1059": (f"{REPORTED}::test_reported_case",),
    "pallets-eco/croniter#25": (f"{REPORTED}::test_reported_case",),
    "cronie-crond/cronie#218": (f"{REPORTED}::test_reported_case",),
    "pallets-eco/croniter#40": (f"{REPORTED}::test_reported_case",),
    "pallets-eco/croniter#243": (f"{REPORTED}::test_reported_case",),
    "agronholm/apscheduler#349": (f"{REPORTED}::test_reported_case",),
    "kubernetes/kubernetes#123220": (f"{REPORTED}::test_reported_case",),
}
