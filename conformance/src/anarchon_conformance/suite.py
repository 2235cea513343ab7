"""The base of the clause suites: how a test says which clause it is, and how it is run with or without pytest.

A test is `async def test_c12_<behaviour>(self, arena: Arena) -> None`; the number in the name is its clause. It fails by
`assert` or by raising `Violation`; it raises `NotClaimed` (or calls `Target.require`) where the backend does not promise it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import ClassVar

from anarchon_conformance.target import Target

__all__ = ["Suite", "Violation", "clause_of", "tests_of"]

_NAME = re.compile(r"test_c(\d+)_")


class Violation(AssertionError):
    """A clause does not hold: one sentence, and the story line by line."""

    def __init__(self, sentence: str, *, clause: str = "", story: tuple[str, ...] = ()) -> None:
        super().__init__("\n".join((sentence, *story)))
        self.sentence, self.clause, self.story = sentence, clause, story


class Suite:
    """Clause tests of one target. Subclass `ClaimSuite` or `LeaseSuite` and set `target`."""

    target: ClassVar[Target]


def clause_of(name: str) -> str:
    """Return the clause that a test's name cites, for example C12 of `test_c12_one_winner`."""
    match = _NAME.match(name)
    assert match is not None, f"{name}: a clause test is called test_c<number>_<behaviour>"
    return f"C{match[1]}"


def tests_of(suite: type[Suite]) -> Iterator[tuple[str, str]]:
    """Yield clause and name of each test, in the order of the clauses, then of the source."""
    names = [name for name, _ in inspect.getmembers(suite, inspect.iscoroutinefunction) if _NAME.match(name)]
    names.sort(key=lambda name: (int(clause_of(name)[1:]), inspect.getsourcelines(getattr(suite, name))[1]))
    for name in names:
        yield clause_of(name), name
