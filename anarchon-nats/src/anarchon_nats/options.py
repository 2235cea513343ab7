"""The options of the backend: what may be written, as a URL or as arguments, and what is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final
from urllib.parse import unquote

from anarchon.errors import OptionError, UrlError
from anarchon.url import BackendUrl

__all__ = ["LIMITS", "Address", "Limit", "Options", "Strategy", "duration_ms", "options_from_url"]

PREFIX: Final = "cron"
PREFIX_PATTERN: Final = r"[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64}){0,7}"
STREAM_PATTERN: Final = r"[A-Za-z0-9_-]{1,64}"
CALL_TIMEOUT_MS: Final = 5_000
PORT: Final = 4_222
SERVERS_MAX: Final = 16
_SERVER: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?")


class Strategy(StrEnum):
    """How the store decides who is first."""

    LEASE = "lease"
    CAS = "cas"
    MSG_ID = "msg-id"


FIRST: Final = (Strategy.CAS, Strategy.MSG_ID)
"""The strategies that only decide who is first."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A numeric option: its default and its limits, as written in a URL, and the strategies that know it."""

    default: int
    least: int
    most: int
    strategies: tuple[Strategy, ...] = tuple(Strategy)


LIMITS: Final = {
    "duplicate_window": Limit(300, 1, 86_400, (Strategy.MSG_ID,)),
    "max_age": Limit(86_400, 1, 31_536_000, FIRST),
    "replicas": Limit(1, 1, 5),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options.

    Raises:
        OptionError: a value is refused; the message says what to write.
    """

    strategy: Strategy = Strategy.LEASE
    prefix: str = PREFIX
    stream: str = ""
    duplicate_window_ms: int = LIMITS["duplicate_window"].default * 1000
    max_age_ms: int = LIMITS["max_age"].default * 1000
    replicas: int = LIMITS["replicas"].default

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str) or not re.fullmatch(PREFIX_PATTERN, self.prefix):
            msg = f"prefix={self.prefix!r:.80} is refused: write words of A-Z, a-z, 0-9, _ and -, with dots between them"
            raise OptionError(msg)
        if not isinstance(self.stream, str) or (self.stream and not re.fullmatch(STREAM_PATTERN, self.stream)):
            msg = f"stream={self.stream!r:.80} is refused: write 1 to 64 of A-Z, a-z, 0-9, _ and -"
            raise OptionError(msg)
        _check("duplicate_window", self.duplicate_window_ms, scale=1000)
        _check("max_age", self.max_age_ms, scale=1000)
        _check("replicas", self.replicas)
        if self.strategy is Strategy.MSG_ID and self.max_age_ms < self.duplicate_window_ms:
            msg = (
                f"max_age={self.max_age_ms / 1000:g} is refused: a claim must be kept for the whole duplicate_window "
                f"({self.duplicate_window_ms / 1000:g} s)"
            )
            raise OptionError(msg)

    @property
    def remembers_ms(self) -> int | None:
        """How long a won run is remembered whatever the job's schedule (C6); None = as long as anybody could ask."""
        if self.strategy is Strategy.LEASE:
            return None
        return self.duplicate_window_ms if self.strategy is Strategy.MSG_ID else self.max_age_ms


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
    """Where the servers are. User, password and token are never part of a text."""

    servers: tuple[tuple[str, int], ...] = (("localhost", PORT),)
    tls: bool = False
    username: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"Address({self})"

    def __str__(self) -> str:
        return ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in self.servers)


def options_from_url(url: BackendUrl) -> tuple[Address, Options]:
    """Read `nats://[user:password@]host[:port][,host[:port]...]`, with options; a user without a password is a token.

    Raises:
        UrlError: a part of it is refused.
    """
    try:
        strategy = Strategy(url.text("strategy", Strategy.LEASE, choices=tuple(Strategy)))
        written = {name for name in LIMITS if url.text(name, "") != ""}
        options = Options(
            strategy=strategy,
            prefix=url.text("prefix", PREFIX),
            stream=url.text("stream", ""),
            duplicate_window_ms=_seconds(url, "duplicate_window"),
            max_age_ms=_seconds(url, "max_age"),
            replicas=url.integer("replicas", LIMITS["replicas"].default, least=1, most=LIMITS["replicas"].most),
        )
        for name in sorted(written):
            owners = LIMITS[name].strategies
            if strategy not in owners:
                msg = f"{name} belongs to strategy={' and '.join(owners)}, not to {strategy}: leave it out"
                raise OptionError(msg)
        address = _address_of(url)
    except OptionError as error:
        msg = f"{url}: {error}"
        raise UrlError(msg) from None
    url.done()
    return address, options


def _seconds(url: BackendUrl, name: str) -> int:
    limit = LIMITS[name]
    return url.seconds_ms(name, limit.default * 1000, least_ms=limit.least * 1000, most_ms=limit.most * 1000)


def _address_of(url: BackendUrl) -> Address:
    if "#" in url.raw:
        msg = "write %23 for a # in a password"
        raise OptionError(msg)
    if url.path.strip("/"):
        msg = f"{url.path!r:.80} after the host means nothing here: write nats://host:4222, with prefix=... to keep jobs apart"
        raise OptionError(msg)
    account, _, places = url.netloc.rpartition("@")
    if "@" in account:
        msg = "write user and password once, before the first host: they are used for every server"
        raise OptionError(msg)
    name, colon, password = account.partition(":")
    return Address(
        servers=tuple(_server_of(place) for place in (places or "localhost").split(",")),
        tls=url.scheme == "tls",
        username=unquote(name) or None,
        password=unquote(password) if colon else None,
    )


def _server_of(place: str) -> tuple[str, int]:
    found = _SERVER.fullmatch(place)
    port = int(found["port"] or PORT) if found else 0
    if found is None or not 0 < port < 65_536:
        msg = f"{place!r:.80} is no server: write host or host:port, several with commas between them"
        raise OptionError(msg)
    return found["six"] or found["host"], port
