"""The command `anarchon-conformance`: point it at a URL, get a verdict for every clause.

Exit codes: 0 passed; 1 a clause is violated or undecided, or a tier was vacuous; 2 the command cannot run as it was given:
one sentence says why.
"""

from __future__ import annotations

import importlib
import secrets
import sys
from pathlib import Path
from typing import NoReturn

import click
from anarchon.backend import CONTRACT_VERSION, Backend
from anarchon.errors import AnarchonError, BackendError, ConfigurationError
from anarchon.url import redact

from anarchon_conformance.checker import Judgement, check
from anarchon_conformance.history import History
from anarchon_conformance.render import failure_text, json_of, markdown_of, text_of
from anarchon_conformance.report import Failure, Profile, RunOptions, Tier
from anarchon_conformance.session import DEFAULT_TIERS, Report, run
from anarchon_conformance.story import story
from anarchon_conformance.target import Target

__all__ = ["main"]

PASSED, FAILED, CANNOT = 0, 1, 2
SEEDS = 2**32
_RENDER = {"text": text_of, "md": markdown_of, "json": json_of}


def main() -> None:
    """Run the command."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["explain"]:
        _explain(arguments[1:], prog_name="anarchon-conformance explain")
    else:
        _run(arguments, prog_name="anarchon-conformance")


@click.command(epilog="`anarchon-conformance explain FILE` judges a saved history again.")
@click.argument("target", metavar="URL")
@click.option(
    "--tier",
    "tiers",
    type=click.Choice([*(tier.value for tier in Tier), "all"]),
    multiple=True,
    help="Run this tier; may be repeated.",
)
@click.option("--contract", type=int, default=CONTRACT_VERSION, show_default=True, help="Contract version to hold it to.")
@click.option("--report", type=click.Choice(list(_RENDER)), default="text", show_default=True)
@click.option("--replay", metavar="STRING", help="Play one case again, as a failure printed it.")
@click.option("--seed", type=click.IntRange(0, SEEDS), help="Seed of every random choice; printed in the report.")
@click.option("--profile", type=click.Choice([profile.value for profile in Profile]), default="default", show_default=True)
@click.option("--save", type=click.Path(file_okay=False, path_type=Path), help="Save the histories of failures in this folder.")
@click.version_option(package_name="anarchon-conformance")
def _run(  # noqa: PLR0917 - click hands over one argument an option
    target: str,
    tiers: tuple[str, ...],
    contract: int,
    report: str,
    replay: str | None,
    seed: int | None,
    profile: str,
    save: Path | None,
) -> None:
    """Hold the backend at URL to the claim contract and print a verdict for every clause.

    Instead of a URL, module:Name names a Target class, which may unlock more tests.
    """
    if contract != CONTRACT_VERSION:
        _refuse(f"contract {contract} is not known to this kit: it speaks version {CONTRACT_VERSION}")
    chosen = tuple(Tier) if "all" in tiers else tuple(map(Tier, tiers)) or DEFAULT_TIERS
    options = RunOptions(secrets.randbelow(SEEDS) if seed is None else seed, Profile(profile), replay)
    found = _attempt(target, options, chosen)
    if save is not None:
        _save(found, save)
    click.echo(_RENDER[report](found), nl=False)
    sys.exit(PASSED if found.passed else FAILED)


def _attempt(target: str, options: RunOptions, tiers: tuple[Tier, ...]) -> Report:
    try:
        return run(_target(target), options, tiers=tiers)
    except BackendError as error:
        _refuse(f"the store cannot be used: {error}")
    except (AnarchonError, ValueError) as error:
        _refuse(str(error))
    except TypeError as error:
        if "abstract" not in str(error):
            raise
        _refuse(f"the backend of {redact(target)} is not complete: {error}")


def _target(text: str) -> Target:
    if "://" in text:
        made = Target()
        made.url = text
        backend = made.make(text)
        if not isinstance(backend, Backend):
            msg = f"{redact(text)} made a {type(backend).__name__}, which is no anarchon.backend.Backend"
            raise ConfigurationError(msg)
        return made
    module, _, name = text.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        msg = f"{text!r:.200} is no backend URL (scheme://...) and names no Target class (module:Name)"
        raise ConfigurationError(msg) from None
    target = found() if isinstance(found, type) else found
    if not isinstance(target, Target):
        msg = f"{text} is no subclass of anarchon_conformance.Target"
        raise ConfigurationError(msg)
    return target


def _refuse(sentence: str) -> NoReturn:
    click.echo(f"anarchon-conformance: {redact(' '.join(sentence.split()))}", err=True)
    sys.exit(CANNOT)


def _save(report: Report, folder: Path) -> None:
    for number, failure in enumerate(report.failures, 1):
        if failure.history is not None:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{failure.clause}-{number}.jsonl"
            failure.history.save(path)
            click.echo(f"saved {path}", err=True)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def _explain(file: Path) -> None:
    """Judge a saved history again and tell its story."""
    try:
        history = History.load(file)
    except (ValueError, TypeError) as error:
        _refuse(str(error))
    finding = check(history)
    if finding.judgement is Judgement.OK:
        click.echo(f"{file}: {len(history.ops)} calls on {len(history.jobs)} jobs, explained by the contract")
        sys.exit(PASSED)
    clause = finding.clause or "C3"
    told = failure_text(Failure(clause, str(file), story(history, finding)), str(file))
    click.echo(told if finding.judgement is Judgement.VIOLATION else f"{file}: {finding.sentence}")
    sys.exit(FAILED)
