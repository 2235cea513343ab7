"""NATS JetStream as the store of anarchon: lease (the default), cas and msg-id."""

from anarchon_nats.factory import from_url
from anarchon_nats.first import NatsCasBackend, NatsMsgIdBackend
from anarchon_nats.lease import NatsLeaseBackend
from anarchon_nats.options import Strategy

__all__ = ["NatsCasBackend", "NatsLeaseBackend", "NatsMsgIdBackend", "Strategy", "__version__", "from_url"]

__version__ = "0.1.0"
