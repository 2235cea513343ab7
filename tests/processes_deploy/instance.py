"""One instance of a fleet that is deployed anew: version, store and log come as arguments."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from anarchon import Every, Run, Scheduler
from anarchon.clock import SystemClock

POLL_S = 0.02
PERIODS_S = {"a": 2, "b": 3}


def main(version: str, url: str, log: Path, ready: Path) -> None:
    """Run until SIGTERM; write down each slot that this instance starts."""
    scheduler, clock, ended = Scheduler(url, grace=5), SystemClock(), threading.Event()

    @scheduler.job(Every(seconds=PERIODS_S[version]), name="job", lease=2, jitter=0.2)
    def job(run: Run) -> None:
        with log.open("a") as file:
            file.write(f"{version} {run.slot_ms} {run.attempt}\n")

    def tell_ready() -> None:
        while not ended.wait(POLL_S):
            try:
                if scheduler.health().ready:
                    ready.write_text(f"{clock.wall_ms():.0f}")
                    return
            except RuntimeError:
                continue  # not begun yet

    threading.Thread(target=tell_ready, daemon=True).start()
    scheduler.run()
    ended.set()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
