"""From a URL to the backend of its strategy."""

from __future__ import annotations

from anarchon.url import BackendUrl

from anarchon_nats.base import NatsBase
from anarchon_nats.first import NatsCasBackend, NatsMsgIdBackend
from anarchon_nats.lease import NatsLeaseBackend
from anarchon_nats.options import Strategy, options_from_url

__all__ = ["from_url"]

_KINDS: dict[Strategy, type[NatsBase]] = {kind.strategy: kind for kind in (NatsLeaseBackend, NatsCasBackend, NatsMsgIdBackend)}


def from_url(url: str | BackendUrl) -> NatsBase:
    """Build the backend that a URL describes, without touching the store.

    Raises:
        UrlError: an option is unknown or its value cannot be used.
    """
    address, options = options_from_url(BackendUrl.of(url))
    return _KINDS[options.strategy].of(address, options)
