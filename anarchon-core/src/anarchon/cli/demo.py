"""`anarchon demo`: a fleet on this machine, an instance killed, its run taken over, and a count."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

from anarchon.cli.demo_fleet import Fleet, Verdict, Worker, expected_slots, judge
from anarchon.cli.demo_jobs import LONG_JOB, Entry
from anarchon.cli.demo_view import View
from anarchon.clock import SystemClock
from anarchon.errors import AnarchonError
from anarchon.plugins import new_manager
from anarchon.registry import create_backend
from anarchon.url import redact

__all__ = ["demo_command"]

LOOK_MS = 100
READY_LIMIT_MS = 30_000
FINISH_LIMIT_MS = 30_000
FIRST_TROUBLE_SHARE = 0.25
TROUBLE_EVERY_MS = 12_000
MID_RUN_MS = 400
CALM_END_MS = 7_000


@click.command("demo")
@click.option("--seconds", default=20, show_default=True, type=click.IntRange(5, 86_400), help="How long slots are counted.")
@click.option("--instances", default=3, show_default=True, type=click.IntRange(2, 20))
@click.option("--url", help="A store of yours instead of a new SQLite file.")
@click.option("--json", "as_json", is_flag=True, help="Print the count as JSON on the last line.")
def demo_command(seconds: int, instances: int, url: str | None, as_json: bool) -> int:  # noqa: FBT001 - click's
    """Run a fleet on this machine: kill one instance in mid-run, watch another take over, and count every slot.

    The figures come from files that the instances write themselves. Exit code 0 if no slot was missed or doubled.
    """
    with tempfile.TemporaryDirectory(prefix="anarchon-demo-") as folder:
        place = url or f"sqlite:///{folder}/cron.db"
        create_backend(place, new_manager())  # a bad URL or a missing package is said before anything starts
        fleet = Fleet(place, secrets.token_hex(3), Path(folder))
        with View(redact(place), live=sys.stdout.isatty() and not as_json, quiet=as_json) as view:
            verdict = asyncio.run(_Demo(fleet, view, seconds * 1000, instances).run())
        if as_json:
            click.echo(json.dumps(asdict(verdict)))
        else:
            _say(verdict)
    return 0 if verdict.verdict == "ok" else 1


def _say(verdict: Verdict) -> None:
    click.echo(
        f"{verdict.slots} slots: {verdict.won} won, {verdict.duplicates} duplicates, {verdict.missed} missed, "
        f"{verdict.takeovers} takeovers, {verdict.handovers} hand-overs"
    )
    click.secho(f"verdict: {verdict.verdict}", fg="green" if verdict.verdict == "ok" else "red", bold=True)


class _Demo:
    def __init__(self, fleet: Fleet, view: View, span_ms: int, instances: int) -> None:
        self.fleet = fleet
        self.view = view
        self.span_ms = span_ms
        self.instances = instances
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
        finally:
            self.fleet.stop_all()
        killed = [worker.name for worker in self.fleet.workers if worker.ended == "killed"]
        return judge(self.fleet.entries(), slots, killed)

    async def _trouble(self, begin_ms: int, end_ms: int) -> None:
        """Kill and stop instances in mid-run, in turn, until the last seconds."""
        next_ms = begin_ms + self.span_ms * FIRST_TROUBLE_SHARE
        while (now_ms := self.clock.wall_ms()) < end_ms:
            if now_ms >= next_ms and now_ms < max(end_ms - CALM_END_MS, begin_ms + self.span_ms / 2) and self._disturb(now_ms):
                next_ms = now_ms + TROUBLE_EVERY_MS
            await self._look()

    def _disturb(self, now_ms: float) -> bool:
        """End an instance that is in the middle of a long run; False if there is none just now."""
        entries = self.fleet.entries()
        over = {(e.job, e.slot_ms, e.attempt) for e in entries if e.event in {"done", "cancelled"}}
        alive = {worker.name: worker for worker in self.fleet.alive() if not worker.ended}
        for entry in reversed(entries):
            key = (entry.job, entry.slot_ms, entry.attempt)
            in_mid_run = entry.event == "start" and entry.job == LONG_JOB and key not in over
            if in_mid_run and entry.instance in alive and MID_RUN_MS <= now_ms - entry.at_ms <= 4 * MID_RUN_MS:
                self._end(alive[entry.instance], now_ms)
                return len(alive) > 1
        return False

    def _end(self, worker: Worker, now_ms: float) -> None:
        self.troubles += 1
        if self.troubles % 2:
            self.fleet.kill(worker, now_ms)
            self.view.say(f"SIGKILL: {worker.name} dies in the middle of '{LONG_JOB}'; nobody tells the others")
        else:
            self.fleet.terminate(worker, now_ms)
            self.view.say(f"SIGTERM: {worker.name} stops and hands '{LONG_JOB}' over")

    async def _until(self, met: Callable[[list[Entry]], bool], limit_ms: float, *, give_up: bool = True) -> None:
        begun_ms = self.clock.monotonic_ms()
        while not met(self.fleet.entries()):
            if self.clock.monotonic_ms() - begun_ms > limit_ms:
                if give_up:
                    msg = f"the fleet was not ready within {limit_ms / 1000:.0f} s"
                    raise AnarchonError(msg)
                return
            await self._look()

    async def _look(self) -> None:
        self.fleet.refuse_broken()
        for worker in self.fleet.replace_ended(self.clock.wall_ms()):
            self.view.say(f"{worker.name} starts")
        self.view.show(self.fleet.entries(), self.fleet.workers, self.clock.wall_ms())
        await self.clock.sleep_ms(LOOK_MS)


def _done(entries: list[Entry]) -> set[tuple[str, int]]:
    return {(entry.job, entry.slot_ms) for entry in entries if entry.event == "done"}
