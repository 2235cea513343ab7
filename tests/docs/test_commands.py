"""The commands that the pages name exist, and the application of the front page runs as it says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from documents import Page
from workspace import ROOT, refuse

COMMAND = re.compile(r"(?:^|&& |\$ )anarchon ([a-z]+)", re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
PART = re.compile(r"\./tests/run ([a-z]+)")
SLOTS = 4
LIMIT_S = 60


def typed(page: Page) -> list[str]:
    """Return what a page gives to type: blocks for the shell, and code within lines."""
    return [*(block.code for block in page.blocks("sh", "console", "bash", "")), *INLINE.findall(page.text)]


def test_subcommands_named_on_the_pages_exist(pages: Iterable[Page]) -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "anarchon", "--help"], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    listed = set(re.findall(r"^ +([a-z]+) ", done.stdout, re.MULTILINE))
    named = {(page.place, name) for page in pages for code in typed(page) for name in COMMAND.findall(code)}
    assert len(named) > 3
    refuse(sorted(f"{place}: anarchon {name}" for place, name in named if name not in listed), "no such subcommand:")


def test_parts_of_the_test_command_named_on_the_pages_exist(pages: Iterable[Page]) -> None:
    parts = set(re.findall(r'"([a-z]+)"', re.findall(r"^PARTS = .*$", (ROOT / "tests" / "run.py").read_text(), re.MULTILINE)[0]))
    named = {(page.place, name) for page in pages for name in PART.findall(page.text)}
    refuse(sorted(f"{place}: ./tests/run {name}" for place, name in named if name not in parts), "no such part:")


def test_the_test_commands_are_executable() -> None:
    assert [os.access(ROOT / name, os.X_OK) for name in ("tests/run", ".ci/run")] == [True, True]


@pytest.fixture
def application(readme: Page, tmp_path: Path) -> Path:
    """The front page's application in a folder of its own."""
    code = next(block.code for block in readme.blocks("python") if block.code.startswith("# app.py"))
    path = tmp_path / "app.py"
    path.write_text(code)
    return path


def test_two_instances_of_the_front_page_print_each_slot_once_and_stop_when_told(application: Path, tmp_path: Path) -> None:
    outputs = [tmp_path / "one", tmp_path / "two"]
    processes = []
    for output in outputs:
        with output.open("wb") as out:
            words = [sys.executable, application.name]
            processes.append(subprocess.Popen(words, cwd=tmp_path, stdout=out, stderr=subprocess.STDOUT))
    try:
        deadline = time.monotonic() + LIMIT_S
        while sum(output.read_text().count("\n") for output in outputs) < SLOTS:
            assert time.monotonic() < deadline, "\n".join(output.read_text() for output in outputs)
            assert [process.poll() for process in processes] == [None, None]
            time.sleep(0.05)
        for process in processes:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(LIMIT_S) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    lines = [line for output in outputs for line in output.read_text().splitlines()]
    assert not [line for line in lines if not re.fullmatch(r"\d\d:\d\d:\d\d attempt 1", line)]
    assert len(lines) == len(set(lines)) >= SLOTS
