"""Every error that anarchon raises on purpose. A message says what happened, where, and what to do."""

from __future__ import annotations

__all__ = [
    "AnarchonError",
    "BackendError",
    "BackendNotInstalled",
    "BackendTimeout",
    "BackendUnavailable",
    "BrokenBackend",
    "ConfigurationError",
    "ContractMismatch",
    "JobExists",
    "JobRunning",
    "LeaseLost",
    "OptionError",
    "ScheduleError",
    "SchedulerStateError",
    "StoreDamaged",
    "StoreSetupError",
    "UnknownBackend",
    "UnknownJob",
    "UrlError",
]


class AnarchonError(Exception):
    """Base of every error that anarchon raises on purpose."""


class ConfigurationError(AnarchonError, ValueError):
    """Something the caller wrote cannot work; found before anything ran."""


class ScheduleError(ConfigurationError):
    """A schedule or time zone that is refused; the message names the field, the value and what to write instead."""


class OptionError(ConfigurationError):
    """An option of a job or of the scheduler that is unknown, unsafe, or that the backend cannot honour (K10)."""


class UrlError(ConfigurationError):
    """A backend URL that cannot be read; the message never contains the password."""


class JobExists(ConfigurationError):
    """A second job under a name that is taken."""


class UnknownJob(ConfigurationError):
    """A job name that this scheduler does not hold."""


class UnknownBackend(ConfigurationError):
    """A URL scheme that no known package serves."""


class BackendNotInstalled(ConfigurationError):
    """A URL scheme whose package is known but not installed."""


class BrokenBackend(ConfigurationError):
    """A backend package that is installed but cannot be imported, or does not answer for its scheme."""


class ContractMismatch(ConfigurationError):
    """A backend package written for another version of the claim contract."""


class SchedulerStateError(AnarchonError, RuntimeError):
    """A call that the scheduler's state does not allow (started twice, not started, started in a forked child)."""


class JobRunning(AnarchonError):
    """`run_now` of a job that refuses overlap while a run of it is alive."""


class LeaseLost(AnarchonError):
    """This attempt no longer holds its run: another instance may have taken it over (K1, C15)."""


class BackendError(AnarchonError):
    """A store refused or failed a call; out of `claim` it counts as UNKNOWN (C5)."""


class BackendUnavailable(BackendError):
    """The store cannot be reached, or the connection broke; calling again may work (C23)."""


class BackendTimeout(BackendUnavailable):
    """The store did not answer within the call timeout; the call may have taken effect (C5, C23)."""


class StoreSetupError(BackendError):
    """The store cannot do what the contract needs (rights, version, file system); calling again will not help."""


class StoreDamaged(BackendError):
    """The store's data cannot be read (a corrupt file); the message names it."""
