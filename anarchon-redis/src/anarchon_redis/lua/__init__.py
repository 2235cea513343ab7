"""The scripts, one file each; a file `_<family>.lua` holds what the scripts of a family share and stands before each.

Every script is one step of the store (C3): Redis runs it from start to end before it does anything else.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Final

__all__ = ["SOURCES", "load"]

SOURCES: dict[str, str] = {}
"""Every script by its SHA-1, which is how EVALSHA calls it."""

_FOLDER: Final = resources.files(__name__)


def load(family: str, name: str, *more: str) -> str:
    """Read a script of a family, with what it needs of other families, and return its SHA-1."""
    files = (*(f"_{other}.lua" for other in (family, *more)), f"{family}_{name}.lua")
    source = "\n".join((_FOLDER / file).read_text("utf-8") for file in files)
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    SOURCES[sha] = source
    return sha
