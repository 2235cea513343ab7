"""What the pages say of commands, options, exit codes, JSON and crontabs is what the code does."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import click
import pytest
from anarchon.cli.demo_fleet import Verdict
from anarchon.cli.main import COMMANDS, EXIT_BAD_INPUT, EXIT_OK, EXIT_PROBLEM, cli
from anarchon.cli.store import record_json
from anarchon.crontab import command, parse_crontab
from anarchon.types import RunRecord, RunStatus

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "command-line.md").read_text()
CRONTAB = (DOCS / "crontab.md").read_text()
ROWS = {row.split("|")[1].strip(): row for row in PAGE.splitlines() if row.startswith("| ")}
Anarchon = Callable[..., subprocess.CompletedProcess[str]]


def command_of(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def options_of(name: str) -> dict[str, click.Option]:
    parameters = command_of(name).params
    return {
        each.opts[-1] if each.opts[-1].startswith("--") else each.opts[0]: each
        for each in parameters
        if isinstance(each, click.Option)
    }


def row_of(name: str) -> str:
    (row,) = (row for head, row in ROWS.items() if re.match(rf"`anarchon {name}\b", head))
    return row


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_page_names_every_command_its_arguments_options_and_defaults(name: str) -> None:
    row, options = row_of(name), options_of(name)
    arguments = [each.make_metavar(click.Context(cli)) for each in command_of(name).params if isinstance(each, click.Argument)]
    assert f"`{' '.join(['anarchon', name, *arguments])}`" in row
    told = set(re.findall(r"--[a-z-]+", row.split("|")[3]))
    assert told == {option for option in options if option != "--json"}
    assert ("--json" in options) == (name != "run")
    for option, default in re.findall(r"`(--[a-z-]+)` \((\w+)\)", row):
        if default.isdecimal() or default.isupper():
            assert str(options[option].default) == default


def test_the_page_has_the_exit_codes() -> None:
    told = {int(head) for head in ROWS if head.isdecimal()}
    assert told == {EXIT_OK, EXIT_PROBLEM, EXIT_BAD_INPUT, 130}
    assert set(re.findall(r"\(`([a-z]+)", ROWS[str(EXIT_PROBLEM)])) <= set(COMMANDS)


def json_row(head: str) -> set[str]:
    (cells,) = (row.split("|") for row in PAGE.splitlines() if row.startswith(f"| `{head}` |"))
    return set(re.findall(r"`([a-z_]+)`", cells[2]))


def test_the_page_has_the_shapes_of_json(quick: Anarchon, tmp_path: Path) -> None:
    record = RunRecord("job", 0, "", 1, "t", "here", RunStatus.SUCCESS, 0)
    assert json_row("history") == set(record_json(record))
    assert json_row("demo") == {field.name for field in fields(Verdict)}
    assert json_row("check") == set(json.loads(quick("check", "memory://", "--json").stdout))
    assert json_row("why") == set(json.loads(quick("why", "memory://", "job", "0", "--json").stdout))
    assert json_row("backends") == set(json.loads(quick("backends", "--json").stdout))
    (tmp_path / "crontab").write_text("0 1 * * * x\n")
    assert json_row("crontab --check") == set(json.loads(quick("crontab", "crontab", "--check", "--json").stdout))


def test_the_examples_of_the_page_print_what_it_shows(quick: Anarchon) -> None:
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        typed, _, shown = block.partition("\n")
        assert quick(*shlex.split(typed.removeprefix("$ anarchon "))).stdout.startswith(shown)


def test_the_commands_of_the_crontab_page_are_accepted() -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", CRONTAB, re.DOTALL)
    for line in block.splitlines():
        anarchon, name, *words = shlex.split(line, comments=True)
        assert anarchon == "anarchon"
        with command_of(name).make_context(name, words) as context:
            assert context.params["file"]


def test_the_crontab_of_the_page_is_one() -> None:
    (block,) = re.findall(r"```text\n(.*?)```", CRONTAB, re.DOTALL)
    crontab = parse_crontab(block, file="page")
    assert (crontab.problems, crontab.notes) == ((), ())
    assert [line.name.partition("-")[0] for line in crontab.lines] == ["rates", "tidy", "mail"]


def test_the_crontab_page_has_the_times_of_the_code() -> None:
    assert command.TERM_MS == 500
    assert "SIGKILL half a second later" in CRONTAB
    assert f"PATH={command.PATH_DEFAULT}" in CRONTAB
    assert f"(`{command.SHELL_DEFAULT}`)" in CRONTAB
