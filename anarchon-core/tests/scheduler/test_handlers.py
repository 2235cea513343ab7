"""Handlers: what may be one, and what each way of ending means for the run."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Annotated, Any

import pytest
from anarchon import Run
from anarchon.errors import OptionError
from anarchon.handlers import Ended, Handler, HandlerHost, How
from anarchon.types import RunKey
from rig import DEADLINE_S

RUN = Run(RunKey("job", 1_000), 1, "t", "i")


class Callables:
    """Methods and objects that are called."""

    def method(self, run: Run) -> Run:
        return run

    async def __call__(self, run: Run) -> None: ...


def takes_nothing() -> str:
    return "called"


def takes_run(run: Run) -> Run:
    return run


def takes_run_by_type(attempt: Run) -> Run:
    return attempt


def takes_run_or_none(this: Run | None) -> Run | None:
    return this


def takes_run_and_defaults(run: Run, size: int = 5, *, flag: bool = False) -> Run:
    return run


def takes_anything(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    return args, kwargs


def takes_annotated(size: Annotated[int, {"unit": "s"}] = 1) -> str:
    return "called"


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (takes_nothing, None),
        (takes_run, "run"),
        (takes_run_by_type, "attempt"),
        (takes_run_or_none, "this"),
        (takes_run_and_defaults, "run"),
        (takes_anything, None),
        (takes_annotated, None),
        (Callables().method, "run"),
        (Callables(), "run"),
        (functools.partial(takes_run_and_defaults, size=7), "run"),
        (print, None),
        (lambda run: run, "run"),
    ],
)
def test_a_handler_gets_the_run_where_it_asks_for_it(function: Callable[..., Any], argument: str | None) -> None:
    handler = Handler.of(function)
    assert handler.run_argument == argument
    if argument is not None and not handler.is_async:
        assert handler.bind(RUN)() is RUN


def asks_for_more(run: Run, database: str) -> None: ...


def asks_for_a_stranger(database: str) -> None: ...


def positional_only(run: Run, /) -> None: ...


def a_generator() -> Iterator[int]:
    yield 1


async def an_async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (asks_for_more, "asks for 'database'"),
        (asks_for_a_stranger, "asks for 'database'"),
        (positional_only, "asks for 'run'"),
        (5, "is no function"),
        ("report", "is no function"),
        (a_generator, "yield"),
        (an_async_generator, "yield"),
        (functools.partial(a_generator), "yield"),
    ],
)
def test_what_nobody_can_call_or_what_would_run_nothing_is_refused(function: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Handler.of(function)


def test_async_handlers_are_recognised_through_partials_and_objects() -> None:
    async def plain() -> None: ...

    assert Handler.of(plain).is_async
    assert Handler.of(functools.partial(plain)).is_async
    assert Handler.of(Callables()).is_async
    assert not Handler.of(takes_run).is_async


def ended(handler: Callable[..., Any]) -> Ended:
    """Run a handler on a loop of its own and return how it ended."""

    async def main() -> Ended:
        execution = HandlerHost(asyncio.get_running_loop()).start(Handler.of(handler), RUN)
        return await asyncio.wait_for(execution.done, DEADLINE_S)

    return asyncio.run(main())


def test_returning_raising_and_cancelling_itself() -> None:
    async def returns() -> int:
        return 5

    async def raises() -> None:
        msg = "first line\nsecond line"
        raise ValueError(msg)

    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    def sync_raises() -> None:
        raise KeyError("x")

    assert ended(returns).how is How.RETURNED
    assert ended(takes_nothing).how is How.RETURNED
    failure = ended(raises)
    assert (failure.how, failure.error) == (How.RAISED, "ValueError: first line second line")
    assert failure.trace is not None
    assert "raises" in failure.trace
    assert ended(sync_raises).error == "KeyError: 'x'"
    assert ended(cancels_itself).how is How.CANCELLED


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_k5_a_handler_that_wants_to_end_the_process_only_fails(error: BaseException) -> None:
    async def quits() -> None:
        raise error

    def sync_quits() -> None:
        raise error

    for handler in (quits, sync_quits):
        end = ended(handler)
        assert end.how is How.RAISED
        assert type(error).__name__ in (end.error or "")


def test_k5_an_error_whose_text_cannot_be_made_is_an_error_all_the_same() -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            msg = "no text"
            raise RuntimeError(msg)

    async def raises() -> None:
        raise Hostile

    def sync_raises() -> None:
        raise Hostile

    for handler in (raises, sync_raises):
        end = ended(handler)
        assert end.how is How.RAISED
        assert "Hostile" in (end.error or "")


def test_an_error_is_one_bounded_line() -> None:
    def raises() -> None:
        raise ValueError("x" * 10_000)

    assert len(ended(raises).error or "") <= 500


def test_a_handler_cancelled_before_its_first_step_ends_as_cancelled() -> None:
    ran: list[int] = []

    async def never() -> None:
        ran.append(1)

    async def main() -> Ended:
        busy = asyncio.new_event_loop()  # it does not run yet: the handler has not begun
        execution = HandlerHost(busy).start(Handler.of(never), RUN)
        execution.cancel()
        busy.call_soon(lambda: busy.call_later(0.01, busy.stop))
        await asyncio.to_thread(busy.run_forever)
        busy.close()
        return await asyncio.wait_for(execution.done, DEADLINE_S)

    assert asyncio.run(main()).how is How.CANCELLED
    assert ran == []


def test_a_sync_handler_that_returns_something_to_await_has_failed() -> None:
    async def work() -> None: ...

    class Later:
        def __await__(self) -> Generator[None, None, None]:
            yield None

    def forgot_async() -> Awaitable[None]:
        return work()

    def returns_awaitable() -> Awaitable[None]:
        return Later()

    for handler in (forgot_async, returns_awaitable):
        end = ended(handler)
        assert end.how is How.RAISED
        assert "async def" in (end.error or "")


def test_a_closed_application_loop_orphans_its_handlers() -> None:
    closed = asyncio.new_event_loop()
    closed.close()

    async def main() -> Ended:
        async def handler() -> None: ...

        execution = HandlerHost(closed).start(Handler.of(handler), RUN)
        return await asyncio.wait_for(execution.done, DEADLINE_S)

    assert asyncio.run(main()).how is How.ORPHANED


def test_a_loop_that_closes_under_a_handler_orphans_it_when_it_is_cancelled() -> None:
    async def main() -> Ended:
        other = asyncio.new_event_loop()
        begun = threading.Event()

        async def handler() -> None:
            begun.set()
            other.stop()
            await asyncio.Event().wait()

        execution = HandlerHost(other).start(Handler.of(handler), RUN)
        thread = threading.Thread(target=other.run_forever)
        thread.start()
        await asyncio.to_thread(thread.join, DEADLINE_S)
        assert begun.is_set()
        tasks = asyncio.all_tasks(other)
        other.close()
        execution.cancel()
        end = await asyncio.wait_for(execution.done, DEADLINE_S)
        for task in tasks:
            coroutine: Any = task.get_coro()
            coroutine.close()
            vars(asyncio.Task)["_log_destroy_pending"].__set__(task, False)  # nobody can end it any more
        return end

    assert asyncio.run(main()).how is How.ORPHANED


def test_context_variables_of_one_run_do_not_reach_the_next() -> None:
    from contextvars import ContextVar

    seen: ContextVar[int] = ContextVar("seen", default=0)
    found: list[int] = []

    async def handler() -> None:
        found.append(seen.get())
        seen.set(5)

    async def main() -> None:
        host = HandlerHost(asyncio.get_running_loop())
        for _ in range(2):
            await asyncio.wait_for(host.start(Handler.of(handler), RUN).done, DEADLINE_S)

    asyncio.run(main())
    assert found == [0, 0]
