"""What a user gets: distributions built from the checkout, and a fresh environment to install them into."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from installs import Environment, run
from packaging.requirements import Requirement
from workspace import Package, read_packages


@pytest.fixture(scope="session")
def packages() -> tuple[Package, ...]:
    """Every distribution of the workspace."""
    return read_packages()


@pytest.fixture(scope="session")
def built(packages: tuple[Package, ...], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """The sdist of each package and the wheel that was built from that sdist."""
    files = {}
    for package in packages:
        folder = tmp_path_factory.mktemp(package.name)
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, package.folder)
        files[package.name] = (next(folder.glob("*.tar.gz")), next(folder.glob("*.whl")))
    return files


def installed(chosen: Iterable[Package], built: dict[str, tuple[Path, Path]], folder: Path) -> Environment:
    """Make an environment with these wheels of ours and what they declare, and nothing else."""
    environment = Environment(folder / "venv")
    chosen = tuple(chosen)
    requirements = [text for package in chosen for text in package.project["dependencies"]]
    environment.bring(text for text in requirements if Requirement(text).name not in built)
    environment.install(*(built[package.name][1] for package in chosen))
    return environment


@pytest.fixture(scope="session")
def fresh(
    packages: tuple[Package, ...], built: dict[str, tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """An environment with all our wheels."""
    return installed(packages, built, tmp_path_factory.mktemp("fresh"))


@pytest.fixture(scope="session")
def small(
    packages: tuple[Package, ...], built: dict[str, tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """An environment with the wheels of README's first command only."""
    chosen = [package for package in packages if package.name in {"anarchon-core", "anarchon-sqlite"}]
    return installed(chosen, built, tmp_path_factory.mktemp("small"))
