"""Pytest's options and fixtures for every test of the repository: the profile and the store servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from enum import StrEnum

import pytest

from stores.fleet import Fleet
from stores.mariadb import MariaDB
from stores.server import Server


class Profile(StrEnum):
    """How much is run: what every change must pass, or everything."""

    DEFAULT = "default"
    NIGHTLY = "nightly"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("anarchon", "anarchon's own tests")
    group.addoption(
        "--require-stores",
        action="store_true",
        default=os.environ.get("CI", "").lower() in {"1", "true"},
        help="an absent store server is a failure (the default where CI=true), not a printed reason",
    )
    group.addoption("--profile", choices=[*Profile], default=Profile.DEFAULT, help="how much to run (default: default)")


def pytest_report_header(config: pytest.Config) -> str:
    stores = "required" if config.getoption("--require-stores") else "tested where installed"
    return f"anarchon: profile {config.getoption('--profile')}, stores {stores}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--profile") == Profile.NIGHTLY:
        return
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    if nightly:
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if item not in nightly]


@pytest.fixture(scope="session")
def profile(request: pytest.FixtureRequest) -> str:
    """How much to run: "default" or "nightly"."""
    return str(request.config.getoption("--profile"))


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """The session's servers; `need_store` first, then `fleet.new(kind)` for one of your own."""
    with Fleet() as fleet:
        yield fleet


@pytest.fixture(scope="session")
def need_store(request: pytest.FixtureRequest) -> Callable[[type[Server]], None]:
    """Fail or leave out a test whose server is not installed, as --require-stores says."""

    def need(kind: type[Server]) -> None:
        why = kind.absent()
        if why is not None and request.config.getoption("--require-stores"):
            pytest.fail(why, pytrace=False)
        if why is not None:
            pytest.skip(why)

    return need


@pytest.fixture(scope="session")
def mariadb(fleet: Fleet, need_store: Callable[[type[Server]], None]) -> MariaDB:
    """The session's common MariaDB."""
    need_store(MariaDB)
    return fleet.shared(MariaDB)
