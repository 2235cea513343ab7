"""From a URL to a backend: the scheme names an entry point, the entry point's module answers the hook."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from anarchon.errors import BackendNotInstalled, BrokenBackend, ConfigurationError, ContractMismatch, UnknownBackend
from anarchon.url import BackendUrl, redact

if TYPE_CHECKING:
    from importlib import metadata

    import pluggy

    from anarchon.backend import Backend

__all__ = ["BACKEND_GROUP", "choose_backend", "create_backend", "installed_schemes", "known_packages"]

BACKEND_GROUP = "anarchon.backends"
URL_VARIABLE = "ANARCHON_URL"

_PACKAGES = {
    "amqp": "anarchon-rabbitmq",
    "amqps": "anarchon-rabbitmq",
    "nats": "anarchon-nats",
    "postgres": "anarchon-postgres",
    "postgresql": "anarchon-postgres",
    "redis": "anarchon-redis",
    "rediss": "anarchon-redis",
    "sqlite": "anarchon-sqlite",
    "tls": "anarchon-nats",
    "unix": "anarchon-redis",
    "valkey": "anarchon-redis",
}


def known_packages() -> dict[str, str]:
    """Return the packages that serve the schemes of this project, by scheme."""
    return dict(_PACKAGES)


def installed_schemes() -> dict[str, metadata.EntryPoint]:
    """Return every installed backend entry point by scheme; nothing is imported."""
    from importlib import metadata

    return {entry.name: entry for entry in metadata.entry_points(group=BACKEND_GROUP)}


def create_backend(url: str | BackendUrl, manager: pluggy.PluginManager) -> Backend:
    """Make the backend for a URL without touching its store.

    Plugins registered in code are asked first, then the one entry point that the scheme names.

    Raises:
        UrlError: the URL or one of its options cannot be used.
        BackendNotInstalled: a package of this project is missing; the message says which.
        UnknownBackend: nobody serves the scheme.
        BrokenBackend: the package is installed but cannot be imported or does not answer.
        ContractMismatch: the package speaks another version of the contract.
    """
    parsed = BackendUrl.of(url)
    scheme = parsed.scheme
    backend: Backend | None = manager.hook.anarchon_backend(url=parsed)
    if backend is not None:
        return backend
    entry = installed_schemes().get(scheme)
    if entry is None:
        raise _missing(scheme)
    _load(scheme, entry, manager)
    backend = manager.hook.anarchon_backend(url=BackendUrl.of(parsed))
    if backend is None:
        msg = f"the package of '{scheme}://' ({_distribution(entry)}) made no backend for it: report this to its authors"
        raise BrokenBackend(msg)
    return backend


def choose_backend(url: str | None, backend: Backend | None, manager: pluggy.PluginManager) -> Backend:
    """Return the backend that a scheduler was given: the object, or the one of the URL or of `ANARCHON_URL`.

    Raises:
        ConfigurationError: neither, both, or something else was given; and what `create_backend` raises.
    """
    from anarchon.backend import Backend as BackendClass

    if backend is not None:
        if url is not None or not isinstance(backend, BackendClass):
            msg = "give a URL or a backend object, not both" if url is not None else f"{backend!r:.80} is no backend"
            raise ConfigurationError(msg)
        return backend
    url = url if url is not None else os.environ.get(URL_VARIABLE)
    if not url:
        msg = f"no store: write Scheduler('sqlite:///cron.db'), or set {URL_VARIABLE}"
        raise ConfigurationError(msg)
    return create_backend(url, manager)


def _load(scheme: str, entry: metadata.EntryPoint, manager: pluggy.PluginManager) -> None:
    from anarchon.backend import CONTRACT_VERSION

    try:
        module = entry.load()
    except ModuleNotFoundError as error:
        package = _distribution(entry)
        fix = f"Run: pip install --force-reinstall {package}"
        msg = f"'{scheme}://' is installed ({package}) but its module {error.name!r} is missing. {fix}"
        raise BrokenBackend(msg) from error
    except Exception as error:  # border: backend call - a third party's import may raise anything
        msg = f"'{scheme}://' is installed ({_distribution(entry)}) but cannot be imported: {redact(str(error))}"
        raise BrokenBackend(msg) from error
    theirs = getattr(module, "CONTRACT_VERSION", None)
    if theirs != CONTRACT_VERSION:
        msg = (
            f"'{scheme}://' ({_distribution(entry)}) speaks contract version {theirs}, this core speaks {CONTRACT_VERSION}. "
            f"Run: pip install --upgrade anarchon-core {_distribution(entry)}"
        )
        raise ContractMismatch(msg)
    if not manager.is_registered(module):
        manager.register(module)


def _missing(scheme: str) -> BackendNotInstalled | UnknownBackend:
    from difflib import get_close_matches

    package = _PACKAGES.get(scheme)
    if package is not None:
        return BackendNotInstalled(f"'{scheme}://' needs the package {package}. Run: pip install {package}")
    installed = sorted(installed_schemes())
    near = get_close_matches(scheme, [*_PACKAGES, *installed], 1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return UnknownBackend(f"no backend serves '{scheme}://'. {hint}Installed: {', '.join(installed) or 'none'}")


def _distribution(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value
