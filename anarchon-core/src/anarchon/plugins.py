"""Plugins: how observers are found and called, each under a guard of its own (K5)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence

import pluggy

from anarchon import hookspecs
from anarchon.errors import ConfigurationError

__all__ = ["OBSERVER_GROUP", "Observers", "new_manager"]

OBSERVER_GROUP = "anarchon.plugins"
DISABLE_VARIABLE = "ANARCHON_DISABLE_PLUGINS"

_log = logging.getLogger("anarchon.plugins")


def new_manager(plugins: Sequence[object] = ()) -> pluggy.PluginManager:
    """Return a plugin manager with the given plugins and, unless switched off, every installed observer.

    `ANARCHON_DISABLE_PLUGINS` is `1` to skip all installed observers, or a list of names separated by commas.

    Raises:
        ConfigurationError: a given plugin is registered twice, or has a hook that does not exist.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    for plugin in plugins:
        _register(manager, plugin)
    disabled = os.environ.get(DISABLE_VARIABLE, "")
    if disabled not in {"1", "true", "all"}:
        _load_observers(manager, set(disabled.split(",")))
    return manager


def _register(manager: pluggy.PluginManager, plugin: object) -> None:
    try:
        manager.register(plugin)
        manager.check_pending()
    except (ValueError, pluggy.PluginValidationError) as error:
        msg = f"plugin {plugin!r} is refused: {error}"
        raise ConfigurationError(msg) from error


def _load_observers(manager: pluggy.PluginManager, disabled: set[str]) -> None:
    from importlib import metadata

    for entry in metadata.entry_points(group=OBSERVER_GROUP):
        if entry.name in disabled:
            continue
        try:
            plugin = entry.load()
            if not manager.is_registered(plugin):
                manager.register(plugin, name=entry.name)
                manager.check_pending()
        except Exception:  # border: observer (K5)
            if manager.has_plugin(entry.name):
                manager.unregister(name=entry.name)
            _log.exception("plugin %r is installed but broken and is left out", entry.name)


class Observers:
    """Tells every observer what happened; what one raises is logged and stops nobody else."""

    def __init__(self, manager: pluggy.PluginManager) -> None:
        self._manager = manager
        self._complained: set[tuple[str, str]] = set()

    def tell(self, event: str, **facts: object) -> None:
        """Call the hook `anarchon_<event>` of every plugin with the facts it asks for."""
        caller: pluggy.HookCaller = getattr(self._manager.hook, f"anarchon_{event}")
        for implementation in caller.get_hookimpls():
            try:
                implementation.function(*(facts[name] for name in implementation.argnames))
            except (Exception, SystemExit, GeneratorExit, asyncio.CancelledError):  # border: observer (K5)
                place = (event, implementation.plugin_name)
                if place not in self._complained:
                    self._complained.add(place)
                    _log.exception("plugin %s failed in anarchon_%s; told once", implementation.plugin_name, event)
