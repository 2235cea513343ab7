"""What a failure of RabbitMQ or of its driver means: one sentence that says what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from aiormq import exceptions as driver
from anarchon.errors import BackendError, BackendTimeout, BackendUnavailable, StoreSetupError
from anarchon.url import redact
from pamqp.exceptions import PAMQPException

__all__ = ["FAILURES", "Misfit", "explain", "misfit_of"]

FAILURES: Final = (driver.AMQPError, PAMQPException, OSError, EOFError, RuntimeError)
"""Everything that the driver raises on purpose; RuntimeError is what it says on a closed connection."""

_SETUP: Final = (
    driver.AuthenticationError,
    driver.ProbableAuthenticationError,
    driver.ConnectionNotAllowed,
    driver.ChannelAccessRefused,
)
_GONE: Final = (
    driver.AMQPConnectionError,
    driver.ChannelInvalidStateError,
    driver.ChannelNotFoundEntity,
    OSError,
    EOFError,
    RuntimeError,
)
_NOT_YET: Final = ("running replica", "a replica on the local node")
"""What is said of a stream that is being made or coming back: the same question is answered soon."""
_MISFIT: Final = re.compile(r"inequivalent arg '(?P<argument>[^']+)' for queue '")
_CURRENT: Final = re.compile(r" but current is (?:the value )?'(?P<value>[^']*)(?P<end>')?")


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a declaration was refused: the argument, and as much of the existing queue's value as the broker said.

    It says at most 255 bytes, in which the queue's name and both values stand: of a long one the end is missing.
    """

    argument: str
    said: str = ""
    whole: bool = False


def misfit_of(error: BaseException) -> Misfit | None:
    """Return what a 406 names, or None if it is something else."""
    text = str(error)
    found = _MISFIT.search(text) if isinstance(error, driver.ChannelPreconditionFailed) else None
    if found is None:
        return None
    value = _CURRENT.search(text)
    return Misfit(found["argument"]) if value is None else Misfit(found["argument"], value["value"], value["end"] is not None)


def explain(error: BaseException, place: str) -> BackendError:
    """Return the error of ours for one of the driver's; the caller raises it `from` the other.

    None of them says whether the call took effect (C5).
    """
    said = redact(str(error)) or type(error).__name__
    if isinstance(error, TimeoutError):
        return BackendTimeout(f"{place} did not answer in time: {said}")
    if isinstance(error, _SETUP):
        return StoreSetupError(
            f"{place} refuses this user: {said}. Check user and password, and give configure, write and read "
            "on the queues of the prefix"
        )
    if isinstance(error, driver.InvalidFrameError) and "OpenOk" in said:  # the driver does not look at the broker's reason
        return StoreSetupError(f"{place} does not open this virtual host: make it, or give this user a permission there")
    if isinstance(error, driver.PublishError):
        return BackendUnavailable(f"{place}: a queue vanished between its declaration and the message to it: {said}")
    if isinstance(error, _GONE) or any(text in said for text in _NOT_YET):
        return BackendUnavailable(f"{place} cannot be reached: {said}")
    return BackendError(f"{place}: {said}")
