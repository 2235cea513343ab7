"""Plans as data: a list of steps, each of them always executable, so that deleting steps stays valid; and their text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from hypothesis import strategies

__all__ = ["CLIENTS", "Mode", "Plan", "PlanStep", "Verb", "plans"]

CLIENTS = "ABC"
STEPS_MAX = 14


class Verb(StrEnum):
    """What a step does."""

    CLAIM = "claim"
    AGAIN = "again"
    RENEW = "renew"
    FINISH = "finish"
    RELEASE = "release"
    DELAY = "release-later"
    CHECK = "check"
    PAUSE = "pause"
    RESUME = "resume"
    GO = "go"
    """Let the client's held call come to its end."""
    WAIT = "wait"
    """Wait until every short lease is over."""
    FORWARD = "clock-forward"
    BACK = "clock-back"

    @property
    def lease_only(self) -> bool:
        """Whether only a lease backend knows it."""
        return self in {Verb.RENEW, Verb.RELEASE, Verb.DELAY, Verb.CHECK, Verb.PAUSE, Verb.RESUME}


class Mode(StrEnum):
    """How a call is made."""

    NOW = "now"
    HOLD = "hold"
    """Held before its first store step until the client's next step."""
    HOLD_1 = "hold1"
    """Held after one store step."""
    LOST_REQUEST = "lost-request"
    LOST_REPLY = "lost-reply"
    CANCELLED = "cancelled"


_FLAGS = {"s": "short lease", "o": "one attempt", "x": "overlap allowed", "f": "may forget old runs"}
_STEP = re.compile(r"(?P<who>[ABC])\.(?P<verb>[a-z-]+)\.(?P<slot>[0-4])(\.(?P<flags>[sofx]+))?(~(?P<mode>[a-z0-9-]+))?")


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One step. `slot` 0-2 are due, 3 is early, 4 is late; `flags` are options of a claim, one letter each."""

    client: int
    verb: Verb
    slot: int = 0
    flags: str = ""
    mode: Mode = Mode.NOW

    def __str__(self) -> str:
        flags = f".{self.flags}" if self.flags else ""
        mode = "" if self.mode is Mode.NOW else f"~{self.mode}"
        return f"{CLIENTS[self.client]}.{self.verb}.{self.slot}{flags}{mode}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole plan; its text is its replay string."""

    steps: tuple[PlanStep, ...]

    def __str__(self) -> str:
        return "plan:" + "/".join(map(str, self.steps))

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Read what `str` wrote.

        Raises:
            ValueError: it is no plan.
        """
        head, _, rest = text.partition(":")
        matches = [_STEP.fullmatch(part) for part in rest.split("/")]
        try:
            if head != "plan" or None in matches:
                raise ValueError
            return cls(tuple(_step(match) for match in matches if match is not None))
        except ValueError:
            msg = f"{text!r:.200} is no plan: copy the replay string of a failure as it stands"
            raise ValueError(msg) from None


def _step(match: re.Match[str]) -> PlanStep:
    return PlanStep(
        CLIENTS.index(match["who"]),
        Verb(match["verb"]),
        int(match["slot"]),
        flags=match["flags"] or "",
        mode=Mode(match["mode"] or "now"),
    )


_WEIGHTS: tuple[tuple[Verb, int], ...] = (
    (Verb.CLAIM, 10),
    (Verb.WAIT, 3),
    (Verb.FINISH, 3),
    (Verb.AGAIN, 2),
    (Verb.RENEW, 2),
    (Verb.RELEASE, 2),
    (Verb.GO, 3),
    (Verb.CHECK, 1),
    (Verb.DELAY, 1),
    (Verb.PAUSE, 1),
    (Verb.RESUME, 1),
    (Verb.FORWARD, 1),
    (Verb.BACK, 1),
)
_MODES = (Mode.NOW,) * 4 + (Mode.HOLD, Mode.HOLD_1, Mode.HOLD_1, Mode.HOLD_1, Mode.LOST_REPLY, Mode.LOST_REQUEST, Mode.CANCELLED)
_SLOTS = (0,) * 10 + (1, 1, 1, 2, 3, 4)
_OPTIONS = ("", "", "s", "s", "so", "x", "sx", "xf", "sxf", "o")


def plans(*, lease: bool, clock: bool) -> strategies.SearchStrategy[Plan]:
    """Return the strategy that draws whole plans, before any store is touched."""
    verbs = [
        verb
        for verb, weight in _WEIGHTS
        if (lease or not verb.lease_only) and (clock or verb not in {Verb.FORWARD, Verb.BACK})
        for _ in range(weight)
    ]
    step = strategies.builds(
        PlanStep,
        strategies.integers(0, len(CLIENTS) - 1),
        strategies.sampled_from(verbs),
        strategies.sampled_from(_SLOTS),
        flags=strategies.sampled_from(_OPTIONS),
        mode=strategies.sampled_from(_MODES),
    )
    return strategies.lists(step, min_size=3, max_size=STEPS_MAX).map(_plain)


def _plain(steps: list[PlanStep]) -> Plan:
    """Drop what a verb does not use, so that two plans that do the same read the same."""
    return Plan(tuple(_used(step) for step in steps))


def _used(step: PlanStep) -> PlanStep:
    if step.verb in {Verb.WAIT, Verb.FORWARD, Verb.BACK}:
        return PlanStep(0, step.verb)
    if step.verb is Verb.GO:
        return PlanStep(step.client, step.verb)
    if step.verb in {Verb.CLAIM, Verb.AGAIN}:
        return step
    slot = 0 if step.verb in {Verb.PAUSE, Verb.RESUME} else step.slot
    return PlanStep(step.client, step.verb, slot, flags="", mode=step.mode)
