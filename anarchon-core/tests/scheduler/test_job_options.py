"""K10: what cannot work is refused when the job is added, in one sentence with the option, the value and the remedy."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Self

import pytest
from anarchon import Every, Scheduler
from anarchon.backend import Backend
from anarchon.errors import ConfigurationError, JobExists, OptionError, ScheduleError, UnknownJob
from anarchon.job import CatchUp, Overlap, duration_ms
from anarchon.memory import MemoryBackend
from anarchon.types import Claim, ClaimRequest, Limits, Outcome, RunKey, RunRecord, RunResult
from anarchon.url import BackendUrl
from rig import Slots, job_of, nothing


class FirstComeBackend(Backend):
    """A claim-only backend that forgets after 15 minutes; `limits` as given."""

    def __init__(self, **limits: Any) -> None:
        self.limits = Limits(**{"remembers_ms": 900_000, "store_clock": False, "history_ttl": False, **limits})

    @classmethod
    def from_url(cls, url: BackendUrl) -> Self:
        raise NotImplementedError

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def claim(self, request: ClaimRequest) -> Claim:
        return Claim(Outcome.LOST)

    async def finish(self, key: RunKey, token: str, result: RunResult) -> bool:
        return False

    async def history(self, job: str, *, limit: int, since_ms: int = 0) -> list[RunRecord]:
        return []


def refusal(backend: Backend | None = None, schedule: Any = "* * * * *", **options: Any) -> str:
    """Return the sentence with which a job is refused."""
    scheduler = Scheduler(backend=backend or MemoryBackend())
    with pytest.raises(ConfigurationError) as caught:
        scheduler.add_job(nothing, schedule, name="report", **options)
    assert scheduler.jobs == {}
    text = str(caught.value)
    assert "\n" not in text
    return text


REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"jitter": -1}, ["jitter=-1", "write 0 seconds to 10 years"]),
    ({"jitter": float("nan")}, ["jitter=nan", "write 0 seconds"]),
    ({"jitter": float("inf")}, ["jitter=inf", "write 0 seconds"]),
    ({"max_late": True}, ["max_late=True", "write seconds or a timedelta"]),
    ({"max_late": "60"}, ["max_late='60'", "write seconds or a timedelta"]),
    ({"max_late": None}, ["max_late=None", "write seconds or a timedelta"]),
    ({"max_late": timedelta(days=-1)}, ["max_late=", "write 0 seconds to 10 years"]),
    ({"max_late": 10**400}, ["max_late=", "write 0 seconds to 10 years"]),
    ({"max_late": timedelta(days=4000)}, ["max_late=", "10 years"]),
    ({"lease": 0.05}, ["lease=0.05", "write 0.1 seconds to 10 years"]),
    ({"lease": 0}, ["lease=0", "write 0.1 seconds"]),
    ({"heartbeat": 0}, ["heartbeat=0", "write 0.01 seconds"]),
    ({"heartbeat": 16}, ["heartbeat=16", "half of the lease (30 s)", "write at most 15"]),
    ({"lease": 2, "heartbeat": 1.5}, ["heartbeat=1.5", "write at most 1"]),
    ({"jitter": 60}, ["jitter=60", "max_late (60 s)", "shorten jitter"]),
    ({"jitter": 5, "max_late": 3}, ["jitter=5", "max_late (3 s)"]),
    ({"max_attempts": 0}, ["max_attempts=0", "write a whole number from 1 to 1000"]),
    ({"max_attempts": True}, ["max_attempts=True", "write a whole number"]),
    ({"max_attempts": 2.0}, ["max_attempts=2.0", "write a whole number"]),
    ({"max_attempts": 1001}, ["max_attempts=1001", "from 1 to 1000"]),
    ({"retries": -1}, ["retries=-1", "from 0 to 1000"]),
    ({"retries": 3}, ["retries=3", "max_attempts=3", "write max_attempts=4 or more"]),
    ({"retries": 1, "max_attempts": 1}, ["retries=1", "write max_attempts=2 or more"]),
    ({"timeout": 0}, ["timeout=0", "write 0.001 seconds"]),
    ({"overlap": "never"}, ["overlap='never'", "'skip', 'allow', 'queue'"]),
    ({"overlap": True}, ["overlap=True", "'skip', 'allow', 'queue'"]),
    ({"catch_up": "some"}, ["catch_up='some'", "'none', 'latest', 'all'"]),
    ({"catch_up_limit": 0}, ["catch_up_limit=0", "from 1 to 10000"]),
    ({"catch_up_limit": 10_001}, ["catch_up_limit=10001", "from 1 to 10000"]),
    ({"catch_up_window": 0}, ["catch_up_window=0", "write 1 seconds"]),
    ({"history_size": 0}, ["history_size=0", "from 1 to 1000000"]),
    ({"history_ttl": 0}, ["history_ttl=0", "write 1 seconds"]),
    ({"was": ""}, ["was=''", "write earlier names"]),
    ({"was": "report"}, ["was='report'", "none of them its name now"]),
    ({"was": ["old", "old"]}, ["was=['old', 'old']", "each once"]),
    ({"was": 5}, ["was=5", "write earlier names"]),
    ({"lateness": 5}, ["unknown option 'lateness'=5"]),
    ({"max_lat": 5}, ["unknown option 'max_lat'=5", "did you mean 'max_late'?"]),
    ({"overlaps": "skip"}, ["unknown option 'overlaps'='skip'", "did you mean 'overlap'?"]),
    ({"xyz": 1}, ["unknown option 'xyz'=1", "options: catch_up, "]),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[str(options)[:60] for options, _ in REFUSED])
def test_k10_names_the_option_the_value_and_the_remedy(options: dict[str, Any], words: list[str]) -> None:
    text = refusal(**options)
    assert text.startswith("job 'report': ")
    for word in words:
        assert word in text
    assert len(text) < 700


CLAIM_ONLY: list[tuple[dict[str, Any], str]] = [
    ({"lease": 10}, "lease=10"),
    ({"heartbeat": 1}, "heartbeat=1"),
    ({"max_attempts": 3}, "max_attempts=3"),
    ({"retries": 1, "max_attempts": 2}, "max_attempts=2"),
    ({"retry_delay": 1}, "retry_delay=1"),
    ({"catch_up": "all"}, "catch_up='all'"),
    ({"catch_up_window": 60}, "catch_up_window=60"),
    ({"catch_up_limit": 5}, "catch_up_limit=5"),
    ({"overlap": "skip"}, "overlap='skip'"),
    ({"overlap": "queue"}, "overlap='queue'"),
]


@pytest.mark.parametrize(("options", "words"), CLAIM_ONLY, ids=[words for _, words in CLAIM_ONLY])
def test_k10_what_a_claim_only_backend_cannot_honour_is_refused_if_written(options: dict[str, Any], words: str) -> None:
    text = refusal(FirstComeBackend(), **options)
    assert words in text
    assert "FirstComeBackend only decides who is first" in text
    assert "use a lease backend" in text


def test_k10_a_claim_only_backend_takes_its_own_defaults_for_what_is_not_written() -> None:
    scheduler = Scheduler(backend=FirstComeBackend())
    job = scheduler.add_job(nothing, "* * * * *")
    assert (job.overlap, job.max_attempts, job.retries, job.catch_up) == (Overlap.ALLOW, 1, 0, CatchUp.NONE)
    assert job.unsupported
    same = scheduler.add_job(nothing, "* * * * *", name="b", overlap="allow", max_attempts=1, retries=0, catch_up="none")
    assert same.max_attempts == 1


def test_k10_history_ttl_is_refused_where_the_store_trims_by_size_only() -> None:
    text = refusal(FirstComeBackend(), history_ttl=3600)
    assert "history_ttl=3600" in text
    assert "use history_size" in text


def test_k10_a_late_window_beyond_the_stores_memory_is_refused_on_any_backend() -> None:
    text = refusal(FirstComeBackend(), max_late=893)  # + 2 s of jitter + 5 s for the clocks = 900 s
    assert "max_late=893" in text
    assert "forgets a run after 900 s" in text
    assert "shorten max_late" in text
    Scheduler(backend=FirstComeBackend()).add_job(nothing, "* * * * *", max_late=892)
    backend = MemoryBackend()
    backend.limits = Limits(remembers_ms=60_000)
    assert "forgets a run after 60 s" in refusal(backend, max_late=70)
    text = refusal(backend, max_late=5, catch_up="all", catch_up_window=120)
    assert "catch_up_window=120" in text


def test_k10_the_backends_own_option_is_the_remedy_where_it_has_one() -> None:
    text = refusal(FirstComeBackend(memory_option="keep"), max_late=893)
    assert "shorten max_late or write keep=901 or more" in text
    Scheduler(backend=FirstComeBackend(remembers_ms=901_000)).add_job(nothing, "* * * * *", max_late=893)


def test_a_job_of_more_runs_than_a_store_bears_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    backend = FirstComeBackend(costly_runs=90, memory_option="keep")
    Scheduler(backend=backend).add_job(nothing, Every(seconds=10), name="calm")
    Scheduler(backend=backend).add_job(nothing, Every(seconds=9), name="busy")
    (said,) = [record.getMessage() for record in caplog.records if record.name == "anarchon.job"]
    assert said.startswith("busy: this store keeps something for each run for 900 s, which is 100 at a time")
    assert "shorten keep" in said


def test_k10_more_late_runs_than_the_store_remembers_are_refused() -> None:
    backend = MemoryBackend()
    backend.limits = Limits(remembers_runs=100)
    text = refusal(backend, Every(seconds=10), jitter=0, max_late=1_000)
    assert "101 runs of a slot every 10 s" in text
    assert "remembers 100 runs of a job" in text
    assert "shorten max_late" in text
    Scheduler(backend=backend).add_job(nothing, Every(seconds=10), jitter=0, max_late=990)
    assert "shorten catch_up_window" in refusal(backend, Every(seconds=10), jitter=0, catch_up="all", catch_up_window=3_600)


def test_k10_an_ordered_store_refuses_a_jitter_as_long_as_the_distance_of_slots() -> None:
    text = refusal(FirstComeBackend(ordered=True), Every(seconds=10), jitter=10)
    assert "jitter=10" in text
    assert "write jitter below 10" in text


def test_k10_a_store_with_a_clock_of_its_own_needs_no_clock_allowance() -> None:
    assert Scheduler(backend=MemoryBackend()).add_job(nothing, "* * * * *").clock_allowance_ms == 0
    assert Scheduler(backend=FirstComeBackend()).add_job(nothing, "* * * * *").clock_allowance_ms == 5_000


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "a\0b", 5])
def test_k10_job_names_that_no_store_carries_are_refused(name: Any) -> None:
    with pytest.raises(OptionError, match="use 1 to 200 printable characters"):
        Scheduler(backend=MemoryBackend()).add_job(nothing, "* * * * *", name=name)


def test_k10_earlier_names_must_be_possible_too() -> None:
    with pytest.raises(OptionError, match="was"):
        Scheduler(backend=MemoryBackend()).add_job(nothing, "* * * * *", was="a\nb")


def test_k10_a_backend_may_narrow_job_names() -> None:
    backend = FirstComeBackend(job_name="[a-z]+")
    with pytest.raises(OptionError, match="must match"):
        Scheduler(backend=backend).add_job(nothing, "* * * * *", name="Nightly Report")


@pytest.mark.parametrize("schedule", ["0 0 30 2 *", "* * * * * *", "61 * * * *", "", None, "x" * 10_000, 5])
def test_k10_a_schedule_that_can_never_fire_or_be_read_is_refused(schedule: Any) -> None:
    with pytest.raises(ScheduleError):
        Scheduler(backend=MemoryBackend()).add_job(nothing, schedule)


def test_k10_a_name_is_taken_once_earlier_names_included() -> None:
    scheduler = Scheduler(backend=MemoryBackend())
    scheduler.add_job(nothing, "* * * * *", name="a", was="b")
    for name in ("a", "b"):
        with pytest.raises(JobExists, match="give one of the two another name"):
            scheduler.add_job(nothing, "* * * * *", name=name)
    with pytest.raises(JobExists):
        scheduler.add_job(nothing, "* * * * *", name="c", was=["b"])


def test_unknown_jobs_are_named_with_the_known_ones() -> None:
    scheduler = Scheduler(backend=MemoryBackend())
    scheduler.add_job(nothing, "* * * * *", name="a")
    with pytest.raises(UnknownJob, match=r"no job 'b'; its jobs: a$"):
        scheduler.remove_job("b")
    with pytest.raises(UnknownJob):
        scheduler.next_runs("b")


def test_durations_are_seconds_or_timedeltas_to_the_millisecond() -> None:
    assert duration_ms("x", 1) == 1000
    assert duration_ms("x", 0.0015) == 2
    assert duration_ms("x", timedelta(minutes=1, milliseconds=1)) == 60_001
    assert duration_ms("x", 0) == 0


def test_defaults_are_those_of_the_documentation() -> None:
    job = Scheduler(backend=MemoryBackend()).add_job(nothing, "* * * * *")
    assert (job.jitter_most_ms, job.max_late_ms, job.lease_ms, job.heartbeat_ms) == (2_000, 60_000, 30_000, 10_000)
    assert (job.max_attempts, job.retries, job.overlap, job.catch_up) == (3, 0, Overlap.SKIP, CatchUp.NONE)
    assert (job.catch_up_window_ms, job.catch_up_limit, job.history_size) == (86_400_000, 100, 100)
    assert job.timeout_ms is None
    assert job.history_ttl_ms is None


def test_c6_keep_covers_jitter_and_the_longest_window() -> None:
    assert job_of(max_late=10, jitter=1).keep_ms == 11_000
    assert job_of(max_late=10, jitter=1, catch_up="all", catch_up_window=100).keep_ms == 101_000
    assert job_of(max_late=10, jitter=1, overlap="queue").keep_ms == 86_401_000
    assert job_of(max_late=10, jitter=1, catch_up="all", catch_up_window=5).keep_ms == 11_000


SCHEDULER_OPTIONS: list[dict[str, Any]] = [
    {"max_running": 0},
    {"max_running": True},
    {"max_running": 1.5},
    {"grace": -1},
    {"grace": float("nan")},
    {"grace": "30"},
    {"clock_allowance": -1},
    {"instance": ""},
    {"instance": "a\nb"},
    {"instance": 5},
]


@pytest.mark.parametrize("options", SCHEDULER_OPTIONS, ids=str)
def test_the_schedulers_own_options_are_checked_at_construction(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(OptionError, match=name):
        Scheduler(backend=MemoryBackend(), **options)


def test_a_schedule_of_given_slots_counts_as_a_schedule() -> None:
    assert Scheduler(backend=MemoryBackend()).add_job(nothing, Slots(1), name="once").next_times(0, 5)[0].year == 1970
