"""One instance of the demonstration: `python -m anarchon.cli.demo_worker URL NAME PREFIX FILE`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from anarchon.cli.demo_jobs import Journal, add_jobs
from anarchon.scheduler import Scheduler

__all__ = ["main"]

GRACE_S = 1.0


def main(url: str, name: str, prefix: str, file: str) -> None:
    """Run until SIGTERM, or until the demonstration that started this has gone."""
    logging.basicConfig(filename=f"{file}.log", level="INFO", format="%(asctime)s %(name)s %(message)s")
    journal = Journal(Path(file), name)
    scheduler = Scheduler(url, instance=name, grace=GRACE_S)
    add_jobs(scheduler, prefix, journal)
    asyncio.run(_serve(scheduler, journal))


async def _serve(scheduler: Scheduler, journal: Journal) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def parent_spoke() -> None:
        if not os.read(sys.stdin.fileno(), 1024):  # the end of the pipe: nobody is left to stop us
            loop.remove_reader(sys.stdin.fileno())
            stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(sys.stdin.fileno(), parent_spoke)
    async with scheduler:
        journal.write("ready")
        await stop.wait()


if __name__ == "__main__":
    main(*sys.argv[1:5])
