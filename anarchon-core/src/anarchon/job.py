"""A job: a named handler, a schedule and options, checked against what the backend can honour (K10)."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum
from itertools import pairwise
from typing import Final, TypedDict

from anarchon.backend import Backend, LeaseBackend
from anarchon.errors import OptionError
from anarchon.handlers import Handler, HandlerFunction
from anarchon.schedule import Schedule, parse, zones_of
from anarchon.schedule.zones import zone as zone_of
from anarchon.types import ATTEMPTS_MAX, Limits

__all__ = ["CatchUp", "Duration", "Job", "JobOptions", "Overlap", "duration_ms", "make_job"]

_log = logging.getLogger("anarchon.job")

Duration = float | int | timedelta
"""Seconds, or a timedelta."""

JITTER_DEFAULT_MS: Final = 2_000
DURATION_MAX_MS: Final = 10 * 366 * 86_400_000
LEASE_MIN_MS: Final = 100
PROBED_SLOTS: Final = 64


class Overlap(StrEnum):
    """What happens to a slot whose job is still running an earlier one."""

    SKIP = "skip"
    ALLOW = "allow"
    QUEUE = "queue"


class CatchUp(StrEnum):
    """Which slots of a time without instances run afterwards."""

    NONE = "none"
    LATEST = "latest"
    ALL = "all"


class JobOptions(TypedDict, total=False):
    """The options of a job. Durations are seconds or a timedelta; an option that is not written takes its default."""

    jitter: Duration
    max_late: Duration
    lease: Duration
    heartbeat: Duration
    max_attempts: int
    retries: int
    retry_delay: Duration
    timeout: Duration
    overlap: str
    catch_up: str
    catch_up_window: Duration
    catch_up_limit: int
    history_size: int
    history_ttl: Duration
    was: str | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the engine runs it; every duration in milliseconds.

    `jitter_ms` None means: at most 2 s, half of `max_late` and a tenth of the distance to the next slot.
    `retry_delay_ms` None means: 1 s, doubled with each failure up to 5 minutes.
    """

    name: str
    schedule: Schedule
    handler: Handler
    jitter_ms: int | None = None
    max_late_ms: int = 60_000
    lease_ms: int = 30_000
    heartbeat_ms: int = 10_000
    max_attempts: int = 3
    retries: int = 0
    retry_delay_ms: int | None = None
    timeout_ms: int | None = None
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.NONE
    catch_up_window_ms: int = 86_400_000
    catch_up_limit: int = 100
    history_size: int = 100
    history_ttl_ms: int | None = None
    was: tuple[str, ...] = ()
    clock_allowance_ms: int = 5_000
    unsupported: tuple[str, ...] = field(default=())

    @property
    def exclusive(self) -> bool:
        """Whether a slot is refused while another run of the job is alive."""
        return self.overlap is not Overlap.ALLOW

    @property
    def jitter_most_ms(self) -> int:
        """The longest jitter that may be drawn."""
        return min(JITTER_DEFAULT_MS, self.max_late_ms // 2) if self.jitter_ms is None else self.jitter_ms

    @property
    def keep_ms(self) -> int:
        """How long a run must be remembered so that no late claim of this job can win it again (C6)."""
        window_ms = self.max_late_ms
        if self.catch_up is not CatchUp.NONE or self.overlap is Overlap.QUEUE:
            window_ms = max(window_ms, self.catch_up_window_ms)
        return self.jitter_most_ms + window_ms + self.clock_allowance_ms

    @property
    def names(self) -> tuple[str, ...]:
        """Every name under which a slot is claimed, oldest first."""
        return (*self.was, self.name)

    def next_times(self, after_ms: float, count: int) -> list[datetime]:
        """Return the next slots as aware datetimes, in the zone of the schedule if it has exactly one, else in UTC."""
        zones = zones_of(self.schedule)
        zone = zone_of(zones[0]).info if len(zones) == 1 else UTC
        slots: list[datetime] = []
        at_ms: int | None = int(after_ms)
        while len(slots) < count and at_ms is not None:
            at_ms = self.schedule.next_after(at_ms)
            if at_ms is not None:
                slots.append(datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(zone))
        return slots


def duration_ms(option: str, value: object, *, least_ms: int = 0) -> int:
    """Return a duration in milliseconds.

    Raises:
        OptionError: it is no duration, negative, or longer than ten years.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) < DURATION_MAX_MS else math.inf  # an int may be too long for a float
    else:
        msg = f"{option}={value!r:.80} is refused: write seconds or a timedelta"
        raise OptionError(msg)
    result = round(seconds * 1000) if math.isfinite(seconds) else -1
    if not least_ms <= result <= DURATION_MAX_MS:
        msg = f"{option}={value!r:.80} is refused: write {least_ms / 1000:g} seconds to 10 years"
        raise OptionError(msg)
    return result


def _whole(option: str, value: object, *, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        msg = f"{option}={value!r:.80} is refused: write a whole number from {least} to {most}"
        raise OptionError(msg)
    return value


def _choice(option: str, value: object, kind: type[Overlap | CatchUp]) -> Overlap | CatchUp:
    try:
        return kind(str(value))
    except ValueError:
        msg = f"{option}={value!r:.80} is refused: write one of {', '.join(repr(str(item)) for item in kind)}"
        raise OptionError(msg) from None


LEASE_ONLY: Final = {
    "lease": "leave it out",
    "heartbeat": "leave it out",
    "max_attempts": "leave it out",
    "retries": "leave it out, or retry inside the handler",
    "retry_delay": "leave it out",
    "catch_up": "leave it out",
    "catch_up_window": "leave it out",
    "catch_up_limit": "leave it out",
    "overlap": "write overlap='allow'",
}
"""Options that only a lease backend can honour, and what to do on another."""


def make_job(
    function: HandlerFunction,
    schedule: Schedule | str,
    *,
    name: str | None = None,
    tz: str = "UTC",
    options: JobOptions,
    backend: Backend,
    clock_allowance_ms: int,
) -> Job:
    """Check a job against itself and against the backend, and return it (K10).

    Raises:
        OptionError: an option is unknown, unsafe, or cannot be honoured; the message names the remedy.
        ScheduleError: the schedule or zone is refused.
    """
    handler = Handler.of(function)
    title = name if name is not None else handler.default_name
    backend.limits.check_job_name(title)
    try:
        was = _was(title, options.get("was", ()), backend)
        unknown = [option for option in options if option not in JobOptions.__annotations__]
        if unknown:
            near = get_close_matches(unknown[0], JobOptions.__annotations__, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"options: {', '.join(sorted(JobOptions.__annotations__))}"
            msg = f"unknown option {unknown[0]!r}={dict(options)[unknown[0]]!r:.80}; {hint}"
            raise OptionError(msg)
        allowance_ms = 0 if backend.limits.store_clock else clock_allowance_ms
        slots = parse(schedule, tz, (was or (title,))[0])
        job = _fit(_read(title, slots, handler, options, was=was, allowance_ms=allowance_ms), options, backend)
        _refuse_unsafe(job, options, backend)
        _warn_of_burden(job, backend.limits)
    except OptionError as error:
        msg = f"job {title!r}: {error}"
        raise OptionError(msg) from None
    return job


def _was(name: str, value: object, backend: Backend) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else (None,)
    if not all(isinstance(item, str) and item for item in names) or len({*names, name}) != len(names) + 1:
        msg = f"was={value!r:.80} is refused: write earlier names of the job, each once and none of them its name now"
        raise OptionError(msg)
    earlier = tuple(str(item) for item in names)
    for each in earlier:
        try:
            backend.limits.check_job_name(each)
        except OptionError as error:
            msg = f"was={value!r:.80}: {error}"
            raise OptionError(msg) from None
    return earlier


def _read(
    name: str, schedule: Schedule, handler: Handler, options: JobOptions, *, was: tuple[str, ...], allowance_ms: int
) -> Job:
    def span(option: str, default_ms: int, *, least_ms: int = 0) -> int:
        written = dict(options)
        return duration_ms(option, written[option], least_ms=least_ms) if option in written else default_ms

    def maybe(option: str, *, least_ms: int = 0) -> int | None:
        return span(option, 0, least_ms=least_ms) if options.get(option) is not None else None

    lease_ms = span("lease", 30_000, least_ms=LEASE_MIN_MS)
    return Job(
        name=name,
        schedule=schedule,
        handler=handler,
        jitter_ms=maybe("jitter"),
        max_late_ms=span("max_late", 60_000),
        lease_ms=lease_ms,
        heartbeat_ms=span("heartbeat", lease_ms // 3, least_ms=10),
        max_attempts=_whole("max_attempts", options.get("max_attempts", 3), least=1, most=ATTEMPTS_MAX),
        retries=_whole("retries", options.get("retries", 0), least=0, most=ATTEMPTS_MAX),
        retry_delay_ms=maybe("retry_delay"),
        timeout_ms=maybe("timeout", least_ms=1),
        overlap=Overlap(_choice("overlap", options.get("overlap", "skip"), Overlap)),
        catch_up=CatchUp(_choice("catch_up", options.get("catch_up", "none"), CatchUp)),
        catch_up_window_ms=span("catch_up_window", 86_400_000, least_ms=1_000),
        catch_up_limit=_whole("catch_up_limit", options.get("catch_up_limit", 100), least=1, most=10_000),
        history_size=_whole("history_size", options.get("history_size", 100), least=1, most=1_000_000),
        history_ttl_ms=maybe("history_ttl", least_ms=1_000),
        was=was,
        clock_allowance_ms=allowance_ms,
    )


def _fit(job: Job, options: JobOptions, backend: Backend) -> Job:
    """Take the defaults of the backend's kind for what was not written, and refuse what was written in vain."""
    limits = backend.limits
    kind = type(backend).__name__
    if job.history_ttl_ms is not None and not limits.history_ttl:
        msg = f"history_ttl={options.get('history_ttl')!r}: {kind} trims its history by size only; use history_size"
        raise OptionError(msg)
    if isinstance(backend, LeaseBackend):
        return job
    for option, remedy in LEASE_ONLY.items():
        written = options.get(option)
        if written is None or (option, written) in {
            ("overlap", "allow"),
            ("max_attempts", 1),
            ("retries", 0),
            ("catch_up", "none"),
        }:
            continue
        msg = f"{option}={written!r}: {kind} only decides who is first and holds no lease; {remedy}, or use a lease backend"
        raise OptionError(msg)
    lacks = ("overlap protection", "takeover", "catch-up", "hand-over")
    return replace(job, overlap=Overlap.ALLOW, max_attempts=1, retries=0, catch_up=CatchUp.NONE, unsupported=lacks)


def _refuse_unsafe(job: Job, options: JobOptions, backend: Backend) -> None:
    limits = backend.limits
    if job.jitter_ms is not None and job.jitter_ms >= job.max_late_ms:
        late = f"max_late ({job.max_late_ms / 1000:g} s)"
        msg = f"jitter={options.get('jitter')!r} reaches {late}: a claim may come too late; shorten jitter"
        raise OptionError(msg)
    if job.heartbeat_ms > job.lease_ms // 2:
        msg = (
            f"heartbeat={options.get('heartbeat')!r} is over half of the lease ({job.lease_ms / 1000:g} s): one lost "
            f"renewal would lose the run; write at most {job.lease_ms / 2000:g}"
        )
        raise OptionError(msg)
    if job.retries >= job.max_attempts and job.retries:
        msg = f"retries={job.retries} does not fit max_attempts={job.max_attempts}: write max_attempts={job.retries + 1} or more"
        raise OptionError(msg)
    if limits.remembers_ms is not None and job.keep_ms >= limits.remembers_ms:
        late, sum_s = _keeping(job)
        msg = (
            f"{sum_s}, but this store forgets a run after {limits.remembers_ms / 1000:g} s: a late instance could run it "
            f"again; shorten {late} or {_more_memory(job, limits)}"
        )
        raise OptionError(msg)
    if limits.remembers_runs is not None:
        _refuse_too_many(job, limits.remembers_runs)
    if limits.ordered:
        _refuse_disorder(job)


def _more_memory(job: Job, limits: Limits) -> str:
    if limits.memory_option is None:
        return "raise the store's memory"
    return f"write {limits.memory_option}={job.keep_ms // 1000 + 1} or more for the backend"


def _warn_of_burden(job: Job, limits: Limits) -> None:
    """Tell of a job so frequent that what the store remembers of it costs; it works all the same."""
    if limits.costly_runs is None or limits.remembers_ms is None:
        return
    shortest_ms = _shortest_ms(job)
    runs = 0 if shortest_ms is None else limits.remembers_ms // shortest_ms
    if runs > limits.costly_runs:
        shorter = f"shorten {limits.memory_option}" if limits.memory_option else "shorten the store's memory"
        _log.warning(
            "%s: this store keeps something for each run for %g s, which is %d at a time for a slot every %g s; %s, or use "
            "another store for so frequent jobs",
            *(job.name, limits.remembers_ms / 1000, runs, (shortest_ms or 0) / 1000, shorter),
        )


def _keeping(job: Job) -> tuple[str, str]:
    """Return the option that says for how long a run must be remembered, and the sum as a part of a sentence."""
    late_ms = job.keep_ms - job.jitter_most_ms - job.clock_allowance_ms
    late = "max_late" if late_ms == job.max_late_ms else "catch_up_window"
    return late, (
        f"{late}={late_ms / 1000:g} with jitter={job.jitter_most_ms / 1000:g} and a clock allowance of "
        f"{job.clock_allowance_ms / 1000:g} s makes {job.keep_ms / 1000:g} s"
    )


def _shortest_ms(job: Job) -> int | None:
    """Return the least distance of the schedule's first slots; None if it has fewer than two."""
    slots: list[int] = []
    at_ms: int | None = 0
    while at_ms is not None and len(slots) < PROBED_SLOTS:
        at_ms = job.schedule.next_after(at_ms)
        if at_ms is not None:
            slots.append(at_ms)
    return min((later - earlier for earlier, later in pairwise(slots)), default=None)


def _refuse_too_many(job: Job, runs_max: int) -> None:
    """Refuse a job of which the store may have dropped a run while a late claim can still ask for it (C6)."""
    shortest_ms = _shortest_ms(job)
    if shortest_ms is None or job.keep_ms // shortest_ms < runs_max:
        return
    late, sum_s = _keeping(job)
    msg = (
        f"{sum_s}, which is {job.keep_ms // shortest_ms + 1} runs of a slot every {shortest_ms / 1000:g} s, but this store "
        f"remembers {runs_max} runs of a job: a late instance could run one again; shorten {late}"
    )
    raise OptionError(msg)


def _refuse_disorder(job: Job) -> None:
    """Refuse a jitter that lets a later slot's claim pass an earlier one, where that loses the earlier (C2)."""
    shortest_ms = _shortest_ms(job)
    if job.jitter_ms is not None and shortest_ms is not None and job.jitter_ms >= shortest_ms:
        msg = (
            f"jitter={job.jitter_ms / 1000:g} s reaches the distance of slots ({shortest_ms / 1000:g} s), and this store "
            f"refuses a slot once a later one is claimed: write jitter below {shortest_ms / 1000:g}"
        )
        raise OptionError(msg)
