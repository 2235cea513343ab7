"""What a file's place says about the promises: network file systems and memory file systems weaken them."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Final

__all__ = ["file_system_of", "find_mount", "place_warnings"]

MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = frozenset(
    {
        *("9p", "afs", "afpfs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.glusterfs", "fuse.sshfs", "gfs2", "glusterfs"),
        *("gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "prl_fs", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs"),
    }
)
_VOLATILE: Final = frozenset({"ramfs", "tmpfs"})


def file_system_of(path: str) -> str | None:
    """Return the type of the file system that holds a path; None where the machine does not tell."""
    return find_mount(str(Path(path).resolve()), MOUNTS.read_text()) if MOUNTS.exists() else None


def find_mount(path: str, mounts: str) -> str | None:
    """Return the file system type of the longest mount point above a path, given the text of a mountinfo file."""
    best, kind = "", None
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) < 5 or not kinds:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        if PurePosixPath(path).is_relative_to(point) and len(point) >= len(best):
            best, kind = point, kinds[0]
    return kind


def place_warnings(path: str, kind: str | None) -> list[str]:
    """Return what a file system type means for the promises."""
    if kind in _NETWORK:
        why = "SQLite's locks do not hold between hosts there, so two instances may both win"
        return [f"{path} lies on {kind}, a file system shared between machines: {why}; use a local disk and one host"]
    if kind in _VOLATILE:
        why = "it is forgotten when the machine restarts, and a slot still within its late window may run again"
        return [f"{path} lies on {kind}: {why}"]
    return []
