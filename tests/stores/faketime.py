"""Servers whose clock a test can step: they run under Debian's libfaketime, which leaves their monotonic clock alone."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from stores.postgres import Postgres, as_postgres
from stores.redis import Redis70
from stores.server import Server

__all__ = ["Stepped", "SteppedPostgres", "SteppedRedis70"]


class Stepped(Server):
    """A server under the library that fakes the time; its clock is right until it is stepped."""

    @staticmethod
    def library() -> Path | None:
        """Return the library, or None."""
        return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)

    @classmethod
    def absent(cls) -> str | None:
        return super().absent() or (None if cls.library() else f"{cls.name}: package libfaketime not installed")

    @property
    def clock(self) -> Path:
        """The file that says how far the server's clock is off."""
        return self.folder / "clock"

    def prepare(self) -> None:
        """Make the data folder, and a clock that is right."""
        super().prepare()  # type: ignore[safe-super]  # a kind of server comes after this class
        self.step_clock(0)

    def faked(self) -> dict[str, str]:
        """Return the variables that load the library."""
        return {
            "LD_PRELOAD": str(self.library()),
            "FAKETIME_TIMESTAMP_FILE": str(self.clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def step_clock(self, offset_ms: int) -> None:
        """Set the server's clock so far off the machine's, at once and for every connection."""
        fresh = self.clock.with_suffix(".new")
        fresh.write_text(f"{offset_ms / 1000:+.3f}s\n")
        fresh.chmod(0o644)
        fresh.replace(self.clock)


class SteppedPostgres(Stepped, Postgres):
    """A PostgreSQL server whose clock can be stepped."""

    name: ClassVar[str] = "PostgreSQL with a clock to step"

    def command(self) -> list[str]:
        """Return the postmaster with the library loaded into it alone: what changes the user must not meet it first."""
        words, before = super().command(), as_postgres(self.folder)
        return [*(before or ["env"]), *(f"{name}={value}" for name, value in self.faked().items()), *words[len(before) :]]


class SteppedRedis70(Stepped, Redis70):
    """A Redis 7.0 server whose clock can be stepped."""

    name: ClassVar[str] = "Redis 7.0 with a clock to step"

    def environment(self) -> dict[str, str]:
        """Return the variables of the server process, with the library, and with libc's malloc before jemalloc's.

        jemalloc asks for the time while it starts, and the library asks it for memory to answer.
        """
        faked = self.faked()
        return {**super().environment(), **faked, "LD_PRELOAD": f"{faked['LD_PRELOAD']} libc.so.6"}
