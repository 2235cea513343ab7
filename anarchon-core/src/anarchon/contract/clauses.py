"""The clauses of contract version 1. Code, tests, reports and the documentation cite these numbers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["CLAUSES", "Clause", "Scope", "clause"]


class Scope(StrEnum):
    """Whom a clause binds."""

    ALL = "every backend"
    LEASE = "lease backends"
    SCHEDULER = "the scheduler"


@dataclass(frozen=True, slots=True)
class Clause:
    """One numbered promise: a short title for reports, and the rule."""

    number: str
    title: str
    scope: Scope
    rule: str


def _all(number: str, title: str, rule: str) -> Clause:
    return Clause(number, title, Scope.ALL, rule)


def _lease(number: str, title: str, rule: str) -> Clause:
    return Clause(number, title, Scope.LEASE, rule)


def _core(number: str, title: str, rule: str) -> Clause:
    return Clause(number, title, Scope.SCHEDULER, rule)


CLAUSES: tuple[Clause, ...] = (
    _all("C1", "single winner", "For one job, slot and attempt, no two tokens are ever told that they won."),
    _all(
        "C2",
        "somebody wins",
        "A claim of a slot that nobody has claimed, that no rule refuses and that no other claim meets, wins. "
        "A backend with ordered slots promises this only above its newest claimed slot.",
    ),
    _all(
        "C3",
        "atomic",
        "All calls about one job can be put in one order that the model explains; reading and writing are one step.",
    ),
    _all(
        "C4",
        "same token, same answer",
        "The token that holds a run is told WON with the same attempt whenever it asks again; only the lease end moves. "
        "A backend that cannot recognise its own claim says so, and is asked once.",
    ),
    _all(
        "C5",
        "never guess",
        "An answer that was lost and cannot be looked up is UNKNOWN or an error: never WON, never LOST.",
    ),
    _all(
        "C6",
        "memory",
        "A won run stays won for as long as the backend says that it remembers, across reconnects, instances and restarts. "
        "Lease backends forget a run only when it is older than `keep_ms` and beyond the history limits, oldest first, and "
        "raise the job's floor in the same step: forgetting may lose a late run, it never doubles one.",
    ),
    _all(
        "C7",
        "isolation",
        "Jobs, prefixes, tables and databases never touch each other; a hostile job name works or is refused.",
    ),
    _all(
        "C8",
        "slot identity",
        "A slot is its integer milliseconds and nothing else; attempts count 1, 2, 3 without gaps.",
    ),
    _lease(
        "C9",
        "early and late",
        "The store's clock judges early and late, and such a claim writes nothing; a takeover is never late.",
    ),
    _lease(
        "C10",
        "overlap and pause",
        "Whether another run is alive, or the job is paused, is decided in the same step as the claim.",
    ),
    _lease(
        "C11",
        "store clock",
        "Lease ends are set and compared by the store's clock alone; a lease that ends at this very millisecond is alive.",
    ),
    _lease(
        "C12",
        "takeover",
        "When a running run's lease is over, the next claim wins it with attempt + 1, and only one does.",
    ),
    _lease(
        "C13",
        "attempt limit",
        "A claim that finds no attempt left marks the run interrupted and answers DONE. Hand-overs count from attempt 1,000 on.",
    ),
    _lease(
        "C14",
        "renew",
        "The holder's token moves the lease end of a running run to now + lease, also past its end if nobody took the run.",
    ),
    _lease(
        "C15",
        "fencing",
        "After a takeover, a finish or a release the old token changes nothing: renew and release say False, finish says False "
        "unless this token finished the run.",
    ),
    _lease(
        "C16",
        "release",
        "A released run can be claimed after its delay on the store's clock, as the next attempt, counted or not as said. Until "
        "then it answers RUNNING and blocks overlap; afterwards it does neither.",
    ),
    _lease(
        "C17",
        "check is a hint",
        "A look at a run may be late in noticing its end, never reports a run free that is not, and writes nothing.",
    ),
    _all("C18", "final", "A finished run stays finished as it is; the token that finished it is told True again."),
    _all(
        "C19",
        "record",
        "Every won attempt stands in the history before its finish says True, newest slot first, then newest attempt; "
        "repeated records of one token are one.",
    ),
    _all("C20", "trimming", "Trimming the history never weakens C6, and never removes a running run of a lease backend."),
    _all("C21", "opening", "Many instances may open an empty store at the same moment, and open it twice."),
    _all(
        "C22",
        "cancellation",
        "A call cancelled at any point took effect wholly or not at all, and leaves the backend usable.",
    ),
    _all(
        "C23",
        "deadlines",
        "After a restart of the store, a cut or a silent connection, the next call works or fails within its timeout.",
    ),
    _all(
        "C24",
        "ownership",
        "Closing ends what the backend opened and nothing that it was lent; no task, thread or socket stays.",
    ),
    _all("C25", "clock steps", "A step of the store's clock in either direction never reopens a finished run."),
    _core(
        "K1",
        "local deadline",
        "An instance stops trusting its lease before the store may end it, counting time from before the send and through "
        "suspend. Past it the run is lost, unless the instance only now wakes and one renewal still succeeds.",
    ),
    _core(
        "K2",
        "unknown is asked again",
        "An unknown answer is asked for again with the same token while the late window is open, and never run on a guess.",
    ),
    _core(
        "K3",
        "same slots everywhere",
        "Every instance computes the same slots whatever its zone, clock, locale or start.",
    ),
    _core(
        "K4",
        "one local run",
        "An instance never runs a run twice at once, nor claims it while its handler has not ended.",
    ),
    _core(
        "K5",
        "isolation of failures",
        "No observer, plugin, blocking or failing job stops the scheduler or another job.",
    ),
    _core(
        "K6",
        "stopping",
        "Stopping finishes or hands over what runs within the grace; afterwards no run holds this instance's token.",
    ),
    _core("K7", "blocked loop", "A handler that blocks the application's event loop does not lose its lease."),
    _core("K8", "silence when idle", "No store call is made while no slot is open."),
    _core("K9", "bounds", "Catch-up, retries, watched runs, handlers, queues, sleeps and memory all have limits."),
    _core(
        "K10",
        "refused at add",
        "Settings that are unsafe, unknown or impossible on this backend are refused when the job is added.",
    ),
    _core(
        "K11",
        "oldest first",
        "For a job that refuses overlap, older unfinished runs are asked for before a newer slot is claimed.",
    ),
    _core(
        "K12",
        "recovery",
        "Unfinished runs are looked for at start, when a lost store returns, and after a claim once a lease has passed.",
    ),
    _core(
        "K13",
        "accounted for",
        "Every slot that an instance evaluated ends as a run or as a note, and a note's reason is told once a fleet.",
    ),
)

_BY_NUMBER = {entry.number: entry for entry in CLAUSES}


def clause(number: str) -> Clause:
    """Return a clause by its number, for example `clause("C12")`.

    Raises:
        KeyError: there is no such clause in this version.
    """
    return _BY_NUMBER[number]
