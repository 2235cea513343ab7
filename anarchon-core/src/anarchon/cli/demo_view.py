"""What a person sees of the demonstration: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from anarchon.cli.demo_fleet import Worker
from anarchon.cli.demo_jobs import JOBS, Entry

__all__ = ["View"]

ROWS = 14
SAID_ROWS = 5
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "bright_red")


class View:
    """Shows the slots as they run; `quiet` shows nothing."""

    def __init__(self, url: str, *, live: bool, quiet: bool) -> None:
        self._url = url
        self._quiet = quiet
        self._console = Console()
        self._live = Live(console=self._console, refresh_per_second=8) if live else None
        self._said: list[str] = []
        self._printed: set[tuple[str, int, int, str]] = set()
        self._again: set[tuple[str, int, int]] = set()

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        elif not self._quiet:
            self._console.print(f"store: {self._url}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """Tell the person what happens now."""
        self._said.append(text)
        if not self._live and not self._quiet:
            self._console.print(f"[bold]{text}[/bold]")

    def show(self, entries: Sequence[Entry], workers: Sequence[Worker], now_ms: float) -> None:
        """Show the state of the fleet, and say who took over what."""
        for entry in entries:
            key = (entry.job, entry.slot_ms, entry.attempt)
            if entry.event == "start" and entry.attempt > 1 and key not in self._again:
                self._again.add(key)
                self.say(f"{entry.instance} runs '{entry.job}' of {_clock(entry.slot_ms)} again, as attempt {entry.attempt}")
        if self._live:
            self._live.update(Group(self._fleet(workers), self._table(entries, workers, now_ms), self._words()))
        elif not self._quiet:
            self._print_new(entries)

    def _fleet(self, workers: Sequence[Worker]) -> Text:
        line = Text("  ")
        for worker in workers[-8:]:
            dead = worker.process.poll() is not None
            mark = "✗" if worker.ended == "killed" else "–" if dead else "●"
            line.append(f"{mark} {worker.name} ", style="dim" if dead else _colour(worker.name))
        return line

    def _table(self, entries: Sequence[Entry], workers: Sequence[Worker], now_ms: float) -> Table:
        ends = {(e.job, e.slot_ms, e.attempt): e for e in entries if e.event in {"done", "cancelled"}}
        killed = {worker.name for worker in workers if worker.ended == "killed"}
        table = Table(title=f"anarchon demo on {self._url}", title_style="bold")
        for name, width in (("slot", 8), ("job", 6), ("instance", 14), ("attempt", 7), ("state", 25), ("late", 7)):
            table.add_column(name, min_width=width)
        for entry in [e for e in entries if e.event == "start"][-ROWS:]:
            end = ends.get((entry.job, entry.slot_ms, entry.attempt))
            state = _state(entry, end, killed, now_ms)
            late = f"{(entry.at_ms - entry.slot_ms) / 1000:.2f} s"
            attempt = Text(str(entry.attempt), style="bold red" if entry.attempt > 1 else "")
            table.add_row(_clock(entry.slot_ms), entry.job, Text(entry.instance, _colour(entry.instance)), attempt, state, late)
        return table

    def _words(self) -> Text:
        return Text("\n".join(f"  {said}" for said in self._said[-SAID_ROWS:]), style="bold")

    def _print_new(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            key = (entry.job, entry.slot_ms, entry.attempt, entry.event)
            if entry.event == "ready" or key in self._printed:
                continue
            self._printed.add(key)
            again = f" attempt {entry.attempt}" if entry.attempt > 1 else ""
            self._console.print(
                f"{_clock(entry.slot_ms)} {entry.job:8} {entry.instance:14} {entry.event}{again}", highlight=False
            )


def _state(entry: Entry, end: Entry | None, killed: set[str], now_ms: float) -> Text:
    if end is not None:
        return Text("✓ done", "green") if end.event == "done" else Text("→ handed over", "yellow")
    if entry.instance in killed:
        return Text("✗ its instance was killed", "red")
    share = min(1.0, (now_ms - entry.at_ms) / 1000 / JOBS[entry.job].seconds)
    return Text("▰" * int(share * 10) + "▱" * (10 - int(share * 10)), "cyan")


def _colour(instance: str) -> str:
    return COLOURS[int(instance.partition("-")[2].partition(".")[0]) % len(COLOURS)]


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S")
