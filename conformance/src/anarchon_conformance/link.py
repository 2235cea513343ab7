"""One connection through the gate: the client's side, the store's side, and what became of it."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

__all__ = ["Link", "reset"]

_RESET = struct.pack("ii", 1, 0)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection the hard way, so that the peer sees a reset and not an orderly end."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


class Link:
    """One client connection and its counterpart at the store."""

    def __init__(self, down: asyncio.StreamWriter, up: asyncio.StreamWriter) -> None:
        self.down, self.up = down, up
        self.pending = bytearray()
        self.replied = asyncio.Event()
        self.ended = asyncio.Event()
        self.swallow = False
        self.silenced = False
        self.client_gone = False

    def reset(self) -> None:
        """Cut both sides."""
        self.ended.set()
        reset(self.down)
        reset(self.up)

    def send_up(self, data: bytes) -> None:
        """Let a request through; once the client is gone and nothing is pending, its end follows."""
        self.replied.clear()
        self.up.write(data)
        self.pass_end()

    def pass_end(self) -> None:
        """Hand on the client's end, after everything that it sent before."""
        if self.client_gone and not self.pending and self.up.can_write_eof() and not self.up.is_closing():
            with suppress(OSError):
                self.up.write_eof()
