"""A backend that strangers wrote, as a wheel beside the wheels of the core and the kit, judged by the kit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from installs import Environment, run
from stores.mariadb import MariaDB
from workspace import ROOT

FOLDER = Path(__file__).parent / "anarchon-mariadb"
LINES_MAX = 200
NEEDS = ("aiomysql", "pluggy", "croniter", "tzdata", "click", "rich", "hypothesis", "pytest")


def test_it_is_at_most_two_hundred_lines() -> None:
    lines = [line for file in FOLDER.glob("src/**/*.py") for line in file.read_text().splitlines() if line.strip()]
    assert len(lines) <= LINES_MAX


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A fresh environment with three wheels and what they need."""
    folder = tmp_path_factory.mktemp("third-party")
    for project in (ROOT / "anarchon-core", ROOT / "conformance", FOLDER):
        run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, project)
    environment = Environment(folder / "venv")
    environment.bring(NEEDS)
    environment.install(*folder.glob("*.whl"))
    return environment


@pytest.mark.timeout(400)
def test_the_kit_passes_from_wheels_alone(environment: Environment, mariadb: MariaDB, tmp_path: Path) -> None:
    command = [str(environment.bin / "anarchon-conformance"), mariadb.url()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False, cwd=tmp_path)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    for number in range(1, 26):
        assert f"  C{number} " in done.stdout
    assert done.stdout.count("marks: ") >= 2
