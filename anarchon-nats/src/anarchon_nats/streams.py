"""The stream of a prefix: made where there is none, else used as it is, with what is wrong about it (C21)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from anarchon.errors import StoreSetupError

from anarchon_nats.failures import NAME_TAKEN, NO_LEADER, STREAM_NOT_FOUND, ApiError
from anarchon_nats.link import Link
from anarchon_nats.names import Names
from anarchon_nats.options import Options, Strategy

__all__ = ["Found", "ensure", "refuse_rivals"]

NS: Final = 1_000_000
KEPT_OF_A_SLOT: Final = 2
"""A slot of cas holds its claim and its end."""


@dataclass(frozen=True, slots=True)
class Found:
    """A stream as it is."""

    name: str
    config: Mapping[str, Any]
    nodes: int = 1

    @property
    def durable(self) -> bool:
        """Whether it survives a restart of its servers."""
        return self.config.get("storage") != "memory"

    @property
    def direct(self) -> bool:
        """Whether a direct get cannot be answered by a server that is behind: there is one, and it offers that."""
        return bool(self.config.get("allow_direct")) and self.nodes == 1 and int(self.config.get("num_replicas", 1)) == 1

    @property
    def max_age_ms(self) -> int:
        """How long it keeps a message; 0 = for ever."""
        return int(self.config.get("max_age", 0)) // NS

    @property
    def duplicate_window_ms(self) -> int:
        """How long it knows a message's ID."""
        return int(self.config.get("duplicate_window", 0)) // NS

    def remembers_ms(self, strategy: Strategy) -> int | None:
        """Return how long a claim is remembered here (C6)."""
        if strategy is Strategy.MSG_ID:
            return min(self.duplicate_window_ms, self.max_age_ms or self.duplicate_window_ms)
        return self.max_age_ms or None


def wanted(names: Names, options: Options) -> dict[str, Any]:
    """Return the configuration of a stream that is made."""
    limits: dict[str, Any] = {"max_age": options.max_age_ms * NS}
    if options.strategy is Strategy.MSG_ID:
        limits["duplicate_window"] = options.duplicate_window_ms * NS
    elif options.strategy is Strategy.CAS:
        limits["max_msgs_per_subject"] = KEPT_OF_A_SLOT
    else:
        # What a key-value bucket is: only the newest of each key, purges allowed, no age.
        limits = {
            "max_msgs_per_subject": 1,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "discard": "new",
            "allow_direct": True,
        }
    return {
        "name": names.stream,
        "description": f"anarchon, strategy {options.strategy}, prefix {options.prefix}",
        "subjects": [names.subjects],
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "num_replicas": options.replicas,
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_msg_size": -1,
        "max_msgs_per_subject": -1,
        **limits,
    }


async def ensure(link: Link, names: Names, options: Options) -> Found:
    """Find the stream that takes the subjects of a prefix, or make it.

    Raises:
        StoreSetupError: it cannot be used.
    """
    found = await _look(link, names.stream)
    if found is None and not options.stream:
        others = await _streams_of(link, names.subjects)
        found = await _look(link, others[0]) if others else None
    if found is None:
        try:
            made = await link.api(f"STREAM.CREATE.{names.stream}", wanted(names, options))
            found = _found(made)
        except ApiError as error:
            if error.err_code in NO_LEADER:
                raise
            if error.err_code != NAME_TAKEN:  # another instance was quicker, with other options
                raise StoreSetupError(f"{link.place}: the stream {names.stream} cannot be made: {error}") from error
            found = await _look(link, names.stream)
    if found is None:
        raise StoreSetupError(f"{link.place}: the stream {names.stream} was deleted while it was opened")
    _refuse_unusable(link, found, names)
    return found


async def refuse_rivals(link: Link, names: Names) -> None:
    """Refuse a prefix that is used with another strategy: the two would not see each other's claims (C1).

    Raises:
        StoreSetupError: naming the other strategy and its stream.
    """
    for strategy, subjects in names.rivals.items():
        for stream in await _streams_of(link, subjects):
            found = await _look(link, stream)
            if found is None or subjects not in found.config.get("subjects", ()):
                continue  # a stream of somebody else's that takes many subjects says nothing about strategies
            msg = (
                f"{link.place}: the prefix {names.prefix!r} is used with strategy={strategy}, and two strategies would run each "
                f"slot twice. Write another prefix, or stop every instance and delete the stream {stream}"
            )
            raise StoreSetupError(msg)


async def _look(link: Link, name: str) -> Found | None:
    try:
        return _found(await link.api(f"STREAM.INFO.{name}"))
    except ApiError as error:
        if error.err_code == STREAM_NOT_FOUND:
            return None
        raise


def _found(told: Mapping[str, Any]) -> Found:
    config = told["config"]
    nodes = 1 + len((told.get("cluster") or {}).get("replicas") or ())
    return Found(str(config["name"]), config, nodes)


async def _streams_of(link: Link, subject: str) -> list[str]:
    told = await link.api("STREAM.NAMES", {"subject": subject})
    return sorted(told.get("streams") or ())


def _refuse_unusable(link: Link, found: Found, names: Names) -> None:
    config = found.config
    why = ""
    if not any(covers(subject, names.subjects) for subject in config.get("subjects") or ()):
        why = f"it does not take {names.subjects}; add that subject"
    elif config.get("no_ack"):
        why = "it acknowledges nothing (no_ack)"
    elif config.get("retention", "limits") != "limits":
        why = f"its retention is {config['retention']}, so claims would vanish once somebody read them"
    elif config.get("sealed"):
        why = "it is sealed"
    if why:
        raise StoreSetupError(f"{link.place}: the stream {found.name} cannot be used: {why}, or write another stream or prefix")


def covers(have: str, want: str) -> bool:
    """Return whether every subject of one pattern is a subject of another."""
    mine, asked = have.split("."), want.split(".")
    for place, word in enumerate(mine):
        if word == ">":
            return len(asked) > place
        if place >= len(asked) or asked[place] == ">" or (word != "*" and word != asked[place]):
            return False
    return len(mine) == len(asked)


def weaknesses(found: Found, options: Options) -> list[str]:
    """Return what about a stream weakens the promises, one sentence each."""
    config, strategy, said = found.config, options.strategy, list[str]()
    name = f"the stream {found.name}"
    if not found.durable:
        said.append(
            f"{name} lives in memory: a restart of the server forgets every claim, and their slots can run again; "
            "use a stream with file storage"
        )
    if strategy is Strategy.MSG_ID and found.duplicate_window_ms != options.duplicate_window_ms:
        said.append(
            f"{name} has a duplicate_window of {found.duplicate_window_ms / 1000:g} s, "
            f"not {options.duplicate_window_ms / 1000:g} s: it is used as it is"
        )
    if strategy is not Strategy.LEASE and found.max_age_ms != options.max_age_ms:
        kept = f"keeps claims for {found.max_age_ms / 1000:g} s" if found.max_age_ms else "keeps claims for ever"
        said.append(f"{name} {kept}, not for {options.max_age_ms / 1000:g} s: it is used as it is")
    if strategy is Strategy.LEASE and found.max_age_ms:
        age_s = found.max_age_ms / 1000
        said.append(f"{name} forgets a job {age_s:g} s after its last change (its TTL): its slots can run again")
    least = KEPT_OF_A_SLOT if strategy is Strategy.CAS else 1
    for limit, few in (("max_msgs", 1), ("max_bytes", 1), ("max_msgs_per_subject", 1)):
        value = int(config.get(limit, -1))
        if value < few or (limit == "max_msgs_per_subject" and strategy is not Strategy.MSG_ID and value >= least):
            continue
        if strategy is Strategy.LEASE and config.get("discard") == "new":
            continue
        said.append(f"{name} has {limit}={value}: it drops claims before their time, and their slots can run again; leave it out")
    if int(config.get("num_replicas", 1)) != options.replicas:
        said.append(f"{name} has replicas={config.get('num_replicas', 1)}, not {options.replicas}: it is used as it is")
    return said
