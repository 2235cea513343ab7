"""The command as a process of its own, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from anarchon.cli import main

COMMAND = [sys.executable, "-c", "from anarchon.cli import main; main()"]

Anarchon = Callable[..., subprocess.CompletedProcess[str]]


def environment(more: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "ANARCHON_URL"} | dict(more)


@pytest.fixture
def anarchon(tmp_path: Path) -> Anarchon:
    """Run the command to its end in an empty folder; keywords are environment variables."""

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments], check=False, capture_output=True, text=True, timeout=110, env=environment(more), cwd=tmp_path
        )

    return run


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Anarchon:
    """Run the command in this process, for the many answers that need none of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANARCHON_URL", raising=False)

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        for name, value in more.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return subprocess.CompletedProcess(list(arguments), ended.value.code, said.out, said.err)

    return run


@pytest.fixture
def begin(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start the command in the same folder; the test ends it."""

    def start(*arguments: str, **more: str) -> subprocess.Popen[str]:
        out = subprocess.PIPE
        return subprocess.Popen([*COMMAND, *arguments], stdout=out, stderr=out, text=True, env=environment(more), cwd=tmp_path)

    return start
