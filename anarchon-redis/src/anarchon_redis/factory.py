"""From a URL to the backend of its strategy."""

from __future__ import annotations

from anarchon.url import BackendUrl

from anarchon_redis.base import RedisBase
from anarchon_redis.lease import RedisLeaseBackend
from anarchon_redis.options import Strategy, options_from_url
from anarchon_redis.streams import RedisIdmpBackend, RedisScriptBackend, RedisStreamIdBackend

__all__ = ["from_url"]

_KINDS: dict[Strategy, type[RedisBase]] = {
    kind.strategy: kind for kind in (RedisLeaseBackend, RedisStreamIdBackend, RedisIdmpBackend, RedisScriptBackend)
}


def from_url(url: str | BackendUrl) -> RedisBase:
    """Build the backend that a URL describes, without touching the store.

    Raises:
        UrlError: an option is unknown or its value cannot be used.
    """
    address, options = options_from_url(BackendUrl.of(url))
    return _KINDS[options.strategy].of(address, options)
