"""What goes wrong in a simulation, as plain data: every fault has a time, a target and an end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Fault", "FaultKind"]


class FaultKind(StrEnum):
    """The faults of `simulate`. `amount` means what the comment says."""

    CRASH = "crash"
    """kill -9; the instance starts again after `duration_ms`"""
    RESTART = "restart"
    """an orderly stop; the instance starts again after `duration_ms`"""
    DEPLOY = "deploy"
    """an orderly stop; the instance starts again after `duration_ms` with the other job list"""
    PAUSE = "pause"
    """SIGSTOP, and SIGCONT after `duration_ms`"""
    PARTITION = "partition"
    """nothing reaches the store for `duration_ms`"""
    LOST_REPLIES = "lost_replies"
    """each reply is lost with probability `amount`"""
    LOST_REQUESTS = "lost_requests"
    """each request is lost with probability `amount`"""
    SLOW = "slow"
    """each way takes `amount` ms longer"""
    CLOCK_STEP = "clock_step"
    """the instance's wall clock moves by `amount` ms, for good"""
    STORE_STEP = "store_step"
    """the store's clock moves by `amount` ms, for good; `instance` is ignored"""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One fault: from `at_ms` after the start, on one instance, for `duration_ms`."""

    at_ms: int
    kind: FaultKind
    instance: int = 0
    duration_ms: int = 1_000
    amount: float = 0.0
