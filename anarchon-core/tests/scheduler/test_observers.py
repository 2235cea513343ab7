"""K5: an observer is told everything and can stop nothing."""

from __future__ import annotations

import asyncio
import logging
from importlib import metadata
from typing import Any

import pytest
from anarchon import Scheduler, hookimpl
from anarchon.errors import ConfigurationError
from anarchon.memory import MemoryBackend
from anarchon.plugins import OBSERVER_GROUP, new_manager
from anarchon.types import RunKey
from rig import START_MS, Grid, Lab, Tape, Work, job_of, observers, virtual

KEY = RunKey("job", START_MS)


class Failing:
    """An observer that raises in every hook."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    @hookimpl
    def anarchon_slot_due(self) -> None:
        raise self.error

    @hookimpl
    def anarchon_run_started(self) -> None:
        raise self.error

    @hookimpl
    def anarchon_run_finished(self) -> None:
        raise self.error


ERRORS: list[BaseException] = [ValueError("no"), SystemExit(1), asyncio.CancelledError(), GeneratorExit(), StopIteration()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@virtual
async def test_k5_an_observer_that_raises_stops_neither_runs_nor_other_observers(lab: Lab, error: BaseException) -> None:
    work = Work()
    instance = lab.launch(job_of(Grid(1_000), work))
    before, after = Tape(), Tape()
    told = observers(before, Failing(error), after)
    instance.engine.context.observers._manager = told._manager
    await lab.at(5_500)
    assert len(work.ended) == 5
    assert before.slots("run_finished") == after.slots("run_finished") == [START_MS + second * 1_000 for second in range(1, 6)]


def test_k5_what_an_observer_raises_is_logged_once_a_hook(caplog: pytest.LogCaptureFixture) -> None:
    told = observers(Failing(ValueError("no")))
    with caplog.at_level(logging.ERROR, "anarchon"):
        for _ in range(5):
            told.tell("slot_due", instance="i", key=KEY)
            told.tell("run_started", instance="i", key=KEY, attempt=1, late_ms=0)
    assert len(caplog.records) == 2
    assert "anarchon_slot_due" in caplog.text


def test_an_observer_takes_any_subset_of_the_facts() -> None:
    seen: list[Any] = []

    class Picky:
        @hookimpl
        def anarchon_run_started(self, late_ms: int, key: RunKey) -> None:
            seen.append((late_ms, key))

    observers(Picky()).tell("run_started", instance="i", key=KEY, attempt=1, late_ms=7)
    assert seen == [(7, KEY)]


def test_a_plugin_with_a_hook_that_does_not_exist_is_refused_at_construction() -> None:
    class Misspelt:
        @hookimpl
        def anarchon_run_startet(self) -> None: ...

    class Greedy:
        @hookimpl
        def anarchon_run_started(self, colour: str) -> None: ...

    for plugin, words in ((Misspelt(), "anarchon_run_startet"), (Greedy(), "colour")):
        with pytest.raises(ConfigurationError, match=words):
            Scheduler(backend=MemoryBackend(), plugins=[plugin])


def test_a_plugin_given_twice_is_refused() -> None:
    tape = Tape()
    with pytest.raises(ConfigurationError, match="is refused"):
        Scheduler(backend=MemoryBackend(), plugins=[tape, tape])


class Entry:
    """An installed observer, as the metadata of its distribution would name it."""

    def __init__(self, name: str, plugin: object) -> None:
        self.name = name
        self._plugin = plugin

    def load(self) -> object:
        if isinstance(self._plugin, Exception):
            raise self._plugin
        return self._plugin


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    """Observers that `importlib.metadata` finds."""
    found: list[Entry] = []

    def entry_points(*, group: str) -> list[Entry]:
        return found if group == OBSERVER_GROUP else []

    monkeypatch.delenv("ANARCHON_DISABLE_PLUGINS", raising=False)
    monkeypatch.setattr(metadata, "entry_points", entry_points)
    return found


def test_installed_observers_are_loaded_and_broken_ones_left_out(
    installed: list[Entry], caplog: pytest.LogCaptureFixture
) -> None:
    class Misspelt:
        @hookimpl
        def anarchon_run_startet(self) -> None: ...

    tape = Tape()
    installed += [Entry("broken", ImportError("gone")), Entry("odd", Misspelt()), Entry("tape", tape)]
    manager = new_manager()
    assert manager.get_plugin("tape") is tape
    assert not manager.has_plugin("odd")
    assert "'broken' is installed but broken" in caplog.text
    assert "'odd' is installed but broken" in caplog.text


@pytest.mark.parametrize(("value", "loaded"), [("1", []), ("all", []), ("a", ["b"]), ("a,b", []), ("", ["a", "b"])])
def test_installed_observers_can_be_switched_off(
    installed: list[Entry], monkeypatch: pytest.MonkeyPatch, value: str, loaded: list[str]
) -> None:
    installed += [Entry("a", Tape()), Entry("b", Tape())]
    monkeypatch.setenv("ANARCHON_DISABLE_PLUGINS", value)
    manager = new_manager()
    assert [name for name in ("a", "b") if manager.has_plugin(name)] == loaded


def test_a_plugin_given_by_hand_and_installed_is_registered_once(installed: list[Entry]) -> None:
    tape = Tape()
    installed.append(Entry("tape", tape))
    manager = new_manager([tape])
    assert list(manager.get_plugins()).count(tape) == 1
