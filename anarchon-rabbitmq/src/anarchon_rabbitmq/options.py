"""The options of the backend: what may be written, as a URL or as arguments, and what is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from anarchon.errors import OptionError, UrlError
from anarchon.url import BackendUrl

__all__ = ["JOB_NAME", "SLOT_TTL", "Address", "Options", "Strategy", "address_of", "options_from_url", "slot_ttl_ms"]

PREFIX: Final = "cron."
PREFIX_PATTERN: Final = r"(?=.{2,64}$)([A-Za-z0-9_-]+\.)+"
JOB_NAME: Final = r"[A-Za-z0-9_-]{1,100}"
"""A queue's name has 255 bytes, and so has the sentence in which the broker names a queue and says what it has."""
CALL_TIMEOUT_MS: Final = 5_000
PORTS: Final = {"amqp": 5_672, "amqps": 5_671}


class Strategy(StrEnum):
    """How the broker decides who is first."""

    TOKEN = "token"  # noqa: S105 - a strategy, no secret
    GATE = "gate"


@dataclass(frozen=True, slots=True)
class Limit:
    """A numeric option in seconds: its default and its limits."""

    default: int
    least: int
    most: int


SLOT_TTL: Final = Limit(300, 1, 604_800)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options.

    Raises:
        OptionError: a value is refused; the message says what to write.
    """

    strategy: Strategy = Strategy.TOKEN
    prefix: str = PREFIX
    slot_ttl_ms: int = SLOT_TTL.default * 1000

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str) or not re.fullmatch(PREFIX_PATTERN, self.prefix):
            msg = (
                f"prefix={self.prefix!r:.80} is refused: write words of A-Z, a-z, 0-9, _ and -, each followed by a dot, "
                "at most 64 characters"
            )
            raise OptionError(msg)
        ttl_ms = self.slot_ttl_ms
        if not SLOT_TTL.least * 1000 <= ttl_ms <= SLOT_TTL.most * 1000:
            msg = f"slot_ttl={ttl_ms / 1000:g} is refused: write seconds from {SLOT_TTL.least} to {SLOT_TTL.most}"
            raise OptionError(msg)


def slot_ttl_ms(value: float | timedelta) -> int:
    """Return seconds or a timedelta as milliseconds.

    Raises:
        OptionError: it is neither.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not abs(seconds) <= 10**9:
        msg = f"slot_ttl={value!r:.80} is refused: write seconds or a timedelta"
        raise OptionError(msg)
    return round(seconds * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the broker is. The password is never part of a text."""

    host: str = "localhost"
    port: int = PORTS["amqp"]
    vhost: str = "/"
    tls: bool = False
    username: str = "guest"
    password: str = "guest"  # noqa: S105 - the broker's own default account, which it accepts from the loopback only

    def __repr__(self) -> str:
        return f"Address({self})"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" + ("" if self.vhost == "/" else f" virtual host {self.vhost!r:.80}")


def options_from_url(url: BackendUrl, defaults: Options | None = None) -> tuple[Address, Options]:
    """Read `amqp://[user:password@]host[:port][/vhost]` with options; what the URL does not say is as `defaults` say.

    Raises:
        UrlError: a part of it is refused.
    """
    known = defaults or Options()
    limits = {"least_ms": SLOT_TTL.least * 1000, "most_ms": SLOT_TTL.most * 1000}
    try:
        options = Options(
            strategy=Strategy(url.text("strategy", known.strategy, choices=tuple(Strategy))),
            prefix=url.text("prefix", known.prefix),
            slot_ttl_ms=url.seconds_ms("slot_ttl", known.slot_ttl_ms, **limits),
        )
    except OptionError as error:
        if isinstance(error, UrlError):
            raise
        msg = f"{url}: {error}"
        raise UrlError(msg) from None
    address = address_of(url)
    url.done()
    return address, options


def address_of(url: BackendUrl) -> Address:
    """Read the broker's place from a URL.

    Raises:
        UrlError: it names several hosts, or a fragment.
    """
    if "#" in url.raw:
        msg = f"{url}: write %23 for a # in a password or virtual host"
        raise UrlError(msg)
    if "," in url.netloc:
        msg = f"{url}: write one host: a name that leads to every node of a cluster, or a load balancer"
        raise UrlError(msg)
    plain = Address()
    return Address(
        host=url.host or plain.host,
        port=url.port or PORTS[url.scheme],
        vhost=url.path[1:] or plain.vhost,
        tls=url.scheme == "amqps",
        username=plain.username if url.username is None else url.username,
        password=plain.password if url.password is None else url.password,
    )
