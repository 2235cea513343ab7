"""What a failure of SQLite means: one sentence that names the file and says what to do."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from anarchon.errors import BackendError, BackendUnavailable, StoreDamaged, StoreSetupError

__all__ = ["explain", "explain_open", "is_busy", "is_interrupted", "why_not_writable"]

_PRIMARY: Final = 0xFF
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def _code(error: BaseException | None) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & _PRIMARY


def is_busy(error: BaseException) -> bool:
    """Whether somebody else holds a lock: trying again is right."""
    return isinstance(error, sqlite3.Error) and _code(error) in _BUSY


def is_interrupted(error: BaseException | None) -> bool:
    """Whether a statement was ended by an interrupt."""
    return _code(error) == sqlite3.SQLITE_INTERRUPT


def explain(error: sqlite3.Error, path: str) -> BackendError:
    """Return the error for a call that failed on an open database."""
    code = _code(error)
    if code in _DAMAGED:
        fix = "stop its users, then repair it (sqlite3 FILE .recover) or move it away"
        return StoreDamaged(f"{path} is no SQLite database or is damaged ({error}): {fix}")
    if code == sqlite3.SQLITE_READONLY:
        return BackendUnavailable(f"{path} cannot be written any more ({error}): check its rights and whether it was moved")
    if code == sqlite3.SQLITE_FULL:
        return BackendUnavailable(f"{path} cannot grow ({error}): free space on its disk")
    return BackendUnavailable(f"{path}: {error}")


def explain_open(error: sqlite3.Error, path: str) -> BackendError:
    """Return the error for a database that cannot be opened; looks at the file system to name the cause."""
    if _code(error) in _DAMAGED:
        return explain(error, path)
    file, folder = Path(path), Path(path).parent
    if file.is_dir():
        return StoreSetupError(f"{path} is a directory: name a database file in it")
    if not folder.is_dir():
        return StoreSetupError(f"{path} cannot be made because the folder {folder} does not exist: make it first")
    refusal = why_not_writable(path)
    if refusal is not None:
        return refusal
    if _code(error) == sqlite3.SQLITE_READONLY:
        return StoreSetupError(f"{path} lies on a read-only file system: choose another place")
    return explain(error, path)


def why_not_writable(path: str) -> StoreSetupError | None:
    """Return the error for a file or folder that this user may not write; SQLite itself only tells at the first write."""
    file, folder = Path(path), Path(path).parent
    if file.exists() and not os.access(file, os.R_OK | os.W_OK):
        return StoreSetupError(f"{path} may not be read and written by this user: change its rights or owner")
    if not os.access(folder, os.W_OK | os.X_OK):
        why = f"may not be written by this user, but SQLite keeps files beside {file.name}"
        return StoreSetupError(f"the folder {folder} {why}: change its rights")
    return None
