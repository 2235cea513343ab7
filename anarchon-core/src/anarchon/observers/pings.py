"""Pings for dead-man services: a request after each success, another after each failure or missed slot."""

from __future__ import annotations

import logging
import queue
import threading
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from urllib.parse import urlsplit

from anarchon.errors import ConfigurationError
from anarchon.hookspecs import hookimpl
from anarchon.types import RunKey, RunStatus
from anarchon.url import redact

__all__ = ["Pings"]

WAITING_MAX = 1_000
TIMEOUT_S = 10
TRIES = 3

_log = logging.getLogger("anarchon.pings")


class Pings:
    """Sends a GET to `success[job]` after a recorded success, and to `failure[job]` after a failure or a missed slot.

    Requests leave on a thread of their own, at most three tries each; when a thousand wait, further ones are dropped
    with a log line, so that a dead service cannot hold up anything (K5, K9).

    Raises:
        ConfigurationError: an address is not http or https.
    """

    def __init__(self, success: Mapping[str, str] | None = None, failure: Mapping[str, str] | None = None) -> None:
        self._success = dict(success or {})
        self._failure = dict(failure or {})
        for job, url in [*self._success.items(), *self._failure.items()]:
            if not _usable(url):
                msg = f"the ping of {job!r} is no http or https address without a user name: {redact(url)!r}"
                raise ConfigurationError(msg)
        self._waiting: queue.Queue[str] = queue.Queue(WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @hookimpl
    def anarchon_run_finished(self, key: RunKey, status: RunStatus, recorded: bool) -> None:  # noqa: FBT001 - see hookspecs
        """Ping after a run that the store recorded."""
        if recorded:
            self._send((self._success if status is RunStatus.SUCCESS else self._failure).get(key.job))

    @hookimpl
    def anarchon_run_missed(self, key: RunKey) -> None:
        """Ping after a missed slot."""
        self._send(self._failure.get(key.job))

    def _send(self, url: str | None) -> None:
        if url is None:
            return
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="anarchon-pings", daemon=True)
                self._thread.start()
        try:
            self._waiting.put_nowait(url)
        except queue.Full:
            _log.warning("%d pings wait already; one is dropped", WAITING_MAX)

    def _work(self) -> None:
        while True:
            url = self._waiting.get()
            for attempt in range(1, TRIES + 1):
                try:
                    with urllib.request.urlopen(url, timeout=TIMEOUT_S):  # noqa: S310 - http and https only, checked above
                        break
                except (OSError, ValueError, HTTPException) as error:  # whatever an address or its server can do wrong
                    _log.warning("ping %d of %d to %s failed: %s", attempt, TRIES, redact(url), error)


def _usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    # A user name would be taken for a part of the host: it is not sent.
    named = bool(parts.hostname) and parts.username is None and port != 0
    return parts.scheme in {"http", "https"} and named and url.isprintable() and " " not in url
