"""Schedulers broken on purpose: the simulation must find each within a hundred scenarios of fixed seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from anarchon.engine import Engine
from anarchon.errors import BackendError
from anarchon.notes import Notes
from anarchon.testing import simulate
from anarchon.types import Claim, Outcome, RunKey, new_token
from fleets import AFTER, BEFORE, random_plans

SCENARIOS_MOST = 100
Mutate = Callable[[Engine], None]


def fires_when_early(engine: Engine) -> None:
    """Takes EARLY for a win: an instance ahead of the store starts before the slot."""
    claim = engine.store.claim

    async def mutant(request: Any) -> Claim:
        answer = await claim(request)
        return replace(answer, outcome=Outcome.WON, attempt=1) if answer.outcome is Outcome.EARLY else answer

    engine.store.claim = mutant  # type: ignore[method-assign]


def new_token_on_retry(engine: Engine) -> None:
    """Makes a new token when it asks again: its own lost win looks like somebody else's."""
    claim = engine.store.claim
    tokens: dict[str, str] = {}

    async def mutant(request: Any) -> Claim:
        again = request.token in tokens
        tokens[request.token] = new_token() if again else request.token
        return await claim(replace(request, token=tokens[request.token]))

    engine.store.claim = mutant  # type: ignore[method-assign]


def no_local_deadline(engine: Engine) -> None:
    """Believes in a lease until the store denies it."""
    engine._keeper._judge = lambda *, late_ms: None  # type: ignore[method-assign]


def heartbeat_stops_under_load(engine: Engine) -> None:
    """Renews only while a single run is held."""
    renew = engine._keeper._renew_due

    def mutant(now_ms: float) -> None:
        if len(engine._keeper._held) < 2:
            renew(now_ms)

    engine._keeper._renew_due = mutant  # type: ignore[method-assign]


def forgets_backups_after_an_error(engine: Engine) -> None:
    """Drops what it watches when the store fails, and does not look again."""
    no_recovery_at_start(engine)
    look = engine.watch._look
    check = engine.store.check

    async def mutant(batch: Any) -> None:
        failed = False

        async def noticing(keys: Any) -> Any:
            nonlocal failed
            try:
                return await check(keys)
            except BackendError:
                failed = True
                raise

        engine.store.check = noticing  # type: ignore[method-assign]
        await look(batch)
        if failed:
            for item in batch:
                engine.watch.drop(item.key)

    engine.watch._look = mutant  # type: ignore[method-assign]


def period_added_instead_of_reanchored(engine: Engine) -> None:
    """Takes now plus the period for the next slot, so that lateness adds up."""
    next_slot = engine._ticker._next

    def mutant(group: Any, after_ms: int) -> int | None:
        slot_ms = next_slot(group, after_ms)
        if slot_ms is None:
            return None
        period_ms = slot_ms - after_ms
        now_ms = int(engine.store.time.now_ms())
        return max(slot_ms, now_ms + period_ms) if engine.ready.is_set() else slot_ms

    engine._ticker._next = mutant  # type: ignore[method-assign]


def catch_up_newest_first(engine: Engine) -> None:
    """Runs the newest missed slot first."""
    decide = engine.sweeper._decide

    async def mutant(job: Any, view: Any) -> Any:
        plan = await decide(job, view)
        return replace(plan, claim=tuple(reversed(plan.claim)))

    engine.sweeper._decide = mutant  # type: ignore[method-assign]


def never_watches(engine: Engine) -> None:
    """Takes a run that somebody holds for done."""
    engine.watch.add = lambda job, key, left_ms: None  # type: ignore[method-assign]


def writes_no_notes(engine: Engine) -> None:
    """Skips a refused slot in silence."""

    async def mutant(job: Any, key: RunKey, reason: str) -> None:
        del job, key, reason

    engine.notes.skipped = mutant  # type: ignore[method-assign]


def no_recovery_at_start(engine: Engine) -> None:
    """Looks for nobody's unfinished runs."""

    async def mutant(names: Any) -> None:
        del names

    engine.watch.recover = mutant  # type: ignore[method-assign]


def runs_on_a_guess(engine: Engine) -> None:
    """Takes an unknown answer for a win."""
    claim = engine.store.claim

    async def mutant(request: Any) -> Claim:
        try:
            return await claim(request)
        except BackendError:
            return Claim(Outcome.WON, 1)

    engine.store.claim = mutant  # type: ignore[method-assign]


def keeps_its_runs_when_stopped(engine: Engine) -> None:
    """Ends without handing over."""

    async def mutant(grant: Any, **why: Any) -> None:
        del grant, why

    engine.attempts._release = mutant  # type: ignore[method-assign]


def every_instance_tells(engine: Engine) -> None:
    """Tells about a skipped slot without winning its note."""
    notes = engine.notes

    async def mutant(job: Any, key: RunKey, reason: str) -> None:
        await Notes.skipped(notes, job, key, reason)
        notes._context.tell("slot_skipped", key=key, reason=reason)

    notes.skipped = mutant  # type: ignore[method-assign]


def drops_slots_while_busy(engine: Engine) -> None:
    """Forgets the slots that come due while three runs are held."""
    slot = engine.runner.slot

    async def mutant(due: Any) -> None:
        if len(engine.attempts) < 3:
            await slot(due)

    engine.runner.slot = mutant  # type: ignore[method-assign]


MUTANTS: tuple[Mutate, ...] = (
    fires_when_early,
    new_token_on_retry,
    no_local_deadline,
    heartbeat_stops_under_load,
    forgets_backups_after_an_error,
    period_added_instead_of_reanchored,
    catch_up_newest_first,
    never_watches,
    writes_no_notes,
    no_recovery_at_start,
    runs_on_a_guess,
    keeps_its_runs_when_stopped,
    every_instance_tells,
    drops_slots_while_busy,
)


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_simulation_finds_a_broken_scheduler(mutate: Mutate) -> None:
    def make(*args: Any, **more: Any) -> Engine:
        engine = Engine(*args, **more)
        mutate(engine)
        return engine

    for number, plan in enumerate(random_plans(0, SCENARIOS_MOST), 1):
        report = simulate(BEFORE, after_deploy=AFTER, plan=plan, make_engine=make)
        if report.violations:
            print(f"{mutate.__name__}: scenario {number}: {report.violations[0]}")
            return
    pytest.fail(f"{mutate.__name__} survived {SCENARIOS_MOST} scenarios")


def test_the_same_scenarios_find_nothing_in_the_real_scheduler() -> None:
    for plan in random_plans(0, SCENARIOS_MOST // 2):
        simulate(BEFORE, after_deploy=AFTER, plan=plan).raise_if_violated()
