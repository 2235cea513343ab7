"""The base of the clause suites: how a test says which clause it is, and how it is run with or without pytest.

A test is `async def test_c12_<behaviour>(self, arena: Arena) -> None`; the number in the name is its clause. It fails by
`assert` or by raising `Violation`; it raises `NotClaimed` (or calls `Target.require`) where the backend does not promise it.
A subclass turns each of them into a plain function, so that pytest needs no plugin to run it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ClassVar

from anarchon_conformance.arena import Arena
from anarchon_conformance.report import Check, Failure, RunOptions, Tier, TierResult, Verdict
from anarchon_conformance.target import MissingMethod, NotClaimed, Target

__all__ = ["TEST_MS", "Suite", "Violation", "clause_number", "clause_of", "run_suite", "run_test", "tests_of"]

TEST_MS = 60_000
"""The most that one clause test may take, waits for lease ends included (C23)."""

_NAME = re.compile(r"test_c(\d+)_")


class Violation(AssertionError):
    """A clause does not hold: one sentence, and the story line by line."""

    def __init__(self, sentence: str, *, clause: str = "", story: tuple[str, ...] = ()) -> None:
        super().__init__("\n".join((sentence, *story)))
        self.sentence, self.clause, self.story = sentence, clause, story


class Suite:
    """Clause tests of one target. Subclass `ClaimSuite` or `LeaseSuite` and set `target`."""

    target: ClassVar[Target]

    def test_duels(self) -> None:
        """Fight the duels of the default profile (`anarchon_conformance.duels`)."""
        from anarchon_conformance.duels import run_duels

        _require_passed(self.target, run_duels(self.target, RunOptions()))

    def test_plans(self) -> None:
        """Play the plans of the default profile, freshly drawn (`anarchon_conformance.plans`)."""
        from anarchon_conformance.plans import run_plans

        _require_passed(self.target, run_plans(self.target, RunOptions(secrets.randbelow(2**32))))

    def test_waivers_are_needed(self) -> None:
        """Run the tests of each waived clause: where all pass, the waiver must go."""
        for waived in self.target.waivers:
            tests = [name for clause, name in tests_of(type(self)) if clause == waived]
            if tests and not any(_fails(self, name) for name in tests):
                msg = f"{waived} is waived but not violated: remove the waiver"
                raise Violation(msg, clause=waived)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, value in list(vars(cls).items()):
            if _NAME.match(name) and inspect.iscoroutinefunction(value):
                setattr(cls, name, _plain(value))


def _plain(test: Callable[[Any, Arena], Awaitable[None]]) -> Callable[[Any], None]:
    """Return a function for pytest that runs an asynchronous test in an arena of its own."""

    @functools.wraps(test)
    def run(self: Suite) -> None:
        import pytest

        name = test.__name__
        waiver = self.target.waivers.get(clause_of(name))
        try:
            asyncio.run(run_test(self, name))
        except MissingMethod as reason:
            pytest.skip(f"not run: {reason}")
        except NotClaimed as reason:
            pytest.skip(f"not claimed: {reason}")
        except AssertionError:
            if waiver is None:
                raise
            pytest.xfail(f"waived: {waiver}")

    only_self = inspect.Signature([inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)])
    run.__signature__ = only_self  # type: ignore[attr-defined]  # what pytest reads for fixtures
    return run


def _fails(suite: Suite, name: str) -> bool:
    try:
        asyncio.run(run_test(suite, name))
    except (MissingMethod, NotClaimed):
        return False
    except AssertionError:
        return True
    return False


def _require_passed(target: Target, result: TierResult) -> None:
    """Fail with the first story of a tier, or because the tier was vacuous.

    Raises:
        Violation: telling it.
    """
    from anarchon_conformance.render import failure_text

    for check in result.checks:
        if check.failure is not None and check.clause not in target.waivers:
            text = failure_text(check.failure, target.name).splitlines()
            raise Violation(text[0], clause=check.clause, story=tuple(text[1:]))
    if result.vacuous:
        msg = f"the tier {result.tier} was vacuous: never seen: {', '.join(result.vacuous)}"
        raise Violation(msg)


def clause_of(name: str) -> str:
    """Return the clause that a test's name cites, for example C1 of `test_c01_one_winner`."""
    match = _NAME.match(name)
    assert match is not None, f"{name}: a clause test is called test_c<number>_<behaviour>"
    return f"C{int(match[1])}"


def clause_number(name: str) -> str | None:
    """Return the clause that a name cites, or None for a test that cites none."""
    return clause_of(name) if _NAME.match(name) else None


def tests_of(suite: type[Suite]) -> Iterator[tuple[str, str]]:
    """Yield clause and name of each test, in the order of the clauses, then of the names."""
    names = [name for name in dir(suite) if _NAME.match(name)]
    for name in sorted(names, key=lambda name: (int(clause_of(name)[1:]), name)):
        yield clause_of(name), name


async def run_test(suite: Suite, name: str) -> None:
    """Run one test in an arena of its own.

    Raises:
        Violation: it took longer than `TEST_MS` (C23); a failing test raises what it raises.
    """
    test = inspect.unwrap(getattr(type(suite), name))
    try:
        async with asyncio.timeout(TEST_MS / 1000) as limit, Arena(suite.target) as arena:
            await test(suite, arena)
    except TimeoutError:
        if not limit.expired():
            raise
        msg = f"{name} did not end within {TEST_MS / 1000:g} s"
        raise Violation(msg, clause="C23") from None


async def run_suite(suite: Suite, options: RunOptions) -> TierResult:
    """Run every test of a suite, or the one that `options.replay` names, and return what was found."""
    clock = suite.target.clock
    start_ms = clock.monotonic_ms()
    wanted = [(clause, name) for clause, name in tests_of(type(suite)) if options.replay in {None, name}]
    checks = tuple([await _check(suite, clause, name) for clause, name in wanted])
    return TierResult(Tier.CLAUSES, checks, elapsed_ms=clock.monotonic_ms() - start_ms)


async def _check(suite: Suite, clause: str, name: str) -> Check:
    try:
        await run_test(suite, name)
    except MissingMethod as reason:
        return Check(clause, Tier.CLAUSES, Verdict.NOT_RUN, detail=str(reason))
    except NotClaimed as reason:
        return Check(clause, Tier.CLAUSES, Verdict.NOT_CLAIMED, detail=str(reason))
    except Exception as error:  # border: backend call - a store under test may raise anything
        story = getattr(error, "story", ())
        told = getattr(error, "clause", "") or clause
        head = str(getattr(error, "sentence", "")) or f"{type(error).__name__}: {error}".removeprefix("AssertionError: ")
        failure = Failure(told, name, (*head.splitlines(), *story), f"clauses:{name}")
        return Check(told, Tier.CLAUSES, Verdict.VIOLATED, detail=head.partition("\n")[0], failure=failure)
    return Check(clause, Tier.CLAUSES, Verdict.PASS)
