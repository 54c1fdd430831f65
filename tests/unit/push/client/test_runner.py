"""Handlers side by side: what begins, and what becomes of it. The server is played."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from push.client import HandlerFailed, Message, Problem, SessionEvent
from push.client.frames import (
    Ack,
    Error,
    Extend,
    LostFrame,
    Nack,
    Subscribe,
)
from push.client.runner import reason_of
from tests.unit.push.client.handlers import Running, Work, begun, delivering, nacks, ran, sent
from tests.unit.push.client.played import PlayedServer, eventually, session

pytestmark = pytest.mark.anyio


async def raising(message: Message) -> None:
    raise ValueError("no such street")


# What becomes of a message


async def test_a_handler_that_returns_acks() -> None:
    server, bodies = delivering("a", "b"), list[Any]()

    async def handle(message: Message) -> None:
        bodies.append(message.body)

    await ran(server, handle, lambda: len(server.acked) == 2)
    assert (bodies, server.acked, nacks(server)) == (["a", "b"], ["r-a", "r-b"], [])


async def test_a_handler_that_raises_nacks_with_the_reason_and_is_told() -> None:
    server, events = delivering("a", attempt=2), list[SessionEvent]()
    async with session(server, on_event=events.append) as pushq:
        running = Running(pushq.runner("q", raising))
        await eventually(lambda: sent(server, Nack))
        await running.stopped()
        assert (running.runner.done, running.runner.failed) == (0, 1)
    (nack,) = sent(server, Nack)
    assert nack.reason == "ValueError: no such street" and nack.tried
    (failed,) = [event for event in events if isinstance(event, HandlerFailed)]
    assert (failed.queue, failed.id, failed.attempt, str(failed.error)) == ("q", "a", 2, "no such street")


@pytest.mark.parametrize(
    ("attempt", "limits", "least", "most"),
    [(1, {}, 500, 1000), (4, {}, 4000, 8000), (40, {}, 30_000, 60_000), (2, {"retry_base_s": 0.1}, 100, 200)],
)
async def test_it_comes_again_later_with_each_attempt(
    attempt: int, limits: dict[str, Any], least: int, most: int
) -> None:
    server = delivering("a", attempt=attempt)
    await ran(server, raising, lambda: sent(server, Nack), limits)
    ((_, delay_ms, _),) = nacks(server)
    assert delay_ms is not None and least <= delay_ms <= most


@pytest.mark.parametrize(("facts", "limits"), [({"retry_backoff_ms": 100}, {}), ({}, {"retry_base_s": 0.0})])
async def test_a_queue_with_a_back_off_decides_by_itself(facts: dict[str, Any], limits: dict[str, Any]) -> None:
    server = delivering("a")
    server.facts = facts
    await ran(server, raising, lambda: sent(server, Nack), limits)
    assert nacks(server) == [(["r-a"], None, True)]


async def test_those_that_fail_in_one_turn_share_a_frame() -> None:
    server = delivering("a", "b", "c")

    async def fail(message: Message) -> None:
        raise ValueError("all alike")

    await ran(server, fail, lambda: sent(server, Nack))
    assert [receipts for receipts, _, _ in nacks(server)] == [["r-a", "r-b", "r-c"]]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("x" * 300), "ValueError: " + "x" * 244),
        (ValueError(), "ValueError"),
        (ValueError("a \ud800 b"), "ValueError: a ? b"),
    ],
)
def test_a_reason_is_bounded_and_can_be_sent(error: Exception, reason: str) -> None:
    assert reason_of(error, 256) == reason


def test_an_exception_without_a_text_is_a_reason_too() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "Mute" in reason_of(Mute(), 256)


async def test_what_a_handler_settled_itself_is_not_settled_again() -> None:
    server, over = delivering("ack", "nack", "release", "ack-and-raise"), list[str]()

    async def handle(message: Message) -> None:
        match message.id:
            case "nack":
                await message.nack(delay_ms=7, reason="mine")
            case "release":
                await message.release()
            case _:
                await message.ack()
        over.append(message.id)
        if message.id == "ack-and-raise":
            raise ValueError("too late")

    await ran(server, handle, lambda: len(over) == 4)
    assert server.acked == ["r-ack", "r-ack-and-raise"]
    assert nacks(server) == [(["r-nack"], 7, True), (["r-release"], None, False)]


async def test_what_the_server_refuses_to_settle_is_held_no_longer() -> None:
    server, work = delivering("a"), Work()
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work))
        await eventually(lambda: work.begun)
        server.answers = False
        work.finish("a")
        await eventually(lambda: sent(server, Ack))
        refusal = Problem(code="forbidden", status=403)
        server.connection.say(Error(id=sent(server, Ack)[0].id, problem=refusal))
        subscription = running.runner._subscription
        assert subscription is not None
        await eventually(lambda: not running.runner._confirming)
        assert len(subscription.state.leases) == 0
        await running.stopped()


async def test_what_is_raised_beside_exceptions_counts_and_holds_up_nobody() -> None:
    class Outcome(BaseException):
        """Such as test frameworks and other event loops have."""

    server, work = delivering("a", "b"), Work()
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work, in_order=True, prefetch=1))
        await eventually(lambda: work.begun == ["a"])
        work.fail("a", Outcome("no"))
        await eventually(lambda: running.runner.failed == 1 and sent(server, Nack))
        assert sent(server, Nack)[0].reason is not None and "Outcome: no" in sent(server, Nack)[0].reason
        await eventually(lambda: not running.runner._confirming)
        server.connection.deliver("c")
        await eventually(lambda: work.begun[-1] == "c")
        work.finish("c")
        await running.stopped()
    assert server.acked == ["r-c"]


async def test_a_lost_message_is_told_and_its_failure_is_nobodys() -> None:
    server, lost = delivering("a"), list[bool]()

    async def handle(message: Message) -> None:
        server.connection.say(LostFrame(sub=1, receipts=["r-a"]))
        await message.until_lost()
        lost.append(message.lost)
        raise ValueError("somebody else has it")

    await ran(server, handle, lambda: lost)
    assert lost == [True] and nacks(server) == [] and server.acked == []


async def test_leases_are_extended_while_a_handler_runs() -> None:
    server, work = delivering("a"), Work()
    server.facts = {"visibility_timeout_ms": 20}
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work))
        await eventually(lambda: len(sent(server, Extend)) >= 2)
        work.finish("a")
        await running.stopped()
    assert {receipt for frame in sent(server, Extend) for receipt in frame.receipts} == {"r-a"}


# What begins


async def test_no_more_handlers_run_than_asked_and_only_what_began_is_told() -> None:
    server, work = delivering("a", "b", "c", "d"), Work()
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work, concurrency=2, prefetch=2))
        await eventually(lambda: len(begun(server)) == len(work.begun) == 2)
        assert (work.begun, running.runner.active, running.runner.waiting) == (["a", "b"], 2, 2)
        assert begun(server) == ["r-a", "r-b"]
        work.finish("b")
        await eventually(lambda: begun(server) == ["r-a", "r-b", "r-c"])
        work.finish("a", "c")
        await eventually(lambda: work.begun == ["a", "b", "c", "d"])
        work.finish("d")
        await running.stopped()
    assert (sorted(server.acked), running.runner.done) == (["r-a", "r-b", "r-c", "r-d"], 4)


@pytest.mark.parametrize(
    ("options", "credit"),
    [
        ({}, 10),
        ({"concurrency": 3}, 3),
        ({"concurrency": 3, "prefetch": 5}, 8),
        ({"concurrency": 3, "in_order": True}, 1),
    ],
)
async def test_no_more_is_held_than_can_be_handled(options: dict[str, Any], credit: int) -> None:
    server = PlayedServer()
    await ran(server, Work(), lambda: sent(server, Subscribe), **options)
    assert [frame.credit for frame in sent(server, Subscribe)] == [credit]


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"prefetch": -1}])
async def test_a_number_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    async with session(PlayedServer()) as pushq:
        with pytest.raises(ValueError, match="concurrency must be at least 1 and prefetch at least"):
            pushq.runner("q", Work(), **options)


async def test_a_handler_that_would_block_is_refused() -> None:
    def handle(message: Message) -> None:
        pytest.fail("must not run")

    async def with_more(shop: str, message: Message) -> None: ...

    async with session(PlayedServer()) as pushq:
        with pytest.raises(TypeError, match=r"handle is not an `async def`.*asyncio\.to_thread"):
            pushq.runner("q", handle)  # type: ignore[arg-type]
        pushq.runner("q", partial(with_more, "north"))
        pushq.runner("q", Work())
