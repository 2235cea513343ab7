"""The workspace's packages, modules and files as fixtures."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from workspace import ROOT, Module, Package, read_packages


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def packages() -> tuple[Package, ...]:
    """Every distribution of the workspace."""
    return read_packages()


@pytest.fixture(scope="session")
def core(packages: tuple[Package, ...]) -> Package:
    """The core."""
    return next(package for package in packages if package.name == "anarchon-core")


@pytest.fixture(scope="session")
def kit(packages: tuple[Package, ...]) -> Package:
    """The conformance kit."""
    return next(package for package in packages if package.name == "anarchon-conformance")


@pytest.fixture(scope="session")
def backends(packages: tuple[Package, ...]) -> tuple[Package, ...]:
    """The packages of the stores."""
    return tuple(package for package in packages if package.name not in {"anarchon-core", "anarchon-conformance"})


@pytest.fixture(scope="session")
def sources(packages: tuple[Package, ...]) -> tuple[Module, ...]:
    """Every module of every package."""
    return tuple(module for package in packages for module in package.modules)


@pytest.fixture(scope="session")
def files() -> tuple[Path, ...]:
    """Every file that is, or is about to be, in the repository."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())
