"""`anarchon demo`: a fleet on this machine, an instance killed, its run taken over, and a count."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from anarchon.backend import Backend, LeaseBackend
from anarchon.cli.common import ask
from anarchon.cli.demo_fleet import Fleet, Verdict, Worker, expected_slots, judge
from anarchon.cli.demo_jobs import JOBS, LONG_JOB, Entry, job_name
from anarchon.cli.demo_view import View
from anarchon.clock import SystemClock
from anarchon.errors import AnarchonError, BackendError, ConfigurationError
from anarchon.plugins import new_manager
from anarchon.registry import create_backend
from anarchon.store import Store
from anarchon.url import redact

__all__ = ["demo_command"]

LOOK_MS = 100
READY_LIMIT_MS = 60_000
FINISH_LIMIT_MS = 60_000
FIRST_TROUBLE_SHARE = 0.25
TROUBLE_EVERY_MS = 12_000
MID_RUN_MS = (400, 2_000)
"""How long a long run has been under way when its instance is ended."""
FIRST_TROUBLE_LIMIT_MS = 5_000
"""How long after the counted time the first trouble may come: a long run is under way within that."""


@click.command("demo", short_help="Show a fleet on this machine, with a kill and a takeover.")
@click.option("--seconds", default=20, show_default=True, type=click.IntRange(5, 3_600), help="How long slots are counted.")
@click.option("--instances", default=3, show_default=True, type=click.IntRange(2, 20))
@click.option("--url", help="A store of yours instead of a new SQLite file.")
@click.option("--json", "as_json", is_flag=True, help="Print the count as JSON on the last line.")
def demo_command(seconds: int, instances: int, url: str | None, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Run a fleet on this machine: kill one instance in mid-run, watch another take over, and count every slot.

    The figures come from files that the instances write themselves. Exit code 0 if no slot was missed or doubled, 1 if
    one was.
    """
    if url and url.partition(":")[0] == "memory":
        msg = "memory:// is a store of one process, and a fleet has several: leave --url out, or name another store"
        raise ConfigurationError(msg)
    prefix = secrets.token_hex(3)
    with tempfile.TemporaryDirectory(prefix="anarchon-demo-") as folder:
        place = url or f"sqlite:///{folder}/cron.db"
        backend = create_backend(place, new_manager())  # a bad URL or a missing package is said before anything starts
        fleet = Fleet(place, prefix, Path(folder))
        with View(redact(place), live=sys.stdout.isatty() and not as_json, quiet=as_json) as view:
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the fleet is stopped
            demo = _Demo(fleet, view, span_ms=seconds * 1000, instances=instances, backend=backend)
            verdict = asyncio.run(demo.run())
    if url:
        _clean(url, prefix)
    if as_json:
        click.echo(json.dumps(asdict(verdict)))
    else:
        _say(verdict)
    return 0 if verdict.verdict == "ok" else 1


def _clean(url: str, prefix: str) -> None:
    """Remove from a store of the user's what the demonstration wrote there."""

    async def forget(store: Store) -> None:
        for short in JOBS:
            name = job_name(prefix, short)
            await store.call("forget", lambda name=name: store.backend.forget(name))  # type: ignore[misc]  # binds the loop's value

    try:
        ask(url, forget)
    except BackendError as error:
        click.echo(f"anarchon: the jobs demo-{prefix}-… are left in the store: {redact(str(error))}", err=True)


def _say(verdict: Verdict) -> None:
    click.echo(
        f"{verdict.slots} slots: {verdict.won} won, {verdict.duplicates} duplicates, {verdict.missed} missed, "
        f"{verdict.takeovers} takeovers, {verdict.handovers} hand-overs"
    )
    click.secho(f"verdict: {verdict.verdict}", fg="green" if verdict.verdict == "ok" else "red", bold=True)


class _Demo:
    def __init__(self, fleet: Fleet, view: View, *, span_ms: int, instances: int, backend: Backend) -> None:
        self.fleet = fleet
        self.view = view
        self.span_ms = span_ms
        self.instances = instances
        self.sees_death = isinstance(backend, LeaseBackend)
        self.clock = SystemClock()
        self.troubles = 0

    async def run(self) -> Verdict:
        """Start, make trouble, wait for the last slot's end, stop, judge."""
        try:
            for number in range(1, self.instances + 1):
                self.fleet.start(number)
            self.view.say(f"{self.instances} instances start")
            await self._until(lambda entries: sum(e.event == "ready" for e in entries) >= self.instances, READY_LIMIT_MS)
            begin_ms = (int(self.clock.wall_ms()) // 1000 + 2) * 1000
            end_ms = begin_ms + self.span_ms
            slots = expected_slots(begin_ms, end_ms)
            await self._trouble(begin_ms, end_ms)
            await self._until(lambda entries: slots <= _done(entries), FINISH_LIMIT_MS, give_up=False)
            self.view.show(self.fleet.entries(), self.fleet.workers, self.clock.wall_ms())
        finally:
            self.fleet.stop_all()
        killed = [worker.name for worker in self.fleet.workers if worker.ended == "killed"]
        return judge(self.fleet.entries(), slots, killed)

    async def _trouble(self, begin_ms: int, end_ms: int) -> None:
        """Kill and stop instances in mid-run, in turn; once at least, even if that is after the end."""
        next_ms = begin_ms + self.span_ms * FIRST_TROUBLE_SHARE
        while True:
            now_ms = self.clock.wall_ms()
            if now_ms >= end_ms and (self.troubles or now_ms >= end_ms + FIRST_TROUBLE_LIMIT_MS):
                return
            if now_ms >= next_ms and self._disturb(now_ms):
                next_ms = now_ms + TROUBLE_EVERY_MS
            await self._look()

    def _disturb(self, now_ms: float) -> bool:
        """End an instance that is in the middle of a long run; False if there is none just now, or nobody else."""
        entries = self.fleet.entries()
        ready = {entry.instance for entry in entries if entry.event == "ready"}
        alive = {worker.name: worker for worker in self.fleet.alive() if not worker.ended and worker.name in ready}
        if len(alive) < 2:
            return False
        running = _running(entries)
        if not self.sees_death:
            idle = alive.keys() - {entry.instance for entry in running}
            return bool(idle) and self._end(alive[min(idle)], now_ms, "between two runs; this store could not see it in a run")
        for entry in reversed(running):
            in_mid_run = entry.job == LONG_JOB and MID_RUN_MS[0] <= now_ms - entry.at_ms <= MID_RUN_MS[1]
            if in_mid_run and entry.instance in alive:
                return self._end(alive[entry.instance], now_ms, f"in the middle of '{LONG_JOB}'")
        return False

    def _end(self, worker: Worker, now_ms: float, when: str) -> bool:
        self.troubles += 1
        if self.troubles % 2:
            self.fleet.kill(worker, now_ms)
            self.view.say(f"SIGKILL: {worker.name} dies {when}; nobody tells the others")
        else:
            self.fleet.terminate(worker, now_ms)
            self.view.say(f"SIGTERM: {worker.name} stops {when}" + (" and hands it over" if self.sees_death else ""))
        return True

    async def _until(self, met: Callable[[Sequence[Entry]], bool], limit_ms: float, *, give_up: bool = True) -> None:
        begun_ms = self.clock.monotonic_ms()
        while not met(self.fleet.entries()):
            if self.clock.monotonic_ms() - begun_ms > limit_ms:
                if give_up:
                    msg = (
                        f"the fleet was not ready within {limit_ms / 1000:.0f} s: this machine is too busy, or the store too slow"
                    )
                    raise AnarchonError(msg)
                return
            await self._look()

    async def _look(self) -> None:
        self.fleet.refuse_broken()
        for worker in self.fleet.replace_ended(self.clock.wall_ms()):
            self.view.say(f"{worker.name} starts")
        self.view.show(self.fleet.entries(), self.fleet.workers, self.clock.wall_ms())
        await self.clock.sleep_ms(LOOK_MS)


def _done(entries: Sequence[Entry]) -> set[tuple[str, int]]:
    return {(entry.job, entry.slot_ms) for entry in entries if entry.event == "done"}


def _running(entries: Sequence[Entry]) -> list[Entry]:
    """Return the starts that have no end, oldest first."""
    over = {(e.job, e.slot_ms, e.attempt) for e in entries if e.event in {"done", "cancelled"}}
    return [e for e in entries if e.event == "start" and (e.job, e.slot_ms, e.attempt) not in over]
