"""Forks: safe after construction, refused after the start. Kludex/uvicorn#941, viniciuschiele/flask-apscheduler#139."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest
from workers.forks import children_of_a_constructed_scheduler, children_of_a_started_scheduler

context = multiprocessing.get_context("forkserver")


@pytest.mark.parametrize(("program", "names"), [(children_of_a_constructed_scheduler, 3), (children_of_a_started_scheduler, 1)])
def test_a_fork(program: Callable[[str, Path], None], names: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = context.Process(target=program, args=(f"sqlite:///{tmp_path / 'cron.db'}", out))
    process.start()
    process.join(60)
    if process.exitcode is None:
        process.kill()
        process.join()
    assert process.exitcode == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(set(lines)) == names
