"""What a failure of Redis or of its driver means: one sentence that says what to do."""

from __future__ import annotations

from typing import Final

from anarchon.errors import BackendError, BackendTimeout, BackendUnavailable, StoreDamaged, StoreSetupError
from anarchon.url import redact
from redis import exceptions as driver

__all__ = ["FAILURES", "explain"]

FAILURES: Final = (driver.RedisError, driver.RedisClusterException, OSError)
"""Everything that the driver raises on purpose; its cluster client has a family of its own."""


def explain(error: Exception, place: str) -> BackendError:
    """Return the error of ours for one of the driver's; the caller raises it `from` the other.

    None of them says whether the call took effect (C5): the core asks again with the same token.
    """
    said = redact(str(error)) or type(error).__name__
    if isinstance(error, driver.AuthenticationError | driver.AuthorizationError | driver.NoPermissionError):
        return StoreSetupError(f"{place} refuses this user: {said}. Give it the commands and keys that the documentation lists")
    if isinstance(error, driver.ReadOnlyError):
        return BackendUnavailable(f"{place} is a replica and takes no writes; connect to the primary")
    if isinstance(error, driver.TimeoutError | TimeoutError):
        return BackendTimeout(f"{place} did not answer in time: {said}")
    if isinstance(error, driver.ClusterCrossSlotError | driver.MovedError):
        return StoreSetupError(f"{place} is part of a cluster: add cluster=true to the URL ({said})")
    if "Cluster mode is not enabled" in said or "cluster support disabled" in said:
        return StoreSetupError(f"{place} is no cluster: leave out cluster=true")
    if isinstance(error, driver.ConnectionError | driver.RedisClusterException | driver.ClusterError | OSError):
        return BackendUnavailable(f"{place} cannot be reached: {said}")
    if isinstance(error, driver.OutOfMemoryError) or said.startswith("OOM"):
        return BackendError(f"{place} is full and refuses writes: {said}")
    if "WRONGTYPE" in said:
        return StoreDamaged(f"{place}: a key of this prefix holds something else ({said}); use another prefix")
    return BackendError(f"{place}: {said}")
