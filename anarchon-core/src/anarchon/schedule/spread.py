"""`H` in an expression: a value that depends on the job's name, so that a thousand nightly jobs do not start at once.

The hash is SHA-256 over the field and the name, the same in every process and version (`hash()` is not). The value is
written out as a number before anything else happens, so the canonical text of an `H` schedule says what it does.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from anarchon.errors import ScheduleError
from anarchon.schedule.fields import Range

__all__ = ["is_spread", "spread_values"]

PATTERN: Final = r"h(?:\((?P<low>\d{1,4})-(?P<high>\d{1,4})\))?(?:/(?P<step>\d{1,4}))?"
DAY_HIGH: Final = 28
"""A bare `H` as day of month stays within the days that every month has."""


def is_spread(item: str) -> bool:
    """Tell whether an item of a field asks for a value from the job's name."""
    return item.startswith("h")


def spread_values(span: Range, item: str, name: str | None) -> set[int]:
    """Return the values of `H`, `H/n`, `H(a-b)` or `H(a-b)/n` for a job's name.

    Each value of the range is equally likely over many names; with a step, each offset within the range is.
    """
    where = f"the {span.name} field"
    match = re.fullmatch(PATTERN, item)
    if match is None:
        raise ScheduleError(f"'{item.upper()}' in {where} is no form of H; write H, H/15, H(0-29) or H(0-29)/10.")
    if name is None:
        raise ScheduleError(
            f"'{item.upper()}' in {where} is spread by the job's name, and no name is known here; "
            "give name=..., or write a number instead."
        )
    low, high = span.low, min(span.high, DAY_HIGH) if span.name == "day-of-month" else span.high
    if match["low"] is not None:
        low, high = int(match["low"]), int(match["high"])
        if not span.low <= low < high <= span.high:
            raise ScheduleError(
                f"'{item.upper()}' in {where} needs a range from low to high within {span.low}-{span.high}; "
                f"write for example H({span.low}-{span.high // 2})."
            )
    step = high - low + 1 if match["step"] is None else int(match["step"])
    if not 1 <= step <= span.high - span.low + 1:
        raise ScheduleError(
            f"'{item.upper()}' in {where} has the step {step}; write a step from 1 to {span.high - span.low + 1}."
        )
    drawn = int.from_bytes(sha256(f"{span.name}\0{name}".encode()).digest()[:16], "big")
    # The offset is drawn from the part of the step that lies in the range, else H(50-52)/10 would leave it.
    return set(range(low + drawn % min(step, high - low + 1), high + 1, step))
