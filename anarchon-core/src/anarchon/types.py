"""The records that cross the border between the core and a backend. All times are integer milliseconds."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from enum import StrEnum

from anarchon.errors import OptionError

__all__ = [
    "ATTEMPTS_MAX",
    "CLAIM_MANY_MAX",
    "MANUAL",
    "NOTE",
    "SLOT",
    "Claim",
    "ClaimRequest",
    "JobView",
    "Limits",
    "Outcome",
    "RunKey",
    "RunRecord",
    "RunResult",
    "RunStatus",
    "RunView",
    "new_token",
]

ATTEMPTS_MAX = 1_000
"""From this attempt on hand-overs count like any other attempt (C13), so that no run is handed round for ever."""

CLAIM_MANY_MAX = 100
"""The most requests that the core puts into one `claim_many`, `renew_many` or `check`."""

SLOT = ""
MANUAL = "m"
NOTE = "n"


def new_token() -> str:
    """Return a new claim token: 128 random bits as 32 hex digits."""
    return secrets.token_hex(16)


class Outcome(StrEnum):
    """What a store answers to a claim. A refusal is a value; a failure is an exception, and counts as UNKNOWN (C5)."""

    WON = "won"
    LOST = "lost"
    RUNNING = "running"
    DONE = "done"
    LATE = "late"
    EARLY = "early"
    PAUSED = "paused"
    OVERLAP = "overlap"
    UNKNOWN = "unknown"


class RunStatus(StrEnum):
    """The state of a run, or of one attempt of it in the history."""

    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    HANDED_OVER = "handed_over"
    LOST = "lost"
    SKIPPED = "skipped"
    MISSED = "missed"

    @property
    def final(self) -> bool:
        """Whether a run in this state can never be won again (C18). A note ends as skipped or missed."""
        return self in _FINAL


_FINAL = frozenset(
    {
        RunStatus.SUCCESS,
        RunStatus.FAILED,
        RunStatus.TIMEOUT,
        RunStatus.INTERRUPTED,
        RunStatus.SKIPPED,
        RunStatus.MISSED,
    }
)


@dataclass(frozen=True, slots=True, order=True)
class RunKey:
    """Names one run: a job, a slot (Unix milliseconds, C8) and a key space.

    `space` is `""` for a slot of the schedule, `"m<id>"` for a manual run and `"n"` for the note of a slot (K13).
    """

    job: str
    slot_ms: int
    space: str = SLOT

    @property
    def manual(self) -> bool:
        """Whether this is a manual run: never early, late or paused."""
        return self.space.startswith(MANUAL)

    @property
    def note(self) -> bool:
        """Whether this is a note: never early, late, paused or overlapping, and invisible to claims of runs."""
        return self.space == NOTE

    def fence(self, attempt: int) -> int:
        """Return the fence of an attempt: orders slots, then the attempts of a slot."""
        return self.slot_ms * 1024 + attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """Everything a store needs to decide a claim in one step (C3).

    `attempt_limit` counts failed and crashed attempts, not hand-overs; 0 asks for an ended run to be marked
    interrupted. `exclusive` refuses the claim while another run of the job is alive. `keep_ms`, `history_size` and
    `history_ttl_ms` say what this claim may prune if it wins (C6). `info` is kept in the job's row for tools.
    """

    key: RunKey
    token: str
    instance: str
    attempt_limit: int = 3
    lease_ms: int = 30_000
    max_late_ms: int = 60_000
    exclusive: bool = True
    keep_ms: int = 67_000
    history_size: int = 100
    history_ttl_ms: int | None = None
    info: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A store's answer to a claim.

    `attempt` is set with WON. `store_now_ms` is the store's clock, from every backend that has one. `wait_ms` comes
    with EARLY, `left_ms` (until the lease or the release delay ends) with RUNNING, `other` (the run that blocks) with
    OVERLAP, `winner` (the holder's instance) with RUNNING, LOST and OVERLAP where it is known. `other_info` is a job
    info that this claim found in the job's row and replaced.
    """

    outcome: Outcome
    attempt: int = 0
    store_now_ms: int | None = None
    wait_ms: int | None = None
    left_ms: int | None = None
    other: RunKey | None = None
    winner: str | None = None
    other_info: str | None = None

    @property
    def won(self) -> bool:
        """Whether the caller holds the run."""
        return self.outcome is Outcome.WON


@dataclass(frozen=True, slots=True)
class RunResult:
    """How an attempt ended: a final status and, for people, one line of error."""

    status: RunStatus
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as a backup sees it; a hint only (C17).

    `left_ms` is until the lease or the release delay ends: at least 1 while the run is taken, at most 0 (how long ago it
    ended, negative) once it may be claimed.
    """

    key: RunKey
    status: RunStatus
    attempt: int
    instance: str
    left_ms: int


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One attempt (or note) in the history of a job (C19). Times are the store's, Unix milliseconds."""

    job: str
    slot_ms: int
    space: str
    attempt: int
    token: str
    instance: str
    status: RunStatus
    claimed_ms: int
    finished_ms: int | None = None
    error: str | None = None

    @property
    def key(self) -> RunKey:
        """The run that this attempt belongs to."""
        return RunKey(self.job, self.slot_ms, self.space)


@dataclass(frozen=True, slots=True)
class JobView:
    """What a lease backend keeps about a job: first claim, pause, floor (C6) and the last info written."""

    job: str
    first_ms: int
    paused_ms: int | None = None
    resumed_ms: int | None = None
    floor_ms: int | None = None
    info: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a backend promises and what it cannot do, as data (C2, C4, C6, C9).

    `remembers_ms`: how long a won run is remembered; None = as the claims' `keep_ms` says. `remembers_runs`: how many of
    a job's newest runs are remembered at all; None = any number. `memory_option`: the backend's option that sets
    `remembers_ms`, in seconds, for messages. `costly_runs`: so many remembered runs of one job are a burden to the store;
    a job that comes to more is warned about when it is added. `resolves_unknown`: asking again with the same token
    recognises an own claim (C4). `store_clock`: lateness is judged on the store's clock before anything is written
    (C9). `ordered`: a slot older than the newest claimed one is refused for ever. `durable`: survives a restart of the
    store. `job_name`: a full-match pattern for job names, None = any text of at most 200 characters without control
    characters.
    """

    remembers_ms: int | None = None
    remembers_runs: int | None = None
    memory_option: str | None = None
    costly_runs: int | None = None
    resolves_unknown: bool = True
    store_clock: bool = True
    ordered: bool = False
    durable: bool = True
    history_ttl: bool = True
    job_name: str | None = None
    call_timeout_ms: int = 5_000
    notes: tuple[str, ...] = field(default=())

    def check_job_name(self, name: str) -> None:
        """Refuse a job name that this backend cannot carry (C7).

        Raises:
            OptionError: naming the job and the characters that work.
        """
        if not isinstance(name, str) or not name or len(name) > 200 or not name.isprintable():
            msg = f"job name {name!r:.80} is refused: use 1 to 200 printable characters"
            raise OptionError(msg)
        if self.job_name is not None and not re.fullmatch(self.job_name, name):
            msg = f"job name {name!r} is refused by this backend: it must match {self.job_name}"
            raise OptionError(msg)
