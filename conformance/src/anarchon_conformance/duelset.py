"""Duels as data: ten states of a run, pairs of operations, interleavings, at most one fault, one clock jump, one skew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from math import comb

from anarchon_conformance.driver import Moves
from anarchon_conformance.steps import Fault

__all__ = ["EVERY", "Act", "Before", "Duel", "Skew", "base_duels", "interleavings", "variants"]

JUMP_MS = 3_600_000
SCHEDULES_MAX = 20
"""The most interleavings of one pair; beyond it they are taken at even distances."""


EVERY = "*"

FAULTY_ORDERS = 6
"""In how many orders of a pair's steps each single fault is tried; two steps a side have no more than these."""


class Before(StrEnum):
    """The state of the run when the two clients meet."""

    FREE = "free"
    MINE = "mine-alive"
    OTHERS = "others-alive"
    EXPIRED = "expired-run"
    LEASE_END = "at-lease-end"
    LAST = "last-attempt-expired"
    FINISHED = "finished"
    RELEASED = "released"
    TAKEN = "taken-over"
    OVERLAP = "overlap"

    @property
    def lease_only(self) -> bool:
        """Whether only a lease backend can be in it."""
        return self not in {Before.FREE, Before.MINE, Before.OTHERS, Before.FINISHED}


class Act(StrEnum):
    """What a client does in a duel. Except for `claim`, `early` and `late` it uses the token that it holds or held."""

    CLAIM = "claim"
    AGAIN = "again"
    RENEW = "renew"
    FINISH = "finish"
    RELEASE = "release"
    DELAY = "release-later"
    CHECK = "check"
    PAUSE = "pause"
    PAUSE_LOOK = "pause-look"
    """Pause the job, then look at the run: what the look saw came after the pause."""
    EARLY = "early"
    LATE = "late"

    @property
    def lease_only(self) -> bool:
        """Whether only a lease backend knows it."""
        return self not in {Act.CLAIM, Act.AGAIN, Act.FINISH, Act.EARLY, Act.LATE}

    @property
    def writes(self) -> bool:
        """Whether losing it could matter."""
        return self is not Act.CHECK


class Skew(StrEnum):
    """How the two clients differ besides."""

    NONE = ""
    AHEAD = "ahead"
    BEHIND = "behind"
    SLOT = "other-slot"


_HOLDERS: dict[Before, str] = {
    Before.MINE: "A",
    Before.EXPIRED: "A",
    Before.LEASE_END: "A",
    Before.LAST: "A",
    Before.FINISHED: "A",
    Before.RELEASED: "A",
    Before.TAKEN: "AB",
}

_PAUSED = frozenset({Before.FREE, Before.MINE, Before.EXPIRED, Before.RELEASED, Before.OVERLAP})
"""Where a pause could make a difference: it stops first claims, and nothing else (C10)."""

_TEXT = re.compile(
    r"duel:(?P<before>[a-z-]+)/(?P<left>[a-z-]+)/(?P<right>[a-z-]+)/(?P<schedule>[01]*|\*)"
    r"(/(?P<fault>request-lost|reply-lost|cancelled)@(?P<who>[AB])(?P<step>\d+))?"
    r"(/jump(?P<jump>[+-]\d+)@(?P<at>\d+))?"
    r"(/(?P<skew>ahead|behind|other-slot))?"
)


@dataclass(frozen=True, slots=True)
class Duel:
    """One duel; its text is its replay string."""

    before: Before
    left: Act
    right: Act
    moves: Moves
    skew: Skew = Skew.NONE

    def __str__(self) -> str:
        moves = self.moves
        text = f"duel:{self.before}/{self.left}/{self.right}/{moves.schedule}"
        if moves.fault is not Fault.NONE:
            text += f"/{moves.fault.replace(' ', '-')}@{'AB'[moves.fault_client]}{moves.fault_step}"
        if moves.jump_ms:
            text += f"/jump{moves.jump_ms:+d}@{moves.jump_at}"
        return text + (f"/{self.skew}" if self.skew else "")

    @classmethod
    def parse(cls, text: str) -> Duel:
        """Read what `str` wrote.

        Raises:
            ValueError: it is no duel.
        """
        match = _TEXT.fullmatch(text)
        try:
            if match is None:
                raise ValueError
            return cls(Before(match["before"]), Act(match["left"]), Act(match["right"]), _moves(match), Skew(match["skew"] or ""))
        except ValueError:
            msg = f"{text!r:.200} is no duel: copy the replay string of a failure as it stands"
            raise ValueError(msg) from None

    @property
    def every_order(self) -> bool:
        """Whether the duel stands for itself in every order of its steps (`*`); they are counted at its first meeting."""
        return self.moves.schedule == EVERY

    def ordered(self, schedule: str) -> Duel:
        """Return the duel with its steps in this order."""
        return replace(self, moves=replace(self.moves, schedule=schedule))

    @property
    def title(self) -> str:
        """What a report calls it."""
        moves = self.moves
        extras = [f"schedule {' '.join('AB'[int(symbol)] for symbol in moves.schedule)}"]
        if moves.fault is not Fault.NONE:
            extras.append(f"{moves.fault} at step {moves.fault_step + 1} of {'AB'[moves.fault_client]}")
        if moves.jump_ms:
            extras.append(f"the store's clock steps by {moves.jump_ms:+d} ms")
        if self.skew in {Skew.AHEAD, Skew.BEHIND}:
            extras.append(f"the clock of A's host is {self.skew}")
        if self.skew is Skew.SLOT:
            extras.append("B on another slot")
        return f"duel {self.before}: {self.left} x {self.right}, {', '.join(extras)}"


def _moves(match: re.Match[str]) -> Moves:
    return Moves(
        match["schedule"],
        Fault((match["fault"] or "none").replace("-", " ")),
        fault_client="AB".index(match["who"] or "A"),
        fault_step=int(match["step"] or 0),
        jump_ms=int(match["jump"] or 0),
        jump_at=int(match["at"] or 0),
    )


def base_duels(*, lease: bool, exact: bool) -> Iterator[Duel]:
    """Yield every state with every pair of operations; `exact` = the instant of a lease end can be hit."""
    for before in Before:
        if (before.lease_only and not lease) or (before is Before.LEASE_END and not exact):
            continue
        for left in _acts(before, "A", lease=lease):
            for right in _acts(before, "B", lease=lease):
                timed = {left, right} & {Act.EARLY, Act.LATE}
                if timed and (before is not Before.FREE or Act.CLAIM not in {left, right} | (timed if left == right else set())):
                    continue
                if {left, right} <= {Act.CHECK, Act.PAUSE, Act.PAUSE_LOOK}:
                    continue
                yield Duel(before, left, right, Moves(""))


def _acts(before: Before, who: str, *, lease: bool) -> Iterator[Act]:
    for act in Act:
        if act.lease_only and not lease:
            continue
        if act in {Act.PAUSE, Act.PAUSE_LOOK} and (before not in _PAUSED or (act is Act.PAUSE) == (who == "B")):
            continue
        if act is Act.AGAIN and who not in _HOLDERS.get(before, ""):
            continue
        if act in {Act.RENEW, Act.FINISH, Act.RELEASE, Act.DELAY} and before in {Before.FREE, Before.OVERLAP}:
            continue
        yield act


def interleavings(left: int, right: int, most: int = SCHEDULES_MAX) -> list[str]:
    """Return the orders of `left` steps of A and `right` steps of B.

    If there are more than `most`: one after the other and turns about, then those in which one side is interrupted once,
    because they catch most, then others. Where not all of a kind fit, they are taken at even distances.
    """
    count = comb(left + right, left)
    if count <= most:
        return [_interleaving(left, right, rank) for rank in range(count)]
    found = ["0" * left + "1" * right, "1" * right + "0" * left]
    found.append("01" * min(left, right) + "0" * (left - right) + "1" * (right - left))
    once = [("0" * first + "1" * right + "0" * (left - first)) for first in range(1, left)]
    once += ["1" * first + "0" * left + "1" * (right - first) for first in range(1, right)]
    found += [once[place] for place in _spread(len(once), most * 3 // 4 - len(found))]
    found += [_interleaving(left, right, rank) for rank in _spread(count, most - len(found))]
    return list(dict.fromkeys(found))


def _spread(count: int, most: int) -> list[int]:
    """Return all of `count` numbers, or `most` of them at even distances."""
    return [(2 * place + 1) * count // (2 * most) for place in range(most)] if count > most else list(range(count))


def _interleaving(left: int, right: int, rank: int) -> str:
    """Return the order of this rank, A's steps first; found without the others, of which there may be millions."""
    order = ""
    while left and right:
        if rank < (first := comb(left + right - 1, right)):
            order, left = order + "0", left - 1
        else:
            order, right, rank = order + "1", right - 1, rank - first
    return order + "0" * left + "1" * right


def variants(duel: Duel, steps: tuple[int, int], *, clock: bool, skewed: bool, cancel: bool = True) -> Iterator[Duel]:
    """Yield a pair's duels: each interleaving, and on it one fault, or one clock jump, or one skew."""
    schedules = interleavings(*steps)
    faults = (Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.CANCELLED)
    for number, schedule in enumerate(schedules):
        plain = replace(duel, moves=Moves(schedule))
        yield plain
        if number < FAULTY_ORDERS:
            yield from _faulty(plain, steps, faults if cancel else faults[:2])
        if duel.right in {Act.CLAIM, Act.CHECK} and duel.before is not Before.LEASE_END:
            yield replace(plain, skew=Skew.SLOT)
        if schedule != schedules[0]:  # clocks do not care who came first
            continue
        if clock and {duel.left, duel.right} & {Act.CLAIM, Act.RENEW, Act.FINISH}:
            for at in (0, max(1, len(schedule) // 2)):
                for jump_ms in (JUMP_MS, -JUMP_MS):
                    yield replace(plain, moves=Moves(schedule, jump_ms=jump_ms, jump_at=at))
        if skewed and duel.left is not Act.CHECK:
            yield replace(plain, skew=Skew.AHEAD)
            yield replace(plain, skew=Skew.BEHIND)


def _faulty(plain: Duel, steps: tuple[int, int], faults: tuple[Fault, ...]) -> Iterator[Duel]:
    for client, act in enumerate((plain.left, plain.right)):
        if not act.writes:
            continue
        for number in range(steps[client]):
            for fault in faults:
                yield replace(plain, moves=Moves(plain.moves.schedule, fault, client, fault_step=number))
