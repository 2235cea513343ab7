"""The pytest plugin: tells failures of the kit as stories, and prints a verdict for every clause at the end.

It does nothing in a session that holds no suite of the kit.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import pytest

__all__ = ["pytest_runtest_makereport", "pytest_terminal_summary"]

_SEEN = "anarchon_conformance_outcomes"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how each test of a suite ended; a violation's text is its story, not a traceback."""
    report = yield
    target = _target_of(item)
    if target is None or not (report.when == "call" or report.failed):
        return report
    from anarchon_conformance.suite import Violation

    if call.excinfo is not None and isinstance(call.excinfo.value, Violation):
        report.longrepr = str(call.excinfo.value)
    outcomes: dict[str, list[tuple[str, str, str]]] = item.config.__dict__.setdefault(_SEEN, {})
    reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
    outcomes.setdefault(target, []).append((item.name, report.outcome, reason))
    return report


def _target_of(item: pytest.Item) -> str | None:
    """Return the name of the target that a test belongs to, or None for any other test."""
    loaded = sys.modules.get("anarchon_conformance.suite")
    if loaded is None or not isinstance(item, pytest.Function) or item.cls is None:
        return None
    return str(item.cls.target.name) if issubclass(item.cls, loaded.Suite) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a verdict for every clause of every target that a suite was run on."""
    outcomes = terminalreporter.config.__dict__.get(_SEEN)
    if not outcomes:
        return
    from anarchon.contract import CLAUSES

    from anarchon_conformance.suite import clause_number

    for target, tests in outcomes.items():
        terminalreporter.section(f"claim contract: {target}")
        for entry in CLAUSES:
            if not entry.number.startswith("C"):
                continue
            mine = [test for test in tests if clause_number(test[0]) == entry.number]
            terminalreporter.line(f"  {entry.number:<4} {entry.title:<24} {_verdict(mine)}")


def _verdict(tests: list[tuple[str, str, str]]) -> str:
    passed = sum(1 for _, outcome, _ in tests if outcome == "passed")
    failed = [name for name, outcome, _ in tests if outcome == "failed"]
    reasons = dict.fromkeys(reason.removeprefix("Skipped: ") for _, outcome, reason in tests if outcome == "skipped" and reason)
    if failed:
        return f"VIOLATED     {', '.join(failed)}"
    said = f"   [{'; '.join(reasons)}]" if reasons else ""
    return f"pass         {passed}{said}" if passed else f"not run     {said}"
