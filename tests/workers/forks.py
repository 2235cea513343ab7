"""What happens to a scheduler in a fork: programs whose exit code is the verdict."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from anarchon import Scheduler
from anarchon.errors import SchedulerStateError

__all__ = ["children_of_a_constructed_scheduler", "children_of_a_started_scheduler"]

WAIT_S = 20.0


class EverySoOften:
    """Slots each 100 ms."""

    digest = "every-100"

    def next_after(self, t_ms: int, /) -> int | None:
        return (t_ms // 100 + 1) * 100


def in_fork(work: Callable[[], None]) -> bool:
    """Run something in a forked child; return whether it went well within its time."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        threading.Event().wait(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def children_of_a_constructed_scheduler(url: str, out: Path) -> None:
    """Construct, fork two children, and run in both and in the parent."""
    scheduler = Scheduler(url, grace=1)
    ran = threading.Event()
    scheduler.add_job(ran.set, EverySoOften(), name="job", jitter=0, overlap="allow")

    def works() -> None:
        scheduler.start_in_thread()
        name = scheduler.health().instance
        assert f"-{os.getpid()}-" in name
        assert ran.wait(WAIT_S)
        scheduler.shutdown()
        with out.open("a") as file:
            file.write(json.dumps(name) + "\n")

    assert in_fork(works)
    assert in_fork(works)
    works()


def children_of_a_started_scheduler(url: str, out: Path) -> None:
    """Start, fork, and see that the child is refused what it cannot do, and that the parent works on."""
    scheduler = Scheduler(url, grace=1)
    ran = threading.Event()
    scheduler.add_job(ran.set, EverySoOften(), name="job", jitter=0, overlap="allow")
    scheduler.start_in_thread()

    def is_refused() -> None:
        for call in (scheduler.start_in_thread, scheduler.run, scheduler.health, lambda: scheduler.portal.history("job")):
            with pytest.raises(SchedulerStateError, match="construct it before the fork, start it after"):
                call()
        scheduler.shutdown()
        asyncio.run(scheduler.stop())
        scheduler.request_stop()

    assert in_fork(is_refused)
    ran.clear()
    assert ran.wait(WAIT_S)
    assert scheduler.health().ready
    scheduler.shutdown()
    out.write_text('"parent"\n')
