"""`anarchon next`: the slots of an expression, and the rules that it falls under, in words."""

from __future__ import annotations

import click

from anarchon.cli.common import iso, json_option, print_json, read_instant
from anarchon.cli.dialects import DIALECTS, Translation, translate
from anarchon.clock import SystemClock
from anarchon.schedule import Schedule, explain, text_of

__all__ = ["next_command"]


@click.command("next", short_help="Show the next slots of an expression, in words too.")
@click.argument("expression")
@click.option("--tz", default="UTC", show_default=True, help="Time zone of the expression.")
@click.option("--after", help="Slots after this instant, for example 2027-01-15T10:07:30Z; now if left out.")
@click.option("--count", default=5, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--name", help="The job's name, for H.")
@click.option("--from", "dialect", type=click.Choice(sorted(DIALECTS)), help="Read EXPRESSION as another scheduler does.")
@json_option
def next_command(expression: str, as_json: bool, count: int, **given: str | None) -> int:  # noqa: FBT001 - a click flag
    """Show the next slots of EXPRESSION and say in words what it means.

    With --from it is read as quartz, apscheduler3 or croniter read it, and the slots are those it has there; exit code 1
    if it has to be written otherwise here.
    """
    tz, name, dialect = given["tz"] or "UTC", given["name"], given["dialect"]
    translation = translate(expression, dialect) if dialect is not None else Translation(expression)
    remarks = translation.remarks
    schedule = translation.schedule(tz, name)
    after = given["after"]
    after_ms = read_instant("--after", after) if after else int(SystemClock().wall_ms())
    slots = _slots(schedule, after_ms, count)
    if dialect is not None:
        write = f"Write {translation.written(tz)}." if remarks else "It means the same here."
        remarks = (*remarks, write)
    if as_json:
        print_json(slots)
        for sentence in remarks:
            click.echo(f"anarchon: {sentence}", err=True)
    else:
        click.echo(f"{text_of(schedule)}  ({tz})")
        for sentence in [*remarks, *explain(schedule, after_ms=after_ms)]:
            click.echo(f"  {sentence}")
        for slot in slots:
            click.echo(slot)
    return 1 if translation.remarks else 0


def _slots(schedule: Schedule, after_ms: int, count: int) -> list[str]:
    slots: list[str] = []
    at_ms = schedule.next_after(after_ms)
    while at_ms is not None and len(slots) < count:
        slots.append(iso(at_ms) or "")
        at_ms = schedule.next_after(at_ms)
    return slots
