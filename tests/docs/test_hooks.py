"""The page about plugins says what the code does."""

from __future__ import annotations

import inspect

import anarchon.errors
import pluggy
from anarchon import Scheduler, hookspecs
from anarchon.plugins import new_manager
from documents import Page


def test_every_hook_has_a_row_with_its_arguments(plugins_page: Page) -> None:
    documented = {row[0].strip("`"): [name.strip(" `") for name in row[1].split(",")] for row in plugins_page.rows("| hook")}
    specified = {
        name: list(inspect.signature(function).parameters)
        for name, function in vars(hookspecs).items()
        if name.startswith("anarchon_")
    }
    assert documented == specified


def test_every_hook_is_documented_in_the_code() -> None:
    assert not [name for name, f in vars(hookspecs).items() if name.startswith("anarchon_") and not inspect.getdoc(f)]


def test_errors_named_on_the_page_exist(plugins_page: Page) -> None:
    rows = plugins_page.rows("| what is wrong")
    assert len(rows) == 4
    assert not [row[1] for row in rows if row[1].strip("`") not in anarchon.errors.__all__]


def test_the_observer_of_the_page_is_a_plugin(plugins_page: Page) -> None:
    code = next(block.code for block in plugins_page.blocks("python") if "class Counter" in block.code)
    names: dict[str, object] = {}
    exec(code, names)
    assert isinstance(names["scheduler"], Scheduler)


def test_the_backend_of_the_page_is_a_plugin_that_answers_for_its_scheme_only(plugins_page: Page) -> None:
    code = next(block.code for block in plugins_page.blocks("python") if "AcmeBackend" in block.code)
    names: dict[str, object] = {}
    exec(code, names)
    plugin = type("Module", (), {"anarchon_backend": staticmethod(names["anarchon_backend"])})  # type: ignore[arg-type]
    manager = new_manager([plugin])
    assert isinstance(manager, pluggy.PluginManager)
    from anarchon.url import BackendUrl

    assert manager.hook.anarchon_backend(url=BackendUrl.of("other://x")) is None
