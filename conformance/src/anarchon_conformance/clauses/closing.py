"""C24: what close lets go of."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from contextlib import suppress
from pathlib import Path

from anarchon.errors import BackendError

from anarchon_conformance.arena import Arena
from anarchon_conformance.clauses.bench import Bench
from anarchon_conformance.clauses.claiming import gate_of
from anarchon_conformance.clauses.client import Client
from anarchon_conformance.clauses.remembering import won_and_finished
from anarchon_conformance.gate import Gate, Mode, reroute
from anarchon_conformance.suite import Suite

__all__ = ["ClosingTests"]

GONE_MS = 2_000.0


class ClosingTests(Suite):
    """Nothing stays behind."""

    async def test_c24_closing_twice_works(self, arena: Arena) -> None:
        await Bench.of(arena)
        backend = arena.target.make(arena.target.url)
        await backend.open()
        await backend.close()
        await backend.close()

    async def test_c24_closing_without_opening_works(self, arena: Arena) -> None:
        await arena.target.make(arena.target.url).close()

    async def test_c24_closing_one_client_leaves_the_others(self, arena: Arena) -> None:
        bench = await Bench.of(arena, 2)
        a, b = bench.clients
        await b.backend.close()
        await bench.won(a, bench.ask(bench.key("c24")), "a claim after another client closed")

    async def test_c24_no_task_thread_or_socket_stays(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        await _open_and_close(bench, uses=2)  # the first use may start what the process keeps, such as an executor
        before = await _belongings(bench, None)
        for _ in range(3):
            await _open_and_close(bench, uses=4)
        await _nothing_stayed(bench, before, "close")

    async def test_c24_a_failed_open_leaves_nothing(self, arena: Arena) -> None:
        bench = await Bench.of(arena)
        async with gate_of(arena) as gate:
            gate.set(Mode.CUT_BEFORE)
            await _open_in_vain(bench, gate)
            before = await _belongings(bench, None)
            for _ in range(3):
                await _open_in_vain(bench, gate)
            await _nothing_stayed(bench, before, "an open that failed, and close")


async def _open_and_close(bench: Bench, *, uses: int) -> None:
    target = bench.arena.target
    backend = target.make(target.url)
    await backend.open()
    try:
        client = Client("L", backend, bench.story)
        await asyncio.gather(*(client.claim_surely(bench.ask(bench.key("c24"))) for _ in range(uses)))
        await won_and_finished(bench, client, bench.ask(bench.key("c24")))
    finally:
        await backend.close()


async def _open_in_vain(bench: Bench, gate: Gate) -> None:
    target = bench.arena.target
    backend = target.make(reroute(target.url, gate.host, gate.port))
    with suppress(BackendError, TimeoutError):
        async with asyncio.timeout(backend.limits.call_timeout_ms / 1000):
            await backend.open()
    await backend.close()


def _count() -> dict[str, int]:
    """Count what a client may leave behind."""
    gc.collect()
    files = Path("/proc/self/fd")
    return {
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "open files and sockets": len(os.listdir(files)) if files.is_dir() else 0,
    }


async def _belongings(bench: Bench, before: dict[str, int] | None) -> dict[str, int]:
    """Count, once what is on its way out had a moment to go: until the counts are back, or else stand still."""
    end_ms = bench.clock.monotonic_ms() + GONE_MS
    last = _count()
    while bench.clock.monotonic_ms() < end_ms:
        await bench.clock.sleep_ms(20)
        now = _count()
        if now == last if before is None else all(now[what] <= before[what] for what in now):
            return now
        last = now
    return last


async def _nothing_stayed(bench: Bench, before: dict[str, int], after_what: str) -> None:
    for what, count in (await _belongings(bench, before)).items():
        if count > before[what]:
            raise bench.fail(f"{count - before[what]} {what} stayed after {after_what}")
