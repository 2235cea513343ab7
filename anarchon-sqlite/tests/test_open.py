"""Opening: what a file, folder or file system can be, and one clear sentence for each that cannot work (C21, C23)."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from anarchon.errors import BackendError, BackendTimeout, StoreDamaged, StoreSetupError
from anarchon.types import ClaimRequest, RunKey, new_token
from anarchon_sqlite import SQLiteBackend
from anarchon_sqlite.backend import NORMAL_WARNING
from anarchon_sqlite.database import use_wal
from anarchon_sqlite.places import file_system_of, find_mount, place_warnings
from anarchon_sqlite.sql import SCHEMA, SCHEMA_VERSION


async def open_and_close(backend: SQLiteBackend) -> None:
    try:
        await backend.open()
    finally:
        await backend.close()


def refused(path: Path, kind: type[BackendError], *words: str) -> None:
    with pytest.raises(kind) as caught:
        asyncio.run(open_and_close(SQLiteBackend(path)))
    message = str(caught.value)
    assert "\n" not in message
    for word in (str(path), *words):
        assert word in message


def put_text(path: Path) -> None:
    path.write_text("not a database, " * 500)


def put_folder(path: Path) -> None:
    path.mkdir()


def put_broken_pages(path: Path) -> None:
    asyncio.run(open_and_close(SQLiteBackend(path)))
    content = bytearray(path.read_bytes())
    content[100:] = b"\xa5" * (len(content) - 100)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("put", "kind", "word"),
    [
        (put_text, StoreDamaged, "no SQLite database or is damaged"),
        (put_broken_pages, StoreDamaged, "is damaged"),
        (put_folder, StoreSetupError, "is a directory"),
    ],
)
def test_what_is_no_database_is_refused_in_one_sentence(
    path: Path, put: Callable[[Path], None], kind: type[BackendError], word: str
) -> None:
    put(path)
    refused(path, kind, word)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    refused(tmp_path / "missing" / "cron.db", StoreSetupError, f"folder {tmp_path / 'missing'} does not exist")


def test_a_file_in_place_of_the_folder_is_named(path: Path) -> None:
    path.write_text("")
    refused(path / "cron.db", StoreSetupError, f"folder {path} does not exist")


UNPRIVILEGED = """
import asyncio, os, sys
from anarchon.errors import BackendError
from anarchon_sqlite import SQLiteBackend
from anarchon_sqlite.backend import NORMAL_WARNING
import encodings.idna
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
backend = SQLiteBackend(sys.argv[1])
async def main():
    try:
        await backend.open()
    except BackendError as error:
        print(type(error).__name__, error)
    await backend.close()
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "word"),
    [
        (0o444, 0o777, "cron.db may not be read and written by this user"),
        (0o000, 0o777, "cron.db may not be read and written by this user"),
        (0o666, 0o555, "may not be written by this user, but SQLite keeps files beside cron.db"),
        (None, 0o555, "may not be written by this user, but SQLite keeps files beside cron.db"),
    ],
)
def test_missing_rights_are_named(file_mode: int | None, folder_mode: int, word: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        file = folder / "cron.db"
        if file_mode is not None:
            asyncio.run(open_and_close(SQLiteBackend(file)))
            file.chmod(file_mode)
        folder.chmod(folder_mode)
        command = [sys.executable, "-c", UNPRIVILEGED, str(file)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        folder.chmod(0o700)
    assert said.stdout.startswith("StoreSetupError "), said.stderr
    assert word in said.stdout


def test_a_file_system_that_refuses_wal_is_refused_and_network_file_systems_are_named(path: Path) -> None:
    words = r"cron\.db cannot be shared safely.*NFS, SMB.*'delete'"
    locks_without_shared_memory = f"file:{path}?vfs=unix-dotfile"
    with closing(sqlite3.connect(locks_without_shared_memory, uri=True)) as db, pytest.raises(StoreSetupError, match=words):
        use_wal(db, str(path))


def test_a_damaged_page_found_later_names_the_file(path: Path) -> None:
    async def main() -> None:
        backend = SQLiteBackend(path)
        await backend.open()
        await backend.set_paused("sync", True)
        await backend.close()
        content = bytearray(path.read_bytes())
        with closing(sqlite3.connect(path)) as reader:
            page_size = reader.execute("PRAGMA page_size").fetchone()[0]
            root = reader.execute("SELECT rootpage FROM sqlite_master WHERE name = 'runs_jobs'").fetchone()[0]
        content[(root - 1) * page_size : root * page_size] = b"\xa5" * page_size
        path.write_bytes(content)
        await backend.open()
        with pytest.raises(StoreDamaged, match=r"cron\.db is no SQLite database or is damaged"):
            await backend.jobs()
        await backend.close()

    asyncio.run(main())


def test_another_schema_version_is_refused(path: Path) -> None:
    asyncio.run(open_and_close(SQLiteBackend(path)))
    with closing(sqlite3.connect(path)) as writer, writer:
        writer.execute("INSERT INTO runs_schema VALUES (?)", (SCHEMA_VERSION + 1,))
    refused(path, StoreSetupError, f"schema version {SCHEMA_VERSION + 1}, this anarchon-sqlite knows {SCHEMA_VERSION}", "table=")


def test_the_schema_version_is_written(path: Path) -> None:
    asyncio.run(open_and_close(SQLiteBackend(path)))
    with closing(sqlite3.connect(path)) as reader:
        assert reader.execute("SELECT version FROM runs_schema").fetchall() == [(n,) for n in range(1, len(SCHEMA) + 1)]
        assert reader.execute("PRAGMA user_version").fetchone() == (0,)  # the application's own, not ours
        assert reader.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_table_of_somebody_else_is_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as writer, writer:
        writer.execute("CREATE TABLE runs (kilometres)")
    refused(path, StoreSetupError, "already exists", "table=")
    asyncio.run(open_and_close(SQLiteBackend(path, table="cron_runs")))
    with closing(sqlite3.connect(path)) as reader:
        assert reader.execute("SELECT name FROM sqlite_master WHERE name LIKE 'runs%'").fetchall() == [("runs",)]


def test_c7_a_link_and_its_file_are_one_store(path: Path, tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / "elsewhere"
        folder.mkdir()
        (folder / "link.db").symlink_to(path)
        file, link = SQLiteBackend(path), SQLiteBackend(folder / "link.db")
        await file.open()
        await link.open()
        await link.set_paused("sync", True)
        assert [job.job for job in await file.jobs()] == ["sync"]
        await link.close()
        await file.close()

    asyncio.run(main())


def test_c21_opening_at_once_in_one_process_works(path: Path) -> None:
    async def main() -> None:
        backends = [SQLiteBackend(path) for _ in range(8)]
        await asyncio.gather(*(backend.open() for backend in backends))
        await asyncio.gather(*(backend.close() for backend in backends))

    asyncio.run(main())


def test_c22_a_cancelled_opening_can_be_repeated(path: Path) -> None:
    async def main() -> None:
        backend = SQLiteBackend(path)
        for steps in range(12):
            opening = asyncio.create_task(backend.open())
            for _ in range(steps):
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait([opening])
            await backend.close()
        await backend.open()
        assert await backend.jobs() == []
        await backend.close()

    asyncio.run(main())


def test_c23_a_file_that_stays_locked_while_it_is_opened_ends_in_a_timeout(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        refused(path, BackendTimeout, "was locked by other processes for 5000 ms")
        writer.execute("ROLLBACK")
    asyncio.run(open_and_close(SQLiteBackend(path)))


def test_nothing_is_opened_before_open(path: Path) -> None:
    backend = SQLiteBackend(path)
    assert not path.exists()
    request = ClaimRequest(key=RunKey("sync", 0), token=new_token(), instance="test")
    with pytest.raises(BackendError, match="not open"):
        asyncio.run(backend.claim(request))


MOUNTS = r"""
21 1 254:0 / / rw,relatime - ext4 /dev/root rw
22 21 0:5 / /dev rw - devtmpfs devtmpfs rw
30 21 0:40 / /srv/my\040share rw - nfs4 server:/share rw
31 21 0:41 / /run rw - tmpfs tmpfs rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind", "word"),
    [
        ("/var/cron.db", "ext4", None),
        ("/srv/my share/deep/cron.db", "nfs4", "shared between machines"),
        ("/running/cron.db", "ext4", None),
        ("/run/cron.db", "tmpfs", "forgotten when the machine restarts"),
    ],
)
def test_the_file_system_is_found_and_judged(path: str, kind: str, word: str | None) -> None:
    assert find_mount(path, MOUNTS) == kind
    assert [word in warning for warning in place_warnings(path, kind) if word] == ([True] if word else [])


def test_warnings_name_what_weakens_the_promises(path: Path) -> None:
    async def main(backend: SQLiteBackend) -> list[str]:
        await backend.open()
        try:
            return await backend.warnings()
        finally:
            await backend.close()

    place = place_warnings(str(path), file_system_of(str(path)))
    assert asyncio.run(main(SQLiteBackend(path))) == place
    assert asyncio.run(main(SQLiteBackend(path, synchronous="normal"))) == [NORMAL_WARNING, *place]


def test_c21_opening_twice_at_once_makes_one_set_of_connections(tmp_path: Path) -> None:
    backend = SQLiteBackend(tmp_path / "twice.db")

    def threads() -> int:
        return sum(thread.name == "anarchon-sqlite" for thread in threading.enumerate())

    async def scene() -> None:
        before = threads()
        await asyncio.gather(backend.open(), backend.open(), backend.open())
        assert threads() - before == 2  # one writes, one reads
        await backend.close()
        assert threads() == before

    for _ in range(2):  # the second life is on another event loop
        asyncio.run(scene())
