"""The front page's first command, as a stranger types it: with pip, an index and nothing of ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import read_page
from installs import run
from workspace import ROOT

SECONDS = 15


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what is in the repository."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / "checkout" / name)
    return tmp_path / "checkout"


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_first_command_installs_and_shows_a_fleet(checkout: Path, tmp_path: Path) -> None:
    command = next(block.code for block in read_page("README.md").blocks("sh") if "demo" in block.code).strip()
    places = re.fullmatch(r"pip install ((?:\./\S+ )+)&& anarchon demo", command)
    assert places is not None, command
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    packages = [checkout / place for place in places[1].split()]
    run(tmp_path / "venv" / "bin" / "pip", "--disable-pip-version-check", "install", "-q", *packages)
    shown = run(tmp_path / "venv" / "bin" / "anarchon", "demo", "--seconds", str(SECONDS), "--instances", "3", "--json")
    verdict = json.loads(shown.splitlines()[-1])
    assert (verdict["verdict"], verdict["duplicates"], verdict["missed"]) == ("ok", 0, 0)
    assert verdict["takeovers"] >= 1
