"""Testing tools for users: a simulated fleet on virtual time, and the loop that it runs on."""

from anarchon.testing.faults import Fault, FaultKind
from anarchon.testing.loop import VirtualLoop, run_virtual
from anarchon.testing.simulate import Plan, simulate
from anarchon.testing.tape import Mark, Report

__all__ = ["Fault", "FaultKind", "Mark", "Plan", "Report", "VirtualLoop", "run_virtual", "simulate"]
