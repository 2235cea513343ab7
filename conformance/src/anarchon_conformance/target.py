"""What the kit must know of a backend: a URL, and by choice a few side doors that unlock more tests.

    class AcmeTarget(Target):
        url = "acme://localhost:7777"

A capability of operations is the class that the backend extends (`LeaseBackend`), a capability of limits is
`backend.limits`: the kit never asks for a name. Clients of one target share one store and are isolated from other tests by
random job names; nothing is flushed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pluggy
from anarchon import hookspecs
from anarchon.backend import Backend
from anarchon.clock import Clock, SystemClock
from anarchon.errors import AnarchonError
from anarchon.registry import create_backend
from anarchon.types import RunKey, RunStatus
from anarchon.url import BackendUrl

from anarchon_conformance.steps import StepGate

__all__ = ["OPTIONAL", "MissingMethod", "NotClaimed", "RawRun", "Target"]

OPTIONAL: tuple[str, ...] = (
    "raw_run",
    "restart_store",
    "kill_store",
    "connect_factory",
    "step_clock",
    "make_skewed",
)
"""The methods of `Target` that may be left out; what needs one is reported as *not run*, with its name."""


class MissingMethod(AnarchonError):
    """A test needs a `Target` method that this target does not have; reported as *not run*."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Target.{name} is missing")
        self.name = name


class NotClaimed(AnarchonError):
    """The backend's limits say that it does not promise this; reported as *not claimed*."""


@dataclass(frozen=True, slots=True)
class RawRun:
    """A run as it lies in the store, read past the backend. None = this store does not keep it."""

    status: RunStatus | None = None
    attempt: int | None = None
    token: str | None = None


class Target:
    """A backend under test. Set `url`; override the rest where the backend can offer it."""

    url: str = ""
    waivers: ClassVar[Mapping[str, str]] = {}
    """Clause number → reason. Strict: a waived clause that passes is a failure."""
    inner_steps: bool = False
    """Whether the backends of `make` mark their store steps with `anarchon_conformance.steps.store_step`."""
    clock: Clock = SystemClock()
    """The kit's clock for this target: durations and waits. A simulated store brings its own."""
    simulated: bool = False
    """Whether `clock` is the store's clock too and stands still unless the kit moves it: then instants are exact."""

    @property
    def name(self) -> str:
        """What reports call this target; without a password."""
        return str(BackendUrl.of(self.url)) if self.url else type(self).__name__

    def make(self, url: str) -> Backend:
        """Make an unopened client of the store at `url`: the target's own, or the address of a gate before it.

        Raises:
            ConfigurationError: the URL has an unknown scheme or a refused option.
        """
        return create_backend(url, self._manager)

    @functools.cached_property
    def _manager(self) -> pluggy.PluginManager:
        """What found the backend once makes every further client; a look through all that is installed takes a while."""
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        return manager

    def wire(self) -> tuple[str, int] | None:
        """Return host and port of a store that a TCP proxy may stand before, or None (no wire, TLS, several hosts)."""
        url = BackendUrl.of(self.url) if self.url else None
        if url is None or "," in url.netloc or url.host is None or url.port is None:
            return None
        return url.host, url.port

    def ungated(self, chunk: bytes) -> bool:
        """Return whether these bytes of a client are keep-alive traffic that passes even while requests are held."""
        del chunk
        return False

    def offers(self, name: str) -> bool:
        """Return whether an optional method is there."""
        assert name in OPTIONAL, name
        return getattr(type(self), name) is not getattr(Target, name)

    def require(self, name: str) -> None:
        """Refuse to go on without an optional method.

        Raises:
            MissingMethod: naming it.
        """
        if not self.offers(name):
            raise MissingMethod(name)

    # -- optional

    async def raw_run(self, key: RunKey) -> RawRun | None:
        """Read a run past the backend, or return None if the store holds no such run."""
        del key
        raise MissingMethod("raw_run")

    async def restart_store(self) -> None:
        """Stop the store in an orderly way and start it again with its data; return when it answers."""
        raise MissingMethod("restart_store")

    async def kill_store(self) -> None:
        """Kill the store like a power cut and start it again with its data; return when it answers."""
        raise MissingMethod("kill_store")

    def connect_factory(self, gate: StepGate) -> Backend:
        """Make an unopened client whose every statement runs within `async with gate.step("..."):` (no TCP)."""
        del gate
        raise MissingMethod("connect_factory")

    async def step_clock(self, delta_ms: int) -> None:
        """Step the store's clock; the kit steps it back afterwards."""
        del delta_ms
        raise MissingMethod("step_clock")

    def make_skewed(self, skew_ms: int) -> Backend:
        """Make an unopened client on a host whose own clock is off by `skew_ms` from the store's."""
        del skew_ms
        raise MissingMethod("make_skewed")
