"""The ways in which a URL may find no backend, each with really installed distributions."""

from __future__ import annotations

import pytest
from installs import Environment, tiny_wheel

ASK = """
from anarchon import Scheduler
from anarchon.errors import ConfigurationError
try:
    Scheduler({url!r})
except ConfigurationError as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""
HOOK = """
from anarchon.hookspecs import hookimpl
@hookimpl
def anarchon_backend(url): {body}
"""


@pytest.fixture(scope="module")
def stocked(small: Environment, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The small environment with backend packages that are broken each in a way of its own."""
    codes = {
        "driverless": "import no_such_driver",
        "raising": "raise RuntimeError('cannot log in to raising://me:hunter2@host')",
        "silent": "CONTRACT_VERSION = 1" + HOOK.format(body="return None"),
        "old": "CONTRACT_VERSION = 99" + HOOK.format(body="raise AssertionError('asked')"),
        "unversioned": HOOK.format(body="raise AssertionError('asked')"),
    }
    folder = tmp_path_factory.mktemp("wheels")
    small.install(
        *(
            tiny_wheel(
                folder, f"throwaway-{name}", module=f"throwaway_{name}", code=code, entry_points={name: f"throwaway_{name}"}
            )
            for name, code in codes.items()
        )
    )
    return small


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("redis://localhost", "BackendNotInstalled", ["redis://", "pip install anarchon-redis"]),
        ("sqlit:///x.db", "UnknownBackend", ["sqlit://", "Did you mean 'sqlite'", "memory"]),
        ("zzz://x", "UnknownBackend", ["zzz://", "Installed: ", "sqlite"]),
        ("driverless://x", "BrokenBackend", ["throwaway-driverless", "'no_such_driver' is missing", "pip install"]),
        ("raising://x", "BrokenBackend", ["throwaway-raising", "cannot be imported", "cannot log in"]),
        ("silent://x", "BrokenBackend", ["throwaway-silent", "made no backend"]),
        ("old://x", "ContractMismatch", ["throwaway-old", "version 99", "speaks 1", "pip install --upgrade"]),
        ("unversioned://x", "ContractMismatch", ["throwaway-unversioned"]),
    ],
)
def test_a_url_without_a_backend_is_one_line_with_a_remedy(stocked: Environment, url: str, error: str, words: list[str]) -> None:
    printed = stocked.eval(ASK.format(url=url))
    assert printed.startswith(f"{error}: ")
    assert "\n" not in printed
    assert "hunter2" not in printed
    assert not [word for word in words if word not in printed], printed


def test_broken_packages_do_not_disturb_the_others(stocked: Environment) -> None:
    assert stocked.eval(ASK.format(url="sqlite:///x.db")) == ""
