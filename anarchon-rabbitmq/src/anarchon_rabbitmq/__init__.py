"""RabbitMQ as the store of anarchon: token (the default) and gate decide who is first."""

from anarchon_rabbitmq.main import RabbitMQBackend
from anarchon_rabbitmq.options import Strategy

__all__ = ["RabbitMQBackend", "Strategy", "__version__"]

__version__ = "0.1.0"
