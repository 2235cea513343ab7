"""A process that claims a run, waits for a word, and writes an effect with the finish of the run; it may be killed anywhere."""

from __future__ import annotations

import asyncio
import sys

from anarchon.types import ClaimRequest, RunKey
from anarchon.url import BackendUrl
from anarchon_postgres import PostgresBackend


async def main(url: str, table: str, way: str, slot_ms: int) -> None:
    backend = PostgresBackend.from_url(BackendUrl(f"{url}?table={table}"))
    await backend.open()
    key = RunKey(way, slot_ms)
    claim = await backend.claim(ClaimRequest(key=key, token="child", instance="child", lease_ms=400, max_late_ms=10**9))
    assert claim.won
    write = f"INSERT INTO {table}_effects VALUES ('{way}', {slot_ms}, 'child')"
    if way == "block":
        await wait_for_go()
        async with backend.transaction(key, "child") as connection:
            await connection.execute(write.encode())
            await connection.execute(write.encode())
    else:
        from sqlalchemy import text
        from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

        engine = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        async with engine.connect() as connection:  # the engine's own questions at its first connection are not of interest
            await connection.execute(text("SELECT 1"))
        await wait_for_go()
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(text(write))
            await session.execute(text(write))
            assert await backend.finish_in(session, key, "child")
    print("done", flush=True)
    await backend.close()


async def wait_for_go() -> None:
    """Say that the run is won, and wait until the parent holds every request."""
    print("won", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
