"""The order of what a channel sends around the broker's close: a frame behind the answer would end the connection (C24)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from anarchon_rabbitmq.channels import Outbox


def test_c24_the_answer_to_a_close_waits_for_the_frame_that_waits_for_room() -> None:
    async def main() -> None:
        frames: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)
        outbox = Outbox(frames)
        await outbox.put("declaration")
        publishing = asyncio.ensure_future(outbox.put("message"))
        await asyncio.sleep(0)
        outbox.refusal = RuntimeError("refused")
        assert frames.get_nowait() == "declaration"
        assert not frames.full()
        assert not outbox.ready()  # there is room, and it is the message's
        await publishing
        assert not outbox.ready()
        assert frames.get_nowait() == "message"
        assert outbox.ready()

    asyncio.run(main())


def test_c24_a_cancelled_frame_is_not_waited_for() -> None:
    async def main() -> None:
        outbox = Outbox(asyncio.Queue(maxsize=1))
        await outbox.put("declaration")
        publishing = asyncio.ensure_future(outbox.put("message"))
        await asyncio.sleep(0)
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        assert not outbox.ready()
        assert outbox.frames.get_nowait() == "declaration"
        assert outbox.ready()

    asyncio.run(main())


def test_c24_nothing_is_sent_on_a_refused_channel_but_the_answer() -> None:
    async def main() -> None:
        outbox = Outbox(asyncio.Queue())
        outbox.refusal = RuntimeError("refused")
        with pytest.raises(RuntimeError, match="refused"):
            await outbox.put("message")
        outbox.put_nowait("answer")
        assert outbox.frames.get_nowait() == "answer"

    asyncio.run(main())
