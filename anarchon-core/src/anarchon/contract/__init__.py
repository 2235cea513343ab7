"""The claim contract: numbered clauses as data, and the model of a store as a pure function."""

from anarchon.contract.clauses import CLAUSES, Clause, Scope, clause
from anarchon.contract.model import (
    Answer,
    CheckCall,
    ClaimCall,
    FinishCall,
    JobState,
    PauseCall,
    ReleaseCall,
    RenewCall,
    RunState,
    Transition,
    Window,
    step,
)

__all__ = [
    "CLAUSES",
    "Answer",
    "CheckCall",
    "ClaimCall",
    "Clause",
    "FinishCall",
    "JobState",
    "PauseCall",
    "ReleaseCall",
    "RenewCall",
    "RunState",
    "Scope",
    "Transition",
    "Window",
    "clause",
    "step",
]
