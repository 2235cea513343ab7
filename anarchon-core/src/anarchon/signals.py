"""SIGTERM and SIGINT as an orderly end."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["StopSignals"]

_log = logging.getLogger("anarchon.scheduler")


class StopSignals:
    """While in force, SIGTERM and SIGINT call a function; elsewhere than on the main thread nothing is installed."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._before: dict[int, Any] = {}
        self._pid = os.getpid()

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._caught)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        del frame
        if os.getpid() != self._pid:
            # A fork of this process (by a handler, say) has inherited this: there the signal means what it meant before.
            signal.signal(number, self._before.get(number, signal.SIG_DFL))
            os.kill(os.getpid(), number)
            return
        _log.info("%s: stopping", signal.Signals(number).name)
        self._step()

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
