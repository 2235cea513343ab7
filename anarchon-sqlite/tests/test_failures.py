"""Calls that are cancelled or cut, locks that stay, files that go: all or nothing, and the next call works (C22-C24)."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from anarchon.clock import Clock, SystemClock
from anarchon.errors import BackendError, BackendTimeout, BackendUnavailable
from anarchon.types import Claim, ClaimRequest, Outcome, RunKey, RunResult, RunStatus, new_token
from anarchon_sqlite import SQLiteBackend

T0 = 1_800_000_000_000
KEY = RunKey("sync", T0)
DONE = RunResult(RunStatus.SUCCESS)


class StoreClock(Clock):
    """A store's clock that a test sets."""

    def __init__(self) -> None:
        self.now_ms = float(T0)

    def wall_ms(self) -> float:
        return self.now_ms


def ask(key: RunKey = KEY, token: str | None = None, *, exclusive: bool = False) -> ClaimRequest:
    return ClaimRequest(key=key, token=token or new_token(), instance="test", lease_ms=1000, exclusive=exclusive)


def use(backend: SQLiteBackend, play: Callable[[SQLiteBackend], Awaitable[None]]) -> None:
    async def main() -> None:
        await backend.open()
        try:
            await play(backend)
        finally:
            await backend.close()

    asyncio.run(main())


def raw(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, timeout=5)


async def taken_up(backend: SQLiteBackend) -> None:
    """Wait until the thread has begun with what was asked."""
    worker = backend._writer._worker
    assert worker is not None
    while not worker._tx.empty():
        await asyncio.sleep(0)


def test_c22_a_cancelled_claim_has_no_effect_and_harms_no_later_call(path: Path) -> None:
    async def play(backend: SQLiteBackend) -> None:
        with closing(raw(path)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            claim = asyncio.create_task(backend.claim(ask()))
            await taken_up(backend)
            claim.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claim
            writer.execute("ROLLBACK")
        assert (await backend.claim(ask())).won  # C22: the cancelled claim did not take the run
        assert len(await backend.history("sync", limit=9)) == 1

    use(SQLiteBackend(path, clock=StoreClock()), play)


@pytest.mark.parametrize("steps", range(12))
def test_c22_cancelled_at_any_step_a_call_is_all_or_nothing(path: Path, steps: int) -> None:
    async def play(backend: SQLiteBackend) -> None:
        for number in range(20):
            key = RunKey("sync", T0 - number)
            request = ask(key)
            claim = asyncio.create_task(backend.claim(request))
            for _ in range(steps):
                await asyncio.sleep(0)
            claim.cancel()
            await asyncio.wait([claim])
            assert await backend.claim(request) == Claim(Outcome.WON, 1, T0)
            assert await backend.finish(key, request.token, DONE)
        records = await backend.history("sync", limit=99)
        assert [record.status for record in records] == [RunStatus.SUCCESS] * 20

    use(SQLiteBackend(path, clock=StoreClock(), synchronous="normal"), play)


def test_c22_a_loop_that_ends_under_a_call_leaves_the_backend_usable(path: Path) -> None:
    backend = SQLiteBackend(path, clock=StoreClock())
    loop = asyncio.new_event_loop()
    loop.run_until_complete(backend.open())
    with closing(raw(path)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        call = loop.create_task(backend.claim(ask()))
        loop.run_until_complete(asyncio.sleep(0))
        call.cancel()
        loop.run_until_complete(asyncio.wait([call]))
        loop.close()
        writer.execute("ROLLBACK")

    async def again() -> None:
        assert (await backend.claim(ask())).won
        await backend.close()

    asyncio.run(again())


def test_c22_many_claims_share_a_transaction_and_a_bad_one_spoils_none(path: Path) -> None:
    async def play(backend: SQLiteBackend) -> None:
        requests = [ask(RunKey(f"job{number}", T0)) for number in range(100)]
        requests[50] = replace(requests[50], lease_ms=2**63)
        requests[60] = replace(requests[60], key=RunKey("job60", -(2**64)), max_late_ms=2**70)
        answers = await backend.claim_many(requests)
        bad = [number for number, answer in enumerate(answers) if isinstance(answer, BackendError)]
        assert bad == [50, 60]
        assert all(isinstance(answer, BackendError) or answer.won for answer in answers)
        assert len(await backend.jobs()) == 98
        renewed = await backend.renew_many([(request.key, request.token, 5) for request in requests[:50]])
        assert renewed == [True] * 50
        with pytest.raises(BackendError, match="cannot hold this value"):
            await backend.claim(requests[50])

    use(SQLiteBackend(path, clock=StoreClock()), play)


def test_c23_a_writer_busy_for_8_s_ends_in_a_timeout_and_later_claims_work(path: Path) -> None:
    clock = SystemClock()

    async def play(backend: SQLiteBackend) -> None:
        request = ask(RunKey("sync", await backend.now_ms()))
        with closing(raw(path)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            began_ms = clock.monotonic_ms()
            with pytest.raises(BackendTimeout, match=r"cron\.db stayed locked"):
                await backend.claim(request)
            assert clock.monotonic_ms() - began_ms < backend.limits.call_timeout_ms
            again = asyncio.create_task(backend.claim(request))
            await asyncio.wait([again], timeout=(8000 - (clock.monotonic_ms() - began_ms)) / 1000)
            assert not again.done()
            writer.execute("ROLLBACK")
        assert (await again).won

    use(SQLiteBackend(path), play)


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced", "cron.db-wal", "cron.db-shm"])
def test_c23_a_file_that_is_moved_deleted_or_replaced_fails_closed(path: Path, how: str) -> None:
    async def play(backend: SQLiteBackend) -> None:
        assert (await backend.claim(ask())).won
        for name in (path, path.with_name("cron.db-wal"), path.with_name("cron.db-shm")):
            if how not in ("cron.db-wal", "cron.db-shm") or how == name.name:
                os.link(name, f"{name}.kept")
                name.unlink()
        if how == "replaced":
            path.write_bytes(b"")
        for _ in range(2):
            with pytest.raises(BackendUnavailable, match=r"cron\.db .*was moved, deleted or replaced"):
                await backend.claim(ask(RunKey("sync", T0 - 1)))
            with pytest.raises(BackendUnavailable):
                await backend.check([KEY])
        if how == "moved":
            for name in (path, path.with_name("cron.db-wal"), path.with_name("cron.db-shm")):
                Path(f"{name}.kept").rename(name)
            assert (await backend.claim(ask(RunKey("sync", T0 - 1)))).won

    use(SQLiteBackend(path, clock=StoreClock()), play)


def test_c23_closing_ends_a_wait_for_the_lock_at_once(path: Path) -> None:
    async def main() -> None:
        backend = SQLiteBackend(path, busy_timeout=60, clock=StoreClock())
        await backend.open()
        with closing(raw(path)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            claim = asyncio.create_task(backend.claim(ask()))
            await taken_up(backend)
            await backend.close()
            with pytest.raises(BackendUnavailable, match="given up"):
                await claim
            writer.execute("ROLLBACK")
        with pytest.raises(BackendUnavailable, match="not open"):
            await backend.claim(ask())

    asyncio.run(main())


def test_c24_closing_twice_leaves_no_file_open(path: Path) -> None:
    def open_files() -> list[str]:
        names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if Path(f"/proc/self/fd/{fd}").exists()]
        return [name for name in names if "cron.db" in name]

    async def main() -> None:
        backend = SQLiteBackend(path)
        await backend.open()
        await backend.open()
        assert open_files()
        await backend.close()
        await backend.close()
        assert open_files() == []

    asyncio.run(main())
