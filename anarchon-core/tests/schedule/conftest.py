"""Helpers of the schedule tests as fixtures, so that no test depends on how the tests are imported."""

from __future__ import annotations

import importlib.util
import json
import sys
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent


def load(name: str) -> ModuleType:
    known = f"anarchon_schedule_tests_{name}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, HERE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[known] = module
        spec.loader.exec_module(module)
    return sys.modules[known]


@pytest.fixture(scope="session")
def oracle() -> ModuleType:
    return load("oracle")


@pytest.fixture(scope="session")
def sets() -> ModuleType:
    return load("sets")


class Slots:
    """Turn ISO text into milliseconds and slots into ISO text."""

    @staticmethod
    def ms(text: str) -> int:
        moment = datetime.fromisoformat(text)
        assert moment.tzinfo is not None
        return round(moment.timestamp() * 1000)

    @staticmethod
    def iso(slot_ms: int | None) -> str | None:
        if slot_ms is None:
            return None
        assert slot_ms % 1000 == 0
        return datetime.fromtimestamp(slot_ms // 1000, tz=datetime.fromisoformat("2000-01-01T00:00Z").tzinfo).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )

    def after(self, schedule: Any, text: str, count: int) -> list[str | None]:
        """Return the next slots after an instant as text."""
        found: list[str | None] = []
        t_ms: int | None = self.ms(text)
        for _ in range(count):
            if t_ms is None:
                break
            t_ms = schedule.next_after(t_ms)
            found.append(self.iso(t_ms))
        return found

    def between(self, schedule: Any, begin: str, end: str) -> list[str | None]:
        """Return the slots with begin <= slot < end."""
        found: list[str | None] = []
        t_ms, limit = schedule.next_after(self.ms(begin) - 1), 10_000
        while t_ms is not None and t_ms < self.ms(end) and len(found) < limit:
            found.append(self.iso(t_ms))
            t_ms = schedule.next_after(t_ms)
        return found


@pytest.fixture(scope="session")
def slots() -> Slots:
    return Slots()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cron_case" in metafunc.fixturenames:
        cases = json.loads((HERE / "cron_cases.json").read_text("utf-8"))
        metafunc.parametrize("cron_case", cases, ids=[f"{c['expr']} {c['tz']} {c['note']}" for c in cases])
