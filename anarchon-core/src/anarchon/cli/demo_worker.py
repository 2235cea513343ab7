"""One instance of the demonstration: `python -m anarchon.cli.demo_worker URL NAME PREFIX FILE`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from anarchon.cli.demo_jobs import Journal, add_jobs
from anarchon.scheduler import Scheduler

__all__ = ["main"]

GRACE_S = 1.0


def main(url: str, name: str, prefix: str, file: str) -> None:
    """Run until SIGTERM."""
    logging.basicConfig(filename=f"{file}.log", level="INFO", format="%(asctime)s %(name)s %(message)s")
    journal = Journal(Path(file), name)
    scheduler = Scheduler(url, instance=name, grace=GRACE_S)
    add_jobs(scheduler, prefix, journal)
    journal.write("ready")
    scheduler.run()


if __name__ == "__main__":
    main(*sys.argv[1:5])
