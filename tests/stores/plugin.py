"""Pytest's options and fixtures for every test of the repository: the profile and the store servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

import pytest

from stores.fleet import Fleet
from stores.mariadb import MariaDB
from stores.server import Server

LONG = ("tests/conformance/", "tests/complaints/", "tests/processes", "anarchon-core/tests/simulation/", "tests/packaging/")
"""What takes longest comes first: at the end no worker is left alone with it."""
APART = ("tests/conformance/test_targets.py", "tests/conformance/test_zoo.py", "anarchon-core/tests/simulation/test_mutants.py")
"""Files in which only the tests of one parameter share anything."""
TOGETHER = ("tests/packaging/",)
"""Folders whose files share what is costly to make."""


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
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    if config.getoption("--profile") == Profile.NIGHTLY:
        return
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    if nightly:
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if item not in nightly]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share the tests out so that those which have costly fixtures in common stay on one worker."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no types

    class Sharing(LoadScopeScheduling):  # type: ignore[misc]  # as above
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Sharing(config, log)


def group_of(nodeid: str) -> str:
    """Return what of the tests stays together: a file, mostly."""
    place, _, rest = nodeid.partition("::")
    if place in APART and "[" in rest:
        return f"{place}[{rest.partition('[')[2]}"
    return next((folder for folder in TOGETHER if place.startswith(folder)), place)


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
