"""What the journals of a fleet must not show: pure functions from events to findings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from anarchon.types import Outcome, RunRecord, RunStatus

from anarchon_conformance.chaos.journal import Event, What
from anarchon_conformance.chaos.nemesis import Trouble
from anarchon_conformance.report import Mark

__all__ = ["Evidence", "Finding", "cases_of", "findings", "marks_of"]

ROUNDING_MS = 5.0
"""Lease ends are whole milliseconds on the store's clock."""
NEAR_MS = 800.0
"""A slot with no run is explained by a fault that was under way within this time after it."""
LINES_MAX = 60


@dataclass(frozen=True, slots=True)
class Finding:
    """A clause that does not hold, for one slot (0 = for none), and what the journals say about it."""

    clause: str
    sentence: str
    slot_ms: int = 0
    story: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything about one run of a fleet. `asked` is what a fresh client was told about each acknowledged win at the end.

    `unanswered` are the questions of the end that the store did not answer.
    """

    events: Sequence[Event]
    troubles: Sequence[Trouble] = ()
    slots: Sequence[int] = ()
    asked: dict[int, Outcome] = field(default_factory=dict)
    records: Sequence[RunRecord] = ()
    unanswered: Sequence[Finding] = ()
    lease_ms: int = 600
    lease: bool = True
    resolves_unknown: bool = True
    """Whether a claim without an answer is asked again; where it cannot be, its slot is skipped (C5)."""

    def of(self, *kinds: What) -> list[Event]:
        """Return the events of some kinds."""
        return [event for event in self.events if event.what in kinds]


_WINS = (What.WON, What.STARTED)
_ENDS = (What.FINISHED, What.RECORDED)


def findings(evidence: Evidence) -> list[Finding]:
    """Return every violation, with its story."""
    rules = (_one_winner, _accounted, _remembered, _no_gaps, _live_leases, _stale_ends, _final, _recorded, _no_hangs)
    found = [*evidence.unanswered, *(finding for rule in rules for finding in rule(evidence))]
    return [Finding(item.clause, item.sentence, item.slot_ms, _story(evidence, item.slot_ms)) for item in found]


def cases_of(evidence: Evidence) -> Counter[str]:
    """Return how many cases of each clause the run put to the test."""
    wins = evidence.of(*_WINS)
    takeovers = sum(1 for event in wins if event.attempt > 1)
    counts = Counter(
        {
            "C1": len({(event.slot_ms, event.attempt) for event in wins}),
            "C2": len(evidence.slots),
            "C6": len(evidence.asked),
            "C18": len({event.slot_ms for event in evidence.of(*_ENDS)}),
            "C19": len({event.slot_ms for event in evidence.of(*_ENDS)}),
            "C23": len(evidence.troubles),
        }
    )
    if evidence.lease:
        counts |= Counter({"C8": len({event.slot_ms for event in wins}), "C11": takeovers, "C12": takeovers})
        counts["C15"] = len(evidence.of(What.FENCED, What.CANCELLED))
    return +counts


def marks_of(evidence: Evidence) -> Counter[Mark]:
    """Count what a green run must have seen."""
    wins = evidence.of(*_WINS)
    unsure = {event.token for event in evidence.of(What.UNKNOWN) if event.token}
    by_slot: defaultdict[int, set[str]] = defaultdict(set)
    for event in evidence.events:
        by_slot[event.slot_ms].add(event.instance)
    return Counter(
        {
            Mark.TAKEOVER: sum(1 for event in wins if event.attempt > 1),
            Mark.LOST_REPLY_RETRY: sum(1 for event in wins if event.token in unsure),
            Mark.STALE_FINISH: len(evidence.of(What.FENCED)),
            Mark.CONCURRENT: sum(1 for slot_ms, names in by_slot.items() if slot_ms and len(names) > 1),
            Mark.EARLY: len(evidence.of(What.EARLY)),
        }
    )


def _one_winner(evidence: Evidence) -> Iterator[Finding]:
    holders: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for event in evidence.of(*_WINS):
        holders[event.slot_ms, event.attempt].add(event.token)
    for (slot_ms, attempt), tokens in holders.items():
        if len(tokens) > 1:
            yield Finding("C1" if attempt == 1 else "C12", f"{len(tokens)} tokens won attempt {attempt} of one slot", slot_ms)


def _accounted(evidence: Evidence) -> Iterator[Finding]:
    seen = {event.slot_ms for event in evidence.of(*_WINS, What.NOTED)} | {record.slot_ms for record in evidence.records}
    unknown: defaultdict[int, list[float]] = defaultdict(list)
    for event in evidence.of(What.UNKNOWN):
        unknown[event.slot_ms].append(event.wall_ms)
    if not evidence.resolves_unknown:
        seen |= unknown.keys()
    for slot_ms in evidence.slots:
        # A fault that comes later explains it, too, if a claim of the slot was then still without an answer.
        instants = (slot_ms, *unknown[slot_ms])
        explained = any(
            trouble.start_wall_ms <= instant_ms + NEAR_MS and instant_ms <= trouble.end_wall_ms + NEAR_MS
            for trouble in evidence.troubles
            for instant_ms in instants
        )
        if slot_ms not in seen and not explained:
            yield Finding("C2", "nobody ran a slot, and no fault explains it", slot_ms)


def _remembered(evidence: Evidence) -> Iterator[Finding]:
    for slot_ms, outcome in evidence.asked.items():
        if outcome is Outcome.WON:
            yield Finding("C6", "an acknowledged win was forgotten: the slot could be won again", slot_ms)


def _no_gaps(evidence: Evidence) -> Iterator[Finding]:
    attempts: defaultdict[int, set[int]] = defaultdict(set)
    for record in evidence.records:
        if not record.space:
            attempts[record.slot_ms].add(record.attempt)
    for slot_ms, numbers in attempts.items():
        if numbers != set(range(1, len(numbers) + 1)):
            yield Finding("C8", f"the history shows the attempts {sorted(numbers)} of one slot", slot_ms)


def _live_leases(evidence: Evidence) -> Iterator[Finding]:
    """C11: whoever took a run over was answered after the end of the lease that the last answered renewal had set."""
    sent: defaultdict[tuple[int, int], float] = defaultdict(float)
    for event in evidence.of(What.WON, What.RENEWED):
        place = (event.slot_ms, event.attempt)
        sent[place] = max(sent[place], event.sent_ms)
    for event in evidence.of(What.WON):
        last_ms = sent.get((event.slot_ms, event.attempt - 1))
        if last_ms is not None and event.at_ms < last_ms + evidence.lease_ms - ROUNDING_MS:
            early_ms = last_ms + evidence.lease_ms - event.at_ms
            yield Finding("C11", f"attempt {event.attempt} was won {early_ms:.0f} ms before the lease could end", event.slot_ms)


def _stale_ends(evidence: Evidence) -> Iterator[Finding]:
    """C15: a finish that was sent after the next attempt was won must not count."""
    won = {(event.slot_ms, event.attempt): event for event in evidence.of(What.WON)}
    for event in evidence.of(What.FINISHED, What.RENEWED):
        successor = won.get((event.slot_ms, event.attempt + 1))
        if successor is not None and event.sent_ms > successor.at_ms:
            sentence = f"{event.what.value} with the token of attempt {event.attempt} after attempt {successor.attempt} was won"
            yield Finding("C15", sentence, event.slot_ms)


def _final(evidence: Evidence) -> Iterator[Finding]:
    """C18: no win that was asked for after the run's end, and one end a slot."""
    ends: dict[int, Event] = {}
    for event in evidence.of(*_ENDS):
        first = ends.setdefault(event.slot_ms, event)
        if first.attempt != event.attempt:
            yield Finding("C18", f"attempts {first.attempt} and {event.attempt} both ended one run", event.slot_ms)
    for event in evidence.of(What.WON):
        end = ends.get(event.slot_ms)
        if end is not None and event.sent_ms > end.at_ms and evidence.lease:
            yield Finding(
                "C18", f"attempt {event.attempt} was won after attempt {end.attempt} had finished the run", event.slot_ms
            )


def _recorded(evidence: Evidence) -> Iterator[Finding]:
    """C19: whoever finished stands in the history. One that could not be read is one finding, not one for each run."""
    if any(item.clause == "C19" for item in evidence.unanswered):
        return
    shown = {(record.slot_ms, record.attempt): record.status for record in evidence.records}
    for event in evidence.of(*_ENDS):
        status = shown.get((event.slot_ms, event.attempt))
        if status is None or (evidence.lease and status is RunStatus.RUNNING):
            said = "missing" if status is None else status.value
            yield Finding("C19", f"attempt {event.attempt} finished, and the history says {said}", event.slot_ms)


def _no_hangs(evidence: Evidence) -> Iterator[Finding]:
    for event in evidence.of(What.HUNG):
        yield Finding("C23", f"a call of {event.instance} outlived its deadline: {event.note}", event.slot_ms)


def _story(evidence: Evidence, slot_ms: int) -> tuple[str, ...]:
    """Tell what the journals say about a slot, with the faults that were under way; of an untouched one, what else went on."""
    about = [event for event in evidence.events if event.slot_ms == slot_ms]
    if slot_ms and not about:
        nearby = [event for event in evidence.events if abs(event.wall_ms - slot_ms) <= NEAR_MS]
        about = sorted(nearby, key=lambda event: event.at_ms)
    if not about:
        return ()
    low_ms, high_ms = about[0].at_ms - NEAR_MS, about[-1].at_ms + NEAR_MS
    lines = [(event.at_ms, _line(event, low_ms)) for event in about]
    for trouble in evidence.troubles:
        if trouble.start_ms <= high_ms and trouble.end_ms >= low_ms:
            lines.append((trouble.start_ms, f"{trouble.start_ms - low_ms:8.0f}  --  {trouble.fault.value} ({trouble.victim})"))
            lines.append((trouble.end_ms, f"{trouble.end_ms - low_ms:8.0f}  --  undone"))
    return tuple(line for _, line in sorted(lines)[:LINES_MAX])


def _line(event: Event, zero_ms: float) -> str:
    parts = [f"{event.at_ms - zero_ms:8.0f}  {event.instance}  {event.what.value}"]
    if event.attempt:
        parts.append(f"attempt {event.attempt}")
    if event.token:
        parts.append(event.token[:6])
    if event.sent_ms:
        parts.append(f"(asked at {event.sent_ms - zero_ms:.0f})")
    if event.note:
        parts.append(event.note)
    return " ".join(parts)
