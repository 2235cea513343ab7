"""From what Redis holds to the records of the border. Replies are bytes; texts are UTF-8."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from anarchon.errors import StoreDamaged
from anarchon.types import Claim, Outcome, RunKey, RunRecord, RunStatus, RunView

from anarchon_redis.keys import key_of

__all__ = ["by_slot", "claim_of", "fields_of", "merge", "text_of", "view_of"]

ERROR_MOST = 2_000


def text_of(value: bytes | str | None) -> str:
    """Return a reply as text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def plain(text: str | None) -> str:
    """Return a text that Redis can carry: bounded, without what UTF-8 cannot write."""
    if not text or (len(text) <= ERROR_MOST and text.isascii()):
        return text or ""
    return text[:ERROR_MOST].encode("utf-8", "replace").decode("utf-8")


def claim_of(job: str, reply: bytes | list[bytes]) -> tuple[Claim, bool]:
    """Read the answer of a claim script, and whether the job is new to the store."""
    if isinstance(reply, bytes):
        head, left, other, winner, replaced = reply, b"", b"", b"", b""
    else:
        head, left, other, winner, replaced = reply
    outcome, now, attempt, born = head.decode().split("|")
    left_ms = int(left) if left else None
    early = outcome == Outcome.EARLY
    claim = Claim(
        Outcome(outcome),
        int(attempt),
        int(now),
        wait_ms=left_ms if early else None,
        left_ms=None if early else left_ms,
        other=key_of(job, text_of(other)) if other else None,
        winner=text_of(winner) or None,
        other_info=text_of(replaced) or None,
    )
    return claim, born == "1"


def view_of(key: RunKey, packed: bytes, now_ms: int) -> RunView:
    """Read a run as the lease scripts pack it (C17).

    Raises:
        StoreDamaged: somebody else wrote there.
    """
    try:
        status, attempt, _, _, end, _, _, instance = text_of(packed).split("|", 7)
        left_ms, state = int(end) - now_ms, RunStatus(status)
        alive = left_ms > 0 or (state is RunStatus.RUNNING and left_ms == 0)  # C11, C16
        return RunView(key, state, int(attempt), instance, max(1, left_ms) if alive else min(0, left_ms))
    except ValueError as error:
        msg = f"the run {key.slot_ms}{key.space} of job {key.job!r} cannot be read: it holds {packed[:80]!r}"
        raise StoreDamaged(msg) from error


def fields_of(entry: Sequence[bytes]) -> dict[str, str]:
    """Return the fields of a stream entry."""
    return {text_of(name): text_of(value) for name, value in zip(entry[::2], entry[1::2], strict=True)}


def merge(job: str, entries: Iterable[Mapping[str, str]]) -> list[RunRecord]:
    """Make one record of the entries of one attempt: its claim, and how it ended (C19). Foreign entries are passed.

    A token may win its run again, after another's attempt.
    """
    found: dict[tuple[str, str, str, int], RunRecord] = {}
    for entry in entries:
        try:
            status, at_ms = RunStatus(entry["status"]), int(entry["at"])
            slot_ms, attempt = int(entry["slot"]), int(entry["attempt"])
            place = (entry["slot"], entry["space"], entry["token"], attempt)
        except (KeyError, ValueError):
            continue
        known = found.get(place)
        ended = status is not RunStatus.RUNNING
        found[place] = RunRecord(
            job,
            slot_ms,
            entry["space"],
            attempt,
            entry["token"],
            entry.get("instance", ""),
            status,
            known.claimed_ms if known else at_ms,
            at_ms if ended else None,
            entry.get("error") or None,
        )
    return list(found.values())


def by_slot(records: list[RunRecord], limit: int) -> list[RunRecord]:
    """Return the newest records: newest slot first, then the newest attempt (C19)."""
    return sorted(records, key=lambda record: (record.slot_ms, record.attempt, record.claimed_ms), reverse=True)[:limit]
