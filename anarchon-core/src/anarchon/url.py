"""Backend URLs: typed options, an unknown option is an error, a password is never shown."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from anarchon.errors import UrlError

__all__ = ["BackendUrl", "redact"]

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_SECRET_KEYS = re.compile(r"(?i)([?&;](?:[a-z_]*(?:password|passwd|secret|token|apikey|api_key))=)[^&;#\s]*")
_URL = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)(?P<rest>[^\s\"'<>]*)")
_HOST_AND_PORT = re.compile(r"[^:]*:[0-9]*")


def redact(text: str) -> str:
    """Return a text with every password in a URL of it replaced by `***`, also one that should have been encoded."""
    return _SECRET_KEYS.sub(r"\1***", _URL.sub(lambda match: match["scheme"] + _without_password(match["rest"]), text))


def _without_password(rest: str) -> str:
    place = re.split("[/?#]", rest, maxsplit=1)[0]
    # `user:pa#ss@host`: what looks like the end of the host is a character of the password.
    raw = "@" not in place and "@" in rest and ":" in place and not _HOST_AND_PORT.fullmatch(place)
    account, at, after = (rest if raw else place).rpartition("@")
    if not at:
        return rest
    name, colon, _ = account.partition(":")
    tail = "" if raw else rest[len(place) :]
    return f"{name}{colon}{'***' if colon else ''}@{after}{tail}"


def _split(raw: str) -> SplitResult:
    """Split a URL; its authority may name several hosts, which some versions of Python refuse where one is in brackets."""
    scheme, _, rest = raw.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    if "," not in authority.rpartition("@")[2]:
        return urlsplit(raw)
    return urlsplit(f"{scheme}://hosts{rest[len(authority) :]}")._replace(netloc=authority)


@dataclass(slots=True)
class BackendUrl:
    """A URL whose options a backend takes one by one; `done` refuses what nobody took.

    `raw` may be handed to a driver; `str()` and `repr()` are safe to print.
    """

    raw: str = field(repr=False)
    _parts: SplitResult = field(init=False, repr=False)
    _options: dict[str, str] = field(init=False, repr=False)
    _asked: list[str] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.raw, str) or "://" not in self.raw:
            msg = f"{redact(str(self.raw))!r:.200} is no backend URL: write scheme://..., for example sqlite:///cron.db"
            raise UrlError(msg)
        if not self.raw.isprintable() or len(self.raw) > 4_096:
            msg = "a backend URL is at most 4,096 printable characters"
            raise UrlError(msg)
        try:
            self._parts = _split(self.raw)
            _ = self.port
            pairs = parse_qsl(self._parts.query, keep_blank_values=True, strict_parsing=bool(self._parts.query))
        except ValueError:  # its text may quote the password
            hint = "check host and port, and write special characters of a name or password as %40 (@), %23 (#), %2F (/)"
            msg = f"{self} cannot be read: {hint}"
            raise UrlError(msg) from None
        self._options = {}
        for name, value in pairs:
            if name in self._options:
                msg = f"{self}: the option {name!r} stands twice; keep one"
                raise UrlError(msg)
            self._options[name] = value

    @classmethod
    def of(cls, url: str | Self) -> Self:
        """Return a fresh URL with no option taken."""
        return cls(url if isinstance(url, str) else url.raw)

    def __str__(self) -> str:
        return redact(self.raw)

    def __repr__(self) -> str:
        return f"BackendUrl({str(self)!r})"

    @property
    def scheme(self) -> str:
        """The scheme in lower case; it chooses the backend."""
        return self.raw.partition("://")[0].lower()

    @property
    def host(self) -> str | None:
        """The host name, or None."""
        return self._parts.hostname

    @property
    def port(self) -> int | None:
        """The port, or None; None also where several hosts are named: their backend reads `netloc` itself."""
        return None if "," in self._parts.netloc.rpartition("@")[2] else self._parts.port

    @property
    def username(self) -> str | None:
        """The user name with percent signs decoded, or None."""
        return None if self._parts.username is None else unquote(self._parts.username)

    @property
    def password(self) -> str | None:
        """The password with percent signs decoded, or None. Hand it to the driver only."""
        return None if self._parts.password is None else unquote(self._parts.password)

    @property
    def path(self) -> str:
        """The path with percent signs decoded."""
        return unquote(self._parts.path)

    @property
    def netloc(self) -> str:
        """Host list and user part as written; may hold a password."""
        return self._parts.netloc

    def without_options(self, *names: str) -> str:
        """Return the raw URL with the named options (all if none is named) removed, to hand on to a driver."""
        kept = (
            [] if not names else [part for part in self._parts.query.split("&") if part and part.partition("=")[0] not in names]
        )
        return self._parts._replace(query="&".join(kept)).geturl()

    def text(self, name: str, default: str, *, choices: tuple[str, ...] = ()) -> str:
        """Take an option as text.

        Raises:
            UrlError: it is not one of `choices`.
        """
        value = self._take(name)
        if value is None:
            return default
        if choices and value not in choices:
            msg = f"{self}: {name}={value!r} is refused: write one of {', '.join(choices)}"
            raise UrlError(msg)
        return value

    def integer(self, name: str, default: int, *, least: int = 0, most: int = 2**53) -> int:
        """Take an option as a whole number within limits.

        Raises:
            UrlError: it is no whole number, or outside the limits.
        """
        value = self._take(name)
        if value is None:
            return default
        if not re.fullmatch(r"-?[0-9]{1,16}", value, re.ASCII) or not least <= int(value) <= most:
            msg = f"{self}: {name}={value!r} is refused: write a whole number from {least} to {most}"
            raise UrlError(msg)
        return int(value)

    def seconds_ms(self, name: str, default_ms: int, *, least_ms: int = 0, most_ms: int = 10**12) -> int:
        """Take an option written in seconds (fractions allowed) and return milliseconds.

        Raises:
            UrlError: it is no number, or outside the limits.
        """
        value = self._take(name)
        if value is None:
            return default_ms
        if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,3})?", value, re.ASCII):
            whole, _, part = value.partition(".")
            result = int(whole) * 1000 + int(part.ljust(3, "0") or 0)
            if least_ms <= result <= most_ms:
                return result
        msg = f"{self}: {name}={value!r} is refused: write seconds from {least_ms / 1000:g} to {most_ms / 1000:g}"
        raise UrlError(msg)

    def flag(self, name: str, *, default: bool) -> bool:
        """Take an option as yes or no.

        Raises:
            UrlError: it is neither.
        """
        value = self._take(name)
        if value is None:
            return default
        if value.lower() in _TRUE | _FALSE:
            return value.lower() in _TRUE
        msg = f"{self}: {name}={value!r} is refused: write true or false"
        raise UrlError(msg)

    def _take(self, name: str) -> str | None:
        self._asked.append(name)
        return self._options.get(name)

    def done(self) -> None:
        """Refuse every option that was not taken.

        Raises:
            UrlError: naming the option and the nearest known one.
        """
        for name in self._options:
            if name not in self._asked:
                near = get_close_matches(name, self._asked, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known options: {', '.join(sorted(set(self._asked))) or 'none'}"
                msg = f"{self}: unknown option {name!r}; {hint}"
                raise UrlError(msg)
