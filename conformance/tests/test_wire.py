"""Duels and plans through the TCP gate: a right store passes, a client that checks and then sets is caught."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from anarchon.backend import Backend
from anarchon.types import Claim, ClaimRequest
from anarchon.url import BackendUrl
from anarchon_conformance import RunOptions, Target, Tier, run
from anarchon_conformance.render import failure_text
from anarchon_conformance.wiring import Grain, grain_of


def _wire_store() -> ModuleType:
    """Load the store beside this file, whatever the import mode of the session."""
    name = "kit_wire_store"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("wire_store.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


wire = _wire_store()


class CheckThenSet(wire.WireBackend):  # type: ignore[misc, name-defined]
    """Asks whether the run is there; if not, clears the place and writes."""

    async def claim(self, request: ClaimRequest) -> Claim:
        if (await self.check([request.key]))[0] is None:
            await self.call("forget", request.key.job)
        claim: Claim = await super().claim(request)
        return claim


class Wired(Target):
    """A store in a process of its own; the clients' requests pass the gate one by one."""

    def __init__(self, url: str, kind: type[Backend] = wire.WireBackend) -> None:
        self.url, self.kind = url, kind

    def make(self, url: str) -> Backend:
        return self.kind.from_url(BackendUrl.of(url))


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of a store of this test's own."""
    process = wire.WireProcess(tmp_path)
    process.start()
    yield process.url
    process.end(signal.SIGKILL)


def test_a_right_store_passes_duels_and_plans_on_the_wire(url: str) -> None:
    target = Wired(url)
    assert grain_of(target) is Grain.WIRE
    report = run(target, RunOptions(seed=1), tiers=[Tier.DUELS, Tier.PLANS])
    assert report.passed, [failure_text(failure, report.target) for failure in report.failures]


@pytest.mark.parametrize("tier", [Tier.DUELS, Tier.PLANS])
def test_c01_check_then_set_on_the_wire_is_caught_and_replayed(url: str, tier: Tier) -> None:
    target = Wired(url, CheckThenSet)
    report = run(target, RunOptions(seed=1), tiers=[tier])
    failure = next(failure for failure in report.failures if failure.clause == "C1")
    assert failure.story[-1].strip() == "two tokens hold attempt 1"
    for _ in range(2):
        again = run(target, RunOptions(replay=failure.replay))
        assert "C1" in {item.clause for item in again.failures}
