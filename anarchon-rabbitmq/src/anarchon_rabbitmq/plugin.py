"""What the entry points name: the hook that makes a backend from a URL. Imports the driver only when asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from anarchon.hookspecs import hookimpl

if TYPE_CHECKING:
    from anarchon.backend import Backend
    from anarchon.url import BackendUrl

__all__ = ["CONTRACT_VERSION", "SCHEMES", "anarchon_backend"]

CONTRACT_VERSION: Final = 1
SCHEMES: Final = ("amqp", "amqps")


@hookimpl
def anarchon_backend(url: BackendUrl) -> Backend | None:
    """Serve `amqp://` and `amqps://`."""
    if url.scheme not in SCHEMES:
        return None
    from anarchon_rabbitmq.main import RabbitMQBackend

    return RabbitMQBackend.from_url(url)
