"""The options of the backend: what may be written, as a URL or as arguments, and what is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from anarchon.errors import OptionError, UrlError
from anarchon.url import BackendUrl

__all__ = ["LIMITS", "Address", "Limit", "Options", "Strategy", "address_of", "duration_ms", "options_from_url"]

PREFIX: Final = "cron:"
PREFIX_PATTERN: Final = r"([A-Za-z0-9_.-]{1,64}:){1,8}"
CALL_TIMEOUT_MS: Final = 5_000
CONNECTIONS_MAX: Final = 16
IDMP_KEYS: Final = 10_000
"""The most keys that the server remembers for a producer, whatever the duration says."""
IDMP_RUNS: Final = IDMP_KEYS // 2
"""The runs of a job that are surely among those keys: a slot may leave a note beside its run."""
PORT: Final = 6_379
DATABASES_MAX: Final = 2**31 - 1


class Strategy(StrEnum):
    """How the store decides who is first."""

    LEASE = "lease"
    STREAM_ID = "stream-id"
    IDMP = "idmp"
    SCRIPT = "script"


@dataclass(frozen=True, slots=True)
class Limit:
    """A numeric option: its default and its limits, as written in a URL, and the strategy that knows it."""

    default: int
    least: int
    most: int
    strategy: Strategy | None = None


LIMITS: Final = {
    "duration": Limit(300, 1, 86_400, Strategy.IDMP),
    "window": Limit(300, 1, 86_400, Strategy.SCRIPT),
    "wait_replicas": Limit(0, 0, 100),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options.

    Raises:
        OptionError: a value is refused; the message says what to write.
    """

    strategy: Strategy = Strategy.LEASE
    prefix: str = PREFIX
    duration_ms: int = LIMITS["duration"].default * 1000
    window_ms: int = LIMITS["window"].default * 1000
    wait_replicas: int = 0
    cluster: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str) or not re.fullmatch(PREFIX_PATTERN, self.prefix):
            msg = f"prefix={self.prefix!r:.80} is refused: write words of A-Z, a-z, 0-9, _, . and -, each followed by a colon"
            raise OptionError(msg)
        _check("duration", self.duration_ms, scale=1000)
        _check("window", self.window_ms, scale=1000)
        _check("wait_replicas", self.wait_replicas)
        if self.duration_ms % 1000:
            msg = f"duration={self.duration_ms / 1000:g} is refused: the server counts whole seconds"
            raise OptionError(msg)
        if self.wait_replicas and self.cluster:
            msg = "wait_replicas cannot be used in cluster mode: set min-replicas-to-write on the servers instead"
            raise OptionError(msg)

    @property
    def remembers_ms(self) -> int | None:
        """How long a won run is remembered whatever the job's schedule (C6); None = as long as anybody could ask."""
        if self.strategy is Strategy.IDMP:
            return self.duration_ms
        return self.window_ms if self.strategy is Strategy.SCRIPT else None


def _check(name: str, value: int, *, scale: int = 1) -> None:
    limit = LIMITS[name]
    if isinstance(value, bool) or not isinstance(value, int) or not limit.least * scale <= value <= limit.most * scale:
        shown = f"{value / scale:g}" if isinstance(value, int) else repr(value)
        msg = f"{name}={shown} is refused: write a number from {limit.least} to {limit.most}"
        raise OptionError(msg)


def duration_ms(name: str, value: float | timedelta) -> int:
    """Return seconds or a timedelta as milliseconds.

    Raises:
        OptionError: it is neither.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not abs(seconds) <= 10**9:
        msg = f"{name}={value!r:.80} is refused: write seconds or a timedelta"
        raise OptionError(msg)
    return round(seconds * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the server is. The password is never part of a text."""

    host: str = "localhost"
    port: int = PORT
    path: str | None = None
    database: int = 0
    tls: bool = False
    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"Address({self})"

    def __str__(self) -> str:
        where = self.path or f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"
        return f"{where} database {self.database}" if self.database else where


def options_from_url(url: BackendUrl) -> tuple[Address, Options]:
    """Read `redis://[user:password@]host[:port][/database]` or `unix:///path/to/socket`, with options.

    Raises:
        UrlError: a part of it is refused.
    """
    try:
        strategy = Strategy(url.text("strategy", Strategy.LEASE, choices=tuple(Strategy)))
        written = {name for name in LIMITS if url.text(name, "") != ""}
        options = Options(
            strategy=strategy,
            prefix=url.text("prefix", PREFIX),
            duration_ms=1000 * _number(url, "duration"),
            window_ms=_seconds(url, "window"),
            wait_replicas=_number(url, "wait_replicas"),
            cluster=url.flag("cluster", default=False),
        )
        for name in sorted(written):
            owner = LIMITS[name].strategy
            if owner is not None and owner is not strategy:
                msg = f"{name} belongs to strategy={owner}, not to {strategy}: leave it out"
                raise OptionError(msg)
        address = address_of(url)
        if options.cluster and (address.path or address.database):
            msg = "a cluster is reached over TCP and has one database: write redis://host:port?cluster=true"
            raise OptionError(msg)
    except OptionError as error:
        msg = f"{url}: {error}"
        raise UrlError(msg) from None
    url.done()
    return address, options


def _number(url: BackendUrl, name: str) -> int:
    limit = LIMITS[name]
    return url.integer(name, limit.default, least=limit.least, most=limit.most)


def _seconds(url: BackendUrl, name: str) -> int:
    limit = LIMITS[name]
    return url.seconds_ms(name, limit.default * 1000, least_ms=limit.least * 1000, most_ms=limit.most * 1000)


def address_of(url: BackendUrl) -> Address:
    """Read the server's place from a URL.

    Raises:
        UrlError: the path is no database number, or no socket.
    """
    if "#" in url.raw:
        msg = f"{url}: write %23 for a # in a password or path"
        raise UrlError(msg)
    if url.scheme == "unix":
        if url.host or len(url.path) < 2:
            msg = f"{url}: write unix:///path/to/redis.sock"
            raise UrlError(msg)
        database = url.integer("db", 0, most=DATABASES_MAX)
        return Address(path=url.path, database=database, username=url.username or None, password=url.password)
    if "," in url.netloc:
        msg = f"{url}: write one host; a cluster is found through any of its nodes (cluster=true)"
        raise UrlError(msg)
    number = url.path.strip("/")
    if number and not re.fullmatch(r"[0-9]{1,9}", number, re.ASCII):
        msg = f"{url}: {number!r:.80} is no database: write its number after the host, as in redis://localhost:6379/0"
        raise UrlError(msg)
    return Address(
        host=url.host or "localhost",
        port=url.port or PORT,
        database=int(number or 0),
        tls=url.scheme == "rediss",
        username=url.username or None,
        password=url.password,
    )
