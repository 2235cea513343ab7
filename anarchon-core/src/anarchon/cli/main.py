"""The group of commands; each is imported when it is used."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Final

import click

from anarchon.errors import AnarchonError
from anarchon.url import redact

__all__ = ["EXIT_BAD_INPUT", "EXIT_OK", "EXIT_PROBLEM", "main"]

EXIT_OK: Final = 0
EXIT_PROBLEM: Final = 1
EXIT_BAD_INPUT: Final = 2

COMMANDS: Final = {
    "backends": "anarchon.cli.store",
    "check": "anarchon.cli.store",
    "crontab": "anarchon.cli.crontab",
    "demo": "anarchon.cli.demo",
    "history": "anarchon.cli.store",
    "next": "anarchon.cli.slots",
    "orphans": "anarchon.cli.store",
    "run": "anarchon.cli.run",
    "why": "anarchon.cli.store",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        found = getattr(importlib.import_module(module), f"{cmd_name}_command")
        assert isinstance(found, click.Command)
        return found


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="anarchon-core", prog_name="anarchon")
def cli() -> None:
    """Leaderless distributed cron: every instance claims every slot, exactly one wins.

    Exit codes: 0 all is well, 1 a problem was found, 2 bad input or no connection.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; every expected failure is one sentence on stderr and exit code 2."""
    # What the core logs as a warning is said once, as the error; `run` and `crontab` set up logging of their own.
    logging.getLogger("anarchon").addHandler(logging.NullHandler())
    try:
        code = cli.main(args=arguments, prog_name="anarchon", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(EXIT_BAD_INPUT)
    except click.ClickException as error:
        click.echo(f"anarchon: {error.format_message()}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except click.exceptions.Abort:
        sys.exit(130)
    except AnarchonError as error:
        click.echo(f"anarchon: {redact(str(error))}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_OK)
    sys.exit(code if isinstance(code, int) else EXIT_OK)
