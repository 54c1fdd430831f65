"""How handlers end: a stop, a cut, a queue that is gone. The server is played."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from push.client import Message, NotFound, Problem, Pushq, Unauthenticated
from push.client.errors import SessionClosed
from push.client.frames import (
    Ack,
    Ended,
    Nack,
    Subscribe,
    Unsubscribe,
)
from tests.unit.push.client.handlers import Running, Work, begun, delivering, nacks, ran, sent
from tests.unit.push.client.played import PlayedServer, eventually, session

pytestmark = pytest.mark.anyio


async def test_stopping_lets_handlers_end_and_gives_back_what_waits() -> None:
    server, work = delivering("a", "b", "c"), Work()
    async with session(server, run_give_back_s=3600) as pushq:
        running = Running(pushq.runner("q", work, concurrency=1, prefetch=2))
        await eventually(lambda: work.begun == ["a"])
        assert running.runner.state == "running"
        running.runner.stop()
        await eventually(lambda: nacks(server))
        assert nacks(server) == [(["r-b", "r-c"], None, False)]
        assert running.runner.state == "draining" and not sent(server, Unsubscribe)
        server.connection.deliver("d")  # on its way
        await eventually(lambda: running.runner.waiting == 1)
        work.finish("a")
        await running.stopped()
        assert (running.runner.state, running.runner.waiting) == ("stopped", 0)
        await eventually(lambda: sent(server, Unsubscribe))
    assert work.begun == ["a"] and begun(server) == ["r-a"] and server.acked == ["r-a"]
    frames = [type(frame) for frame in server.frames if isinstance(frame, Ack | Nack | Unsubscribe)]
    assert frames == [Nack, Ack, Unsubscribe]


async def test_what_is_sent_to_one_that_drains_goes_back_before_its_handlers_have_ended() -> None:
    server, work = delivering("a"), Work()
    async with session(server, run_give_back_s=0.01) as pushq:
        running = Running(pushq.runner("q", work, concurrency=1, prefetch=2))
        await eventually(lambda: work.begun == ["a"])
        running.runner.stop()
        await eventually(lambda: running.runner.state == "draining")
        for id in ("b", "c"):
            server.connection.deliver(id)
            await eventually(lambda id=id: ([f"r-{id}"], None, False) in nacks(server))  # type: ignore[misc]
        assert running.runner.active == 1 and not sent(server, Unsubscribe)
        work.finish("a")
        await running.stopped()
    assert work.begun == ["a"] and server.acked == ["r-a"]


async def test_a_handler_that_takes_longer_than_the_drain_is_cancelled_and_its_message_goes_back() -> None:
    server, work = delivering("a", "b"), Work()
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work, concurrency=1, prefetch=1, drain_s=0.02))
        await eventually(lambda: work.begun == ["a"])
        await running.stopped()
        assert (running.runner.done, running.runner.failed) == (0, 1)
    assert work.cancelled == ["a"]
    assert nacks(server) == [(["r-b"], None, False), (["r-a"], 0, True)]
    assert sent(server, Nack)[1].reason == "the consumer stopped before its handler finished"


async def test_a_handler_that_makes_nothing_of_its_cancellation_has_not_done_its_work() -> None:
    server, waiting = delivering("a"), list[str]()

    async def handle(message: Message) -> None:
        waiting.append(message.id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    await ran(server, handle, lambda: waiting, drain_s=0.01)
    assert server.acked == [] and nacks(server) == [(["r-a"], 0, True)]


async def test_a_handler_that_settles_its_message_when_cancelled_has_the_last_word() -> None:
    server, waiting = delivering("a"), list[str]()

    async def handle(message: Message) -> None:
        waiting.append(message.id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await message.release()
            raise

    await ran(server, handle, lambda: waiting, drain_s=0.01)
    assert nacks(server) == [(["r-a"], None, False)]


async def test_a_handler_that_does_not_end_is_left_behind() -> None:
    server, tasks, free = delivering("a"), list[Any](), asyncio.Event()

    async def handle(message: Message) -> None:
        tasks.append(asyncio.current_task())
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    await ran(server, handle, lambda: tasks, {"close_timeout_s": 0.05}, drain_s=0.01)
    assert not tasks[0].done()
    free.set()
    await tasks[0]


async def test_stopping_at_once_waits_for_nobody() -> None:
    server, work = delivering("a", "b"), Work()
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work, concurrency=1, prefetch=1, drain_s=3600))
        await eventually(lambda: work.begun == ["a"])
        running.runner.stop()
        await eventually(lambda: running.runner.state == "draining")
        running.runner.stop(at_once=True)
        async with asyncio.timeout(2):
            await running.task
    assert work.cancelled == ["a"] and (["r-a"], 0, True) in nacks(server)


async def test_a_runner_that_is_cancelled_gives_everything_back() -> None:
    server, work = delivering("a", "b"), Work()
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work, concurrency=1, prefetch=1))
        await eventually(lambda: work.begun == ["a"])
        running.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running.task
        await eventually(lambda: sent(server, Unsubscribe))
        assert running.runner.state == "stopped"
    assert work.cancelled == ["a"] and nacks(server) == [(["r-a"], 0, True)] and begun(server) == ["r-a"]


async def test_the_end_waits_for_the_answer_to_an_ack_and_not_for_ever() -> None:
    server, work = delivering("a", "b"), Work()
    async with session(server, close_timeout_s=0.05) as pushq:
        running = Running(pushq.runner("q", work))
        await eventually(lambda: len(work.begun) == 2)
        server.answers = False
        work.finish("a", "b")
        await eventually(lambda: sent(server, Ack))
        running.runner.stop()
        await eventually(lambda: running.runner.state == "draining")
        assert not running.task.done()
        async with asyncio.timeout(2):
            await running.task


async def test_a_handler_may_stop_its_runner() -> None:
    server = delivering("a", "b")
    async with session(server) as pushq:

        async def handle(message: Message) -> None:
            runner.stop()

        runner = pushq.runner("q", handle, concurrency=1, prefetch=1)
        async with asyncio.timeout(2):
            await runner.run()
    assert server.acked == ["r-a"] and nacks(server) == [(["r-b"], None, False)]


async def test_a_queue_that_is_missing_raises() -> None:
    async with session(PlayedServer()) as pushq:
        with pytest.raises(NotFound):
            await pushq.run("missing", Work())
        with pytest.raises(NotFound):
            async with pushq.runner("missing", Work()):
                pytest.fail("must not begin")


async def test_a_subscription_that_ends_for_good_raises_when_its_handlers_have_ended() -> None:
    server, work = delivering("a", "b"), Work()
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work, concurrency=1, prefetch=1))
        await eventually(lambda: work.begun == ["a"])
        server.connection.say(Ended(sub=1, problem=Problem(code="queue-not-found", status=404)))
        await eventually(lambda: running.runner.state == "draining")
        work.finish("a")
        with pytest.raises(NotFound):
            await running.task
    assert work.ended == ["a"] and work.begun == ["a"]


async def test_a_session_that_ends_for_good_raises() -> None:
    server, work = delivering("a"), Work()
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work))
        await eventually(lambda: work.begun == ["a"])
        server.connection.cut(4501)
        await eventually(lambda: running.runner.state == "draining")
        work.finish("a")
        with pytest.raises(Unauthenticated):
            await running.task


async def test_it_goes_on_after_a_cut() -> None:
    server, seen = PlayedServer(), list[str]()
    batches = iter(["a", "b", "c"])
    server.on_subscribe = lambda connection, _: connection.deliver(next(batches))

    async def handle(message: Message) -> None:
        seen.append(message.id)
        await message.ack()
        if len(seen) < 3:
            server.connection.cut()

    await ran(server, handle, lambda: len(seen) == 3)
    assert seen == ["a", "b", "c"] and server.acked == ["r-a", "r-b", "r-c"]


async def test_a_new_session_does_not_begin_a_message_of_the_old_one() -> None:
    server, work = delivering("a", "b"), Work()
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work, concurrency=1, prefetch=1))
        await eventually(lambda: work.begun == ["a"])
        server.session = "s2"
        server.connection.cut()
        await eventually(lambda: len(sent(server, Subscribe)) == 2)
        work.finish("a")
        await eventually(lambda: server.acked)
        await running.stopped()
    assert work.begun == ["a"]


# For programs with an end of their own


async def test_a_runner_works_while_its_block_runs() -> None:
    server, work = delivering("a"), Work()
    async with session(server) as pushq:
        async with pushq.runner("q", work) as runner:
            await eventually(lambda: work.begun == ["a"])
            work.finish("a")
        assert (runner.state, server.acked) == ("stopped", ["r-a"])


async def test_a_block_that_raises_waits_for_no_handler() -> None:
    server, work = delivering("a"), Work()
    async with session(server) as pushq:
        with pytest.raises(KeyError):  # noqa: PT012 - the block is what raises
            async with pushq.runner("q", work):
                await eventually(lambda: work.begun)
                raise KeyError
    assert work.cancelled == ["a"] and nacks(server) == [(["r-a"], 0, True)]


async def test_a_runner_runs_once() -> None:
    async with session(PlayedServer()) as pushq:
        async with pushq.runner("q", Work()) as runner:
            pass
        with pytest.raises(RuntimeError, match="run only once"):
            await runner.run()


async def test_a_session_that_is_closed_ends_its_runner() -> None:
    pushq: Pushq = session(delivering("a"))
    await pushq.open()
    runner = pushq.runner("q", Work(), drain_s=0.01)
    task = asyncio.create_task(runner.run())
    await eventually(lambda: runner.active)
    await pushq.close()
    with pytest.raises(SessionClosed):
        await task
