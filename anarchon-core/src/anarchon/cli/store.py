"""Questions to a store: history, why, check, orphans; and which backends there are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click

from anarchon.cli.common import StoreCommand, ask, iso, json_option, print_json, read_instant, url_argument
from anarchon.clock import SystemClock
from anarchon.job import LEASE_ONLY
from anarchon.registry import installed_schemes, known_packages
from anarchon.store import Store
from anarchon.types import Limits, RunRecord
from anarchon.url import redact
from anarchon.why import Verdict, why

__all__ = ["backends_command", "check_command", "history_command", "orphans_command", "why_command"]

PINGS = 7
OFFSET_WORTH_A_WORD_MS = 500
_BAD = frozenset({Verdict.FAILED, Verdict.INTERRUPTED, Verdict.MISSED, Verdict.UNACCOUNTED})


def record_json(record: RunRecord) -> dict[str, object]:
    """Return a record as `history --json` prints it."""
    return {
        "job": record.job,
        "slot": iso(record.slot_ms),
        "slot_ms": record.slot_ms,
        "space": record.space,
        "attempt": record.attempt,
        "instance": record.instance,
        "status": str(record.status),
        "claimed_at": iso(record.claimed_ms),
        "finished_at": iso(record.finished_ms),
        "error": record.error,
    }


@click.command("history", cls=StoreCommand, short_help="Show what ran.")
@url_argument
@click.argument("job")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 100_000), help="The most records.")
@json_option
def history_command(url: str, job: str, limit: int, as_json: bool) -> int:  # noqa: FBT001 - a click flag
    """Show what ran: the attempts and notes of JOB in the store at URL, newest slot first."""
    records = ask(url, lambda store: store.history(job, limit=limit))
    if as_json:
        print_json([record_json(record) for record in records])
    elif records:
        _table(records)
    else:
        click.echo(f"the store has no history of {job!r}")
    return 0


def _table(records: Sequence[RunRecord]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("slot", "attempt", "status", "instance", "late", "took", "error", box=None)
    for record in records:
        took = "" if record.finished_ms is None else f"{(record.finished_ms - record.claimed_ms) / 1000:.1f} s"
        late = "" if record.key.note else f"{(record.claimed_ms - record.slot_ms) / 1000:.1f} s"
        attempt = "note" if record.key.note else f"{record.attempt}{' (manual)' if record.key.manual else ''}"
        table.add_row(iso(record.slot_ms), attempt, str(record.status), record.instance, late, took, redact(record.error or ""))
    Console().print(table)


@click.command("why", cls=StoreCommand, short_help="Say why a slot ran or did not.")
@url_argument
@click.argument("job")
@click.argument("slot")
@json_option
def why_command(url: str, job: str, slot: str, as_json: bool) -> int:  # noqa: FBT001 - a click flag
    """Say why a SLOT (an instant such as 2027-01-15T10:00:00Z) of JOB ran or did not. Exit code 1 if it went wrong."""
    slot_ms = read_instant("slot", slot)
    answer = ask(url, lambda store: why(store, job, slot_ms))
    if as_json:
        print_json({"job": job, "slot": iso(slot_ms), "verdict": str(answer.verdict), "text": answer.text})
    else:
        click.echo(answer.text)
    return 1 if answer.verdict in _BAD else 0


@dataclass(frozen=True, slots=True)
class _Checked:
    backend: str
    kind: str
    round_trip_ms: float
    clock_offset_ms: float | None
    limits: dict[str, object]
    does_not: list[str]
    options_refused: list[str]
    warnings: list[str]


@click.command("check", cls=StoreCommand, short_help="Say what a store promises, and what weakens it.")
@url_argument
@json_option
def check_command(url: str, as_json: bool) -> int:  # noqa: FBT001 - a click flag
    """Connect to the store at URL; say what it guarantees, how far its clock is off, and what weakens it.

    Exit code 1 if there is a warning.
    """
    checked = ask(url, _check)
    if as_json:
        print_json(asdict(checked))
    else:
        _print_check(url, checked)
    return 1 if checked.warnings else 0


async def _check(store: Store) -> _Checked:
    clock, trips = SystemClock(), []
    for _ in range(PINGS):
        begun_ms = clock.monotonic_ms()
        await store.call("ping", store.backend.ping)
        trips.append(clock.monotonic_ms() - begun_ms)
    warnings = await store.call("warnings", store.backend.warnings)
    offset_ms = round(store.time.offset_to_wall_ms, 1) if store.time.measured else None
    if offset_ms is not None and abs(offset_ms) > OFFSET_WORTH_A_WORD_MS:
        warnings = [*warnings, f"this machine's clock is {-offset_ms / 1000:+.1f} s off the store's: check its time service"]
    limits = asdict(store.limits)
    leased = store.lease is not None
    lacks = ["overlap protection", "takeover and retries", "catch-up", "hand-over", "pause"]
    return _Checked(
        backend=type(store.backend).__name__,
        kind="lease" if leased else "claim-only",
        round_trip_ms=round(statistics.median(trips), 3),
        clock_offset_ms=offset_ms,
        limits=limits,
        does_not=[] if leased else lacks,
        options_refused=refused_options(store.limits, leased=leased),
        warnings=warnings,
    )


def refused_options(limits: Limits, *, leased: bool) -> list[str]:
    """Return the options of a job that a backend cannot honour when they are written (K10)."""
    refused = set() if leased else set(LEASE_ONLY) - {"overlap"} | {"overlap='skip'", "overlap='queue'"}
    return sorted(refused if limits.history_ttl else refused | {"history_ttl"})


def _print_check(url: str, checked: _Checked) -> None:
    click.echo(f"{redact(url)}: {checked.backend}, a {checked.kind} backend")
    click.echo(f"  round trip    {checked.round_trip_ms:.2f} ms (median of {PINGS})")
    offset = "the store has no clock that can be asked for"
    if checked.clock_offset_ms is not None:
        offset = f"{checked.clock_offset_ms:+.1f} ms (store minus this machine)"
    click.echo(f"  clock         {offset}")
    memory = checked.limits["remembers_ms"]
    remembers = "for as long as a late claim could ask" if memory is None else f"for {int(str(memory)) / 1000:g} s"
    lasts = "" if checked.limits["durable"] else ", but not across a restart of the store"
    click.echo(f"  memory        a won slot is remembered {remembers}{lasts}")
    if checked.limits["ordered"]:
        click.echo("  order         a slot is refused once a later one of its job is claimed")
    judge = "the store's clock" if checked.limits["store_clock"] else "each instance's corrected clock"
    click.echo(f"  early, late   judged by {judge}")
    if not checked.limits["resolves_unknown"]:
        click.echo("  lost answers  a claim whose answer is lost cannot be asked again: its slot is noted, not run")
    if checked.does_not:
        click.echo(f"  does not do   {', '.join(checked.does_not)}")
    if checked.options_refused:
        click.echo(f"  no options    {', '.join(checked.options_refused)}")
    for note in checked.limits["notes"] or ():  # type: ignore[attr-defined]  # a tuple of sentences
        click.echo(f"  note          {note}")
    for warning in checked.warnings:
        click.secho(f"  warning       {redact(warning)}", fg="yellow")
    if not checked.warnings:
        click.echo("  no warnings")


@click.command("orphans", cls=StoreCommand, short_help="List jobs that nobody runs any more.")
@url_argument
@click.option("--days", default=7, show_default=True, type=click.IntRange(0, 36_500), help="Silent for at least so long.")
@click.option("--forget", multiple=True, metavar="JOB", help="Remove everything stored for JOB; may be repeated.")
@json_option
def orphans_command(url: str, days: int, forget: tuple[str, ...], as_json: bool) -> int:  # noqa: FBT001 - a click flag
    """List the jobs that are in the store and that nobody has run for a while: removed, renamed or forgotten ones.

    Exit code 1 if there are any.
    """
    orphans = ask(url, lambda store: _orphans(store, days, forget))
    if as_json:
        print_json(orphans)
    else:
        for orphan in orphans:
            click.echo(f"{orphan['job']}: last seen {orphan['last']}, first {orphan['first']}")
        if not orphans:
            click.echo(f"no job of this store has been silent for {days} days")
    return 1 if orphans else 0


async def _orphans(store: Store, days: int, forget: Sequence[str]) -> list[dict[str, object]]:
    for job in forget:
        await store.call("forget", lambda name=job: store.backend.forget(name))  # type: ignore[misc]  # binds the loop's value
    before_ms = int(store.time.now_ms()) - days * 86_400_000
    found: list[dict[str, object]] = []
    for view in await store.jobs():
        records = await store.history(view.job, limit=1)
        last_ms = max([view.first_ms, *(record.claimed_ms for record in records)])
        if last_ms < before_ms:
            found.append({"job": view.job, "first": iso(view.first_ms), "last": iso(last_ms)})
    return found


@click.command("backends", short_help="List the URL schemes that work here.")
@json_option
def backends_command(as_json: bool) -> int:  # noqa: FBT001 - a click flag
    """List the URL schemes that work here, and the packages for those that do not."""
    installed = {name: entry.dist.name if entry.dist else entry.value for name, entry in installed_schemes().items()}
    missing = {scheme: package for scheme, package in known_packages().items() if scheme not in installed}
    if as_json:
        print_json({"installed": installed, "missing": missing})
        return 0
    for scheme, package in sorted(installed.items()):
        click.echo(f"{scheme + '://':14} {package}")
    for scheme, package in sorted(missing.items()):
        click.echo(f"{scheme + '://':14} not installed: pip install {package}")
    return 0
