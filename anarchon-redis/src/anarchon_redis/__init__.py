"""Redis and Valkey as the store of anarchon: lease (the default), stream-id, idmp and script."""

from anarchon_redis.factory import from_url
from anarchon_redis.lease import RedisLeaseBackend
from anarchon_redis.options import Strategy
from anarchon_redis.streams import RedisIdmpBackend, RedisScriptBackend, RedisStreamIdBackend

__all__ = [
    "RedisIdmpBackend",
    "RedisLeaseBackend",
    "RedisScriptBackend",
    "RedisStreamIdBackend",
    "Strategy",
    "__version__",
    "from_url",
]

__version__ = "0.1.0"
