"""What a server is, and what about it weakens the promises. Nothing here fails because a command is forbidden."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from redis import exceptions as driver

from anarchon_redis.link import Command, Link
from anarchon_redis.options import Options

__all__ = ["Server", "look", "time_ms", "warnings"]

_FORBIDDEN: Final = (driver.NoPermissionError, driver.ResponseError)
TESTED_FROM: Final = (7, 0)
TESTED: Final = "7.0"
_SETTINGS: Final = ("maxmemory-policy", "appendonly", "appendfsync", "min-replicas-to-write")


@dataclass(frozen=True, slots=True)
class Server:
    """What INFO tells; empty where it is forbidden."""

    facts: dict[str, str]

    @property
    def name(self) -> str:
        """The server's name and version, for messages."""
        if "valkey_version" in self.facts:
            return f"Valkey {self.facts['valkey_version']}"
        return f"Redis {self.facts.get('redis_version', 'of an unknown version')}"

    @property
    def older_than_tested(self) -> bool:
        """Whether this is a Redis from before `TESTED`."""
        found = re.match(r"(\d+)\.(\d+)", self.facts.get("redis_version", ""))
        if found is None or "valkey_version" in self.facts:
            return False
        return (int(found[1]), int(found[2])) < TESTED_FROM

    @property
    def cluster(self) -> bool:
        """Whether this server is a node of a cluster."""
        return self.facts.get("cluster_enabled") == "1"


async def time_ms(link: Link) -> int:
    """Return the server's clock."""
    reply: Any = await link.run_anywhere(("TIME",))
    if isinstance(reply, list | tuple):
        seconds, micros = (int(part) for part in reply)
        return seconds * 1000 + micros // 1000
    raise driver.ResponseError(f"TIME answered {reply!r:.80}")


async def look(link: Link) -> Server:
    """Return what the server says about itself; also the first command, so it connects.

    Raises:
        RedisError: the server cannot be reached or refuses this user altogether.
    """
    await time_ms(link)
    try:
        reply: Any = await link.run_anywhere(("INFO",))
    except _FORBIDDEN:
        return Server({})
    if isinstance(reply, dict):
        return Server({_text(name): _text(value) for name, value in reply.items()})
    pairs = (line.split(":", 1) for line in _text(reply).splitlines() if ":" in line and not line.startswith("#"))
    return Server(dict(pairs))


async def _settings(link: Link) -> dict[str, str] | None:
    """Return the settings that matter, or None where CONFIG is forbidden."""
    found: dict[str, str] = {}
    for name in _SETTINGS:
        command: Command = ("CONFIG", "GET", name)
        try:
            reply: Any = await link.run_anywhere(command)
        except _FORBIDDEN:
            return None
        pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
        found |= {_text(key): _text(value) for key, value in pairs}
    return found


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


async def warnings(link: Link, options: Options) -> list[str]:
    """Return what weakens the promises, one sentence each."""
    server, settings = await look(link), await _settings(link)
    said: list[str] = []
    if settings is None:
        said.append(
            "CONFIG is forbidden here, so eviction and persistence could not be checked: "
            "ask the provider for maxmemory-policy noeviction and an append-only file"
        )
    else:
        said += _of_settings(settings)
    if server.older_than_tested:
        said.append(f"this is {server.name}, and the oldest that is tested is Redis {TESTED}: expect surprises, or upgrade")
    if not server.facts:
        said.append("INFO is forbidden here, so version and replicas could not be checked")
    said += _of_replication(server, settings or {}, options)
    return said


def _of_settings(settings: dict[str, str]) -> list[str]:
    said: list[str] = []
    policy = settings.get("maxmemory-policy", "")
    if policy.startswith("allkeys"):
        said.append(
            f"maxmemory-policy is {policy}: when memory is full the server drops claims, and their slots run again; "
            "set noeviction, or use a server of its own"
        )
    if settings.get("appendonly") == "no":
        said.append(
            "appendonly is no: a crash of the server forgets every claim since the last snapshot, and their slots can run "
            "again; set appendonly yes"
        )
    elif settings.get("appendfsync") == "no":
        said.append("appendfsync is no: a power cut forgets what the system had not written yet; set everysec or always")
    elif settings.get("appendfsync") == "everysec":
        said.append(
            "appendfsync is everysec: a power cut can forget the claims of the last second, and a crash of the server while its "
            "disk is busy those of the last two; set always where each run counts"
        )
    return said


def _of_replication(server: Server, settings: dict[str, str], options: Options) -> list[str]:
    replicas = int(server.facts.get("connected_slaves", "0"))
    said: list[str] = []
    if server.facts.get("role") == "slave":
        said.append("this server is a replica: it takes no claims; connect to the primary")
    if replicas and not options.wait_replicas:
        guard = "" if settings.get("min-replicas-to-write", "0") != "0" else ", and min-replicas-to-write"
        said.append(
            f"{replicas} replicas follow asynchronously: a failover loses the claims that had not reached the new primary, and "
            f"their slots can run again; set wait_replicas{guard}"
        )
    if options.wait_replicas > replicas and server.facts:
        said.append(
            f"wait_replicas={options.wait_replicas}, but {replicas} replicas are connected: no claim can be confirmed, "
            "nothing will run"
        )
    return said
