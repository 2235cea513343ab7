"""All servers of one test session: made when first asked for, gone at its end."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Self, TypeVar

from stores import guard
from stores.server import Server

__all__ = ["Fleet"]

S = TypeVar("S", bound=Server)


class Fleet:
    """Starts servers and ends every one of them at `close`; nothing is on disk before the first."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._servers: list[Server] = []
        self._shared: dict[type[Server], Server] = {}

    def new(self, kind: type[S]) -> S:
        """Start a server that nobody else uses: it may be killed, frozen and filled at will."""
        server = kind(self._folder(kind))
        self._servers.append(server)
        return server.start()

    def adopt(self, server: S) -> S:
        """Take in a running server that was made elsewhere, to end it with the others."""
        self._servers.append(server)
        return server

    def shared(self, kind: type[S]) -> S:
        """Return the session's common server of a kind, running. Tests isolate themselves by random names in it."""
        known = self._shared.get(kind)
        if not isinstance(known, kind):
            known = self._shared[kind] = self.new(kind)
        if not known.running:
            known.start()
        return known

    def close(self) -> None:
        """Kill every server and remove all data."""
        while self._servers:
            self._servers.pop().kill()
        self._shared.clear()
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _folder(self, kind: type[Server]) -> Path:
        if self._root is None:
            # Not pytest's tmp_path: servers that refuse root must pass through, and socket paths must stay short.
            self._root = Path(tempfile.mkdtemp(prefix="anarchon-"))
            self._root.chmod(0o711)
            guard.keep_clean(self._root)
        return self._root / f"{kind.name.lower()}-{len(self._servers)}"
