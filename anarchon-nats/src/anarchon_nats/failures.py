"""What a failure of NATS or of its driver means: one sentence that says what to do."""

from __future__ import annotations

from typing import Final

from anarchon.errors import BackendError, BackendUnavailable, StoreSetupError
from anarchon.url import redact
from nats import errors as driver

__all__ = ["FAILURES", "NOT_FOUND", "WRONG_SEQUENCE", "ApiError", "NoResponder", "explain", "refused_rights"]

FAILURES: Final = (driver.Error, OSError)
"""Everything that the driver raises on purpose."""

NOT_FOUND: Final = 10_037
STREAM_NOT_FOUND: Final = 10_059
WRONG_SEQUENCE: Final = (10_071, 10_164)
"""What a compare-and-set is refused with; the second on 2.12 and newer where the subject has other messages."""
NAME_TAKEN: Final = 10_058
OVERLAP: Final = 10_065
NO_LEADER: Final = (10_008, 10_009)
"""A cluster that is choosing who leads JetStream."""
_NO_JETSTREAM: Final = (10_039, 10_076)


class ApiError(driver.Error):
    """JetStream refused a request; its code says why."""

    def __init__(self, code: int, err_code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.err_code, self.text = code, err_code, text

    def __str__(self) -> str:
        return f"{self.text} ({self.err_code})"


class NoResponder(driver.Error):
    """Nobody serves a subject."""

    def __init__(self, subject: str) -> None:
        super().__init__(subject)
        self.subject = subject


def refused_rights(place: str, said: str) -> StoreSetupError:
    """Return the error for a right that this user lacks."""
    return StoreSetupError(f"{place} refuses this user: {said}. Give it the subjects that the documentation lists")


def explain(error: Exception, place: str) -> BackendError:
    """Return the error of ours for one of the driver's; the caller raises it `from` the other.

    None of them says whether the call took effect (C5): the core asks again with the same token.
    """
    if isinstance(error, ApiError):
        return _of_api(error, place)
    if isinstance(error, NoResponder):
        return BackendUnavailable(
            f"{place}: no stream takes {error.subject}; it was deleted, or its servers are still choosing a leader"
        )
    said = redact(str(error)) or type(error).__name__
    if isinstance(error, driver.MaxPayloadError):
        return BackendError(f"{place}: a message is larger than the server's max_payload: raise it, or keep fewer runs")
    if isinstance(error, driver.AuthorizationError) or "authorization" in said.lower() or "authentication" in said.lower():
        return refused_rights(place, said)
    return BackendUnavailable(f"{place} cannot be reached: {said}")


def _of_api(error: ApiError, place: str) -> BackendError:
    if error.err_code in _NO_JETSTREAM:
        return StoreSetupError(f"JetStream is not enabled for this account of {place}: enable it in the server's configuration")
    if error.err_code == STREAM_NOT_FOUND:
        return BackendUnavailable(f"{place}: the stream is gone ({error}); start the scheduler again to make it anew")
    if error.code == 503:
        return BackendUnavailable(f"{place} is not ready: {error}")
    if error.err_code in {NAME_TAKEN, OVERLAP}:
        return StoreSetupError(f"{place}: {error}; write another stream or prefix")
    return BackendError(f"{place}: {error}")
