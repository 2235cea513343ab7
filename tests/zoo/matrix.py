"""Which tier kills which mutant, and within how many runs; and the few duels that are enough to kill them all.

python -m tests.zoo.matrix      (from the root: computes both anew and writes them down)
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from anarchon_conformance.arena import Arena
from anarchon_conformance.checker import Judgement
from anarchon_conformance.duels import DuelRunner, Fought, full_set
from anarchon_conformance.duelset import EVERY, Before, Duel, Skew, interleavings, variants
from anarchon_conformance.plans import PlanRunner, corpus
from anarchon_conformance.report import RunOptions, Verdict
from anarchon_conformance.session import run_clauses
from anarchon_conformance.steps import Fault
from anarchon_conformance.wiring import wires

from .mutants import MUTANTS
from .store import SimBackend, SimFirst, ZooTarget

HERE = Path(__file__).parent
MATRIX = HERE / "kill_matrix.json"
DATA = HERE.parents[1] / "conformance" / "src" / "anarchon_conformance" / "data"
SHUFFLE = 20_261_201
DUELS_MAX = 4_000
KILLS_EACH = 2

Kind = type[SimBackend | SimFirst]


@dataclass(frozen=True, slots=True)
class Kills:
    """How one mutant dies: failing clause tests, and the number of the first duel and plan that fails (None = survives)."""

    clauses: int
    duels: int | None
    duel: str | None
    plans: int | None


async def first_duel(kind: Kind, duels: Iterable[Duel] | None = None) -> tuple[int, Duel] | None:
    """Return number and text of the first duel that a mutant fails; the order is shuffled with a fixed seed."""
    target = ZooTarget(kind)
    async with Arena(target) as arena, DuelRunner(arena) as runner:
        number = 0
        steps: dict[Duel, tuple[int, int]] = {}
        pairs = list(full_set(target, lease=arena.lease))
        random.Random(SHUFFLE).shuffle(pairs)
        for duel in pairs if duels is None else ():
            number += 1
            fought = (await runner.fight([duel]))[0]
            steps[duel] = fought.steps
            if _broken(fought):
                return number, duel
        every = [duel for pair in pairs for duel in variants(pair, steps.get(pair, (1, 1)), clock=True, skewed=arena.lease)]
        random.Random(SHUFFLE).shuffle(every)
        for duel in every[:DUELS_MAX] if duels is None else duels:
            number += 1
            if any(map(_broken, await _in_orders(runner, duel))):
                return number, duel
    return None


async def _in_orders(runner: DuelRunner, duel: Duel) -> list[Fought]:
    if not duel.every_order:
        return await runner.fight([duel])
    met = (await runner.fight([duel.ordered("")]))[0]
    return [met, *[(await runner.fight([duel.ordered(order)]))[0] for order in interleavings(*met.steps, 12)]]


def _broken(fought: Fought) -> bool:
    return fought.finding.judgement is not Judgement.OK


async def first_plan(kind: Kind) -> int | None:
    """Return the number of the first plan of the corpus that a mutant fails."""
    async with Arena(ZooTarget(kind)) as arena, wires(arena, 3) as opened:
        runner = PlanRunner(arena, opened)
        for number, plan in enumerate(corpus(), 1):
            if (await runner.play(plan)).finding.judgement is not Judgement.OK:
                return number
    return None


def failing_clauses(kind: Kind) -> int:
    """Return how many clause tests a mutant fails."""
    result = run_clauses(ZooTarget(kind), RunOptions(), lease=issubclass(kind, SimBackend))
    return sum(check.count for check in result.checks if check.verdict is Verdict.VIOLATED)


def kills_of(kind: Kind) -> Kills:
    """Return how one mutant dies."""
    found = asyncio.run(first_duel(kind))
    number, duel = found or (None, None)
    return Kills(failing_clauses(kind), number, None if duel is None else str(duel), asyncio.run(first_plan(kind)))


def read_matrix() -> dict[str, Kills]:
    """Return the committed matrix."""
    return {name: Kills(**row) for name, row in json.loads(MATRIX.read_text(encoding="utf-8")).items()}


def _general(duel: Duel) -> Duel:
    """Return the duel in every order of its steps if only the order makes it deadly."""
    moves = duel.moves
    plain = moves.fault is Fault.NONE and not moves.jump_ms and duel.skew in {Skew.NONE, Skew.SLOT}
    return duel.ordered(EVERY) if plain else duel


async def reduced(kinds: Sequence[Kind]) -> list[Duel]:
    """Return duels that kill each mutant twice over, if duels can: those that any store can be asked to fight first."""
    chosen: list[Duel] = []
    for kind in kinds:
        killers = await _killers(kind, chosen)
        pairs = list(full_set(ZooTarget(kind), lease=issubclass(kind, SimBackend)))
        random.Random(SHUFFLE).shuffle(pairs)
        meetings = [pair.ordered(EVERY) for pair in pairs if pair.before is not Before.LEASE_END]
        meetings += [replace(pair, skew=Skew.SLOT) for pair in meetings if pair.right in {"claim", "check"}]
        while len(killers) < KILLS_EACH:
            found = await first_duel(kind, [duel for duel in meetings if duel not in chosen])
            found = found or (await first_duel(kind) if not killers else None)
            if found is None or _general(found[1]) in chosen:
                break
            killers.append(_general(found[1]))
            chosen.append(_general(found[1]))
    return chosen


async def _killers(kind: Kind, duels: Sequence[Duel]) -> list[Duel]:
    return [duel for duel in duels if await first_duel(kind, [duel]) is not None]


def main(names: Sequence[str]) -> None:
    """Compute matrix and reduced sets anew, or some rows of the matrix."""
    known = read_matrix() if names else {}
    for kind in MUTANTS:
        if not names or kind.__name__ in names:
            known[kind.__name__] = kills_of(kind)
            print(f"{kind.__name__:32} {known[kind.__name__]}", flush=True)
    rows = {kind.__name__: asdict(known[kind.__name__]) for kind in MUTANTS}
    MATRIX.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for name, base in () if names else (("lease", SimBackend), ("claim", SimFirst)):
        duels = asyncio.run(reduced([kind for kind in MUTANTS if issubclass(kind, base)]))
        head = "# Computed by tests/zoo/matrix.py: these duels kill every mutant of the zoo that duels can kill.\n"
        (DATA / f"reduced-{name}.txt").write_text(head + "".join(f"{duel}\n" for duel in duels), encoding="utf-8")
        print(name, len(duels))


if __name__ == "__main__":
    main(sys.argv[1:])
