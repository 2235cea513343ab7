"""`anarchon crontab`: a crontab on a fleet."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from anarchon.cli.common import iso, json_option, log_to_stderr, print_json, url_option
from anarchon.clock import SystemClock
from anarchon.crontab import Crontab, Problem, add_crontab, parse_crontab
from anarchon.errors import ConfigurationError
from anarchon.registry import URL_VARIABLE
from anarchon.scheduler import Scheduler

__all__ = ["crontab_command"]


@click.command("crontab", short_help="Run a crontab on a fleet.")
@click.argument("file", type=click.Path(path_type=Path))
@url_option
@click.option("--system", is_flag=True, help="The form of /etc/crontab: a user before each command.")
@click.option("--strict", is_flag=True, help="Run nothing if a line is bad.")
@click.option("--check", is_flag=True, help="Show the jobs, their next slots and the bad lines, and run nothing.")
@json_option
def crontab_command(file: Path, url: str | None, as_json: bool, **flags: bool) -> int:  # noqa: FBT001 - a click flag
    """Run the crontab FILE on a fleet: start this on every host, each slot of a line runs on one of them.

    A comment '# anarchon: name=… overlap=… lease=…' sets options of the next line. Exit code 1 if a line is bad (with
    --strict or --check) or none can run, 2 if the file cannot be read.
    """
    crontab = parse_crontab(_read(file), file=str(file), system=flags["system"])
    if flags["check"]:
        return _show(crontab, as_json=as_json)
    if not url:
        msg = f"no store: write --url sqlite:///cron.db, or set {URL_VARIABLE}; --check needs none"
        raise ConfigurationError(msg)
    scheduler = Scheduler(url)
    problems = [*crontab.problems, *add_crontab(scheduler, crontab)]
    for note in crontab.notes:
        click.echo(f"anarchon: {note}", err=True)
    for problem in sorted(problems, key=lambda each: each.line):
        click.echo(f"anarchon: {problem}", err=True)
    if problems and flags["strict"]:
        return 1
    if not scheduler.jobs:
        click.echo(f"anarchon: {file} has no line that can run", err=True)
        return 1
    log_to_stderr("INFO")
    scheduler.run()
    return 0


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as error:
        msg = f"{file} cannot be read: {error.strerror or error}"
        raise ConfigurationError(msg) from None


def _show(crontab: Crontab, *, as_json: bool) -> int:
    trial = Scheduler("memory://crontab-check")
    problems: list[Problem] = sorted([*crontab.problems, *add_crontab(trial, crontab)], key=lambda each: each.line)
    now_ms = int(SystemClock().wall_ms())
    rows = [
        {
            "name": line.name,
            "line": line.line,
            "schedule": line.expression,
            "tz": line.tz,
            "command": line.command.encode(errors="surrogateescape").decode(errors="replace"),
            "next": iso(line.schedule.next_after(now_ms)),
        }
        for line in crontab.lines
        if line.name in trial.jobs
    ]
    if as_json:
        said = {"problems": problems, "notes": crontab.notes}
        print_json({"jobs": rows} | {key: [asdict(each) for each in found] for key, found in said.items()})
    else:
        for row in rows:
            click.echo(f"{row['next']}  {row['name']}: {row['schedule']} ({row['tz']}) {row['command']}")
        for problem in (*crontab.notes, *problems):
            click.echo(f"anarchon: {problem}", err=True)
    return 1 if problems else 0
