"""One database file: how a connection to it is made, set up and trusted. Everything here runs on a worker's thread."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from typing import Final

from anarchon.clock import Clock, SystemClock
from anarchon.errors import BackendTimeout, BackendUnavailable, StoreSetupError

from anarchon_sqlite.failures import explain_open, is_busy, why_not_writable
from anarchon_sqlite.options import Options
from anarchon_sqlite.sql import SCHEMA, SCHEMA_VERSION, Sql, name_tables

__all__ = ["Database", "use_wal"]

Place = tuple[tuple[int, int], ...]
"""Device and inode of the database file and of the two that SQLite keeps beside it."""

SLICE_MS: Final = 50
"""How long SQLite itself waits for a lock; between two slices we look whether the caller still wants the answer.
SQLite's own back-off grows to 100 ms and starves a process under constant load; starting it anew is fairer."""
PAUSE_MOST_MS: Final = 10
"""The longest random pause between two slices: some lock errors come at once, without SQLite's wait."""
OPEN_PAUSE_MS: Final = 5
OPEN_PAUSE_MORE_MS: Final = 25
SQLITE_LEAST: Final = (3, 24, 0)

NETWORK_HINT: Final = (
    "it refuses write-ahead logging, as network file systems (NFS, SMB, some container volumes) do: "
    "put the file on a local disk of one host, or use a server such as PostgreSQL or Redis"
)


def use_wal(connection: sqlite3.Connection, path: str) -> None:
    """Switch a database to write-ahead logging unless it is there already.

    The switch does not wait for locks, so it is left out where it can be: 8 processes that open a new file at once
    would otherwise fail at random.

    Raises:
        StoreSetupError: the file system cannot carry it.
    """
    if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
        return
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreSetupError(f"{path} cannot be shared safely: {NETWORK_HINT} (journal mode is {mode!r})")


@dataclass(slots=True)
class Database:
    """A file with the options to open it. Holds no connection, so it may cross a fork.

    `place` is what the first connection saw: a file that was moved, deleted or replaced is not our
    store any more, and writing on would hide runs from those who open the path now.
    """

    options: Options
    clock: Clock = field(default_factory=SystemClock)
    sql: Sql = field(init=False)
    closing: Event = field(init=False, default_factory=Event)
    place: Place | None = field(init=False, default=None)
    _real: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.sql = Sql.of(self.options.table)

    @property
    def path(self) -> str:
        """The absolute path of the file."""
        return self.options.path

    def begin(self) -> None:
        """Forget what an earlier opening saw."""
        self.closing.clear()
        self.place = None

    def monotonic_ms(self) -> float:
        """Return the time for deadlines: the machine's, never an injected clock that may stand still."""
        return _MACHINE.monotonic_ms()

    def pause(self, more_ms: float, *, least_ms: float = 0) -> None:
        """Wait for a random time on the worker's thread; closing the store ends the wait."""
        self.closing.wait((least_ms + _MACHINE.uniform_ms(more_ms)) / 1000)

    def connect(self, wanted: Callable[[], bool] = lambda: True) -> sqlite3.Connection:
        """Return a ready connection: WAL, tables made, statements in autocommit mode (C21).

        Raises:
            StoreSetupError: this place, file system or file cannot carry a store.
            StoreDamaged: the file is no database or is damaged.
            BackendTimeout: others kept it locked for the whole of the call timeout.
        """
        if sqlite3.sqlite_version_info < SQLITE_LEAST:
            least = ".".join(map(str, SQLITE_LEAST))
            raise StoreSetupError(f"SQLite {sqlite3.sqlite_version} is too old: anarchon needs {least} or newer")
        limit_ms = self.options.call_timeout_ms
        deadline_ms = self.monotonic_ms() + limit_ms
        while True:
            try:
                return self._connect(wanted)
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise explain_open(error, self.path) from error
                if self.closing.is_set() or not wanted() or self.monotonic_ms() >= deadline_ms:
                    msg = f"{self.path} was locked by other processes for {limit_ms} ms while it was opened: try again"
                    raise BackendTimeout(msg) from error
            self.pause(OPEN_PAUSE_MORE_MS, least_ms=OPEN_PAUSE_MS)

    def _connect(self, wanted: Callable[[], bool]) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=SLICE_MS / 1000,
            isolation_level=None,  # Python's own transactions begin deferred, and a deferred one cannot wait for the lock
            check_same_thread=False,  # made and used on the worker's thread; closed elsewhere if a start is cancelled
        )
        try:
            use_wal(connection, self.path)
            refusal = why_not_writable(self.path)
            if refusal is not None:
                raise refusal
            connection.execute(f"PRAGMA synchronous = {self.options.synchronous.upper()}")
            self._prepare(connection)
            if wanted():  # an opening that was cancelled must not tell the next one where its files lie (C22)
                self._remember_place()
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if self._version(connection) == SCHEMA_VERSION:
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = self._version(connection)  # another instance may have been here in the meantime (C21)
            if version > SCHEMA_VERSION:
                msg = (
                    f"{self.path} holds tables {self.options.table!r} of schema version {version}, this anarchon-sqlite knows "
                    f"{SCHEMA_VERSION}: upgrade anarchon-sqlite, or name other tables with ?table="
                )
                raise StoreSetupError(msg)
            if version == 0:
                self._create(connection)
            else:
                self._upgrade(connection, version)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _version(self, connection: sqlite3.Connection) -> int:
        if not connection.execute(self.sql.has_schema).fetchone():
            return 0
        return int(connection.execute(self.sql.get_version).fetchone()[0] or 0)

    def _create(self, connection: sqlite3.Connection) -> None:
        try:
            if not connection.execute(self.sql.has_schema).fetchone():
                connection.execute(self.sql.make_schema)
            self._upgrade(connection, 0)
        except sqlite3.OperationalError as error:
            if "already exists" not in str(error):
                raise
            msg = f"{self.path}: {error}, and it is not anarchon's: name other tables with ?table="
            raise StoreSetupError(msg) from error

    def _upgrade(self, connection: sqlite3.Connection, version: int) -> None:
        for number, statements in enumerate(SCHEMA[version:], version + 1):
            for statement in statements:
                connection.execute(name_tables(statement, self.options.table))
            connection.execute(self.sql.put_version, (number,))

    def _remember_place(self) -> None:
        if self.place is None:
            self._real = os.path.realpath(self.path)
            self.place = self._look()
        self.check_place()

    def _look(self) -> Place | None:
        # The files beside it as well: the locks of write-ahead logging are taken on them, beside the file a link points to.
        with suppress(OSError):
            found = [os.stat(name) for name in (self.path, self._real + "-wal", self._real + "-shm")]
            return tuple((file.st_dev, file.st_ino) for file in found)
        return None

    def check_place(self) -> None:
        """Refuse to go on with a file that no longer lies under its path.

        Raises:
            BackendUnavailable: it was moved, deleted or replaced.
        """
        if self._look() != self.place or self.place is None:
            what = f"{self.path} (or its -wal or -shm) was moved, deleted or replaced while in use"
            msg = f"{what}: put it back, or stop all instances and start anew"
            raise BackendUnavailable(msg)


_MACHINE: Final = SystemClock()
