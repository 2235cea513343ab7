"""The page of options names every option, with its default, and nothing else."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from anarchon import Scheduler
from anarchon.backend import Backend
from anarchon.errors import OptionError
from anarchon.job import LEASE_ONLY, JobOptions, make_job
from anarchon.memory import MemoryBackend

PAGE = (Path(__file__).parents[1] / "docs" / "options.md").read_text()
JOB_PART, SCHEDULER_PART = PAGE.split("## `Scheduler")


def rows(part: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_every_option_of_a_job_has_a_row() -> None:
    assert set(rows(JOB_PART)) == set(JobOptions.__annotations__)


def test_every_option_of_the_scheduler_has_a_row() -> None:
    assert set(rows(SCHEDULER_PART)) == set(inspect.signature(Scheduler).parameters)


def test_the_defaults_are_those_of_the_code() -> None:
    def handler() -> None: ...

    job = make_job(handler, "@daily", options={}, backend=MemoryBackend(), clock_allowance_ms=5_000)
    table = rows(JOB_PART)
    for option, attribute in {"max_late": "max_late_ms", "lease": "lease_ms"}.items():
        assert f"{getattr(job, attribute) // 1000} s" == table[option][0]
    for option in ("max_attempts", "retries", "catch_up_limit", "history_size"):
        assert str(getattr(job, option)) == table[option][0]
    for option in ("overlap", "catch_up"):
        assert f'"{getattr(job, option)}"' in table[option][0].replace("`", "")
    assert job.heartbeat_ms * 3 == job.lease_ms
    assert table["catch_up_window"][0] == f"{job.catch_up_window_ms // 3_600_000} h"


def test_what_the_page_calls_refused_is_refused_on_a_claim_only_store() -> None:
    class ClaimOnly(Backend):
        open = close = claim = finish = history = from_url = None  # type: ignore[assignment]

    def handler() -> None: ...

    values = {"overlap": "skip", "catch_up": "all", "max_attempts": 3, "retries": 1, "catch_up_limit": 5}
    refused = {option for option, row in rows(JOB_PART).items() if row[1] == "refused"} | {"overlap", "max_attempts"}
    assert refused == set(LEASE_ONLY)
    for option in sorted(refused):
        with pytest.raises(OptionError, match=rf"{option}.*(leave it out|write overlap|inside the handler)"):
            make_job(
                handler,
                "@daily",
                options={option: values.get(option, 20)},  # type: ignore[misc]
                backend=ClaimOnly(),
                clock_allowance_ms=5_000,
            )
