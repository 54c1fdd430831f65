"""Which message may begin, and what goes back with one that failed: the lines of a runner. The server is played."""

from __future__ import annotations

from typing import Any

import pytest

from push.client import Message
from push.client.frames import (
    Ack,
    Begin,
    LostFrame,
    Nack,
    Ok,
)
from tests.unit.push.client.handlers import Running, Work, begun, delivering, keyed, nacks, ran, sent
from tests.unit.push.client.played import PlayedServer, eventually, session

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("facts", "options", "first"),
    [
        ({}, {}, ["a1", "a2", "b1", "none"]),
        ({"ordering": "strict"}, {}, ["a1", "b1", "none"]),
        ({"ordering": "strict"}, {"in_order": False}, ["a1", "a2", "b1", "none"]),
        ({}, {"in_order": "key"}, ["a1", "b1", "none"]),
        ({}, {"in_order": True}, ["a1"]),
        ({"mode": "offsets"}, {"group": "g"}, ["a1"]),
        ({"mode": "leases"}, {"group": "g"}, ["a1", "a2", "b1", "none"]),
        ({"mode": "leases", "ordering": "strict"}, {"group": "g"}, ["a1", "b1", "none"]),
    ],
)
async def test_the_queue_or_the_caller_says_what_must_not_overtake(
    facts: dict[str, Any], options: dict[str, Any], first: list[str]
) -> None:
    server, work = PlayedServer(), Work()
    server.facts = facts
    server.on_subscribe = lambda connection, _: connection.say(
        keyed(("a1", "a"), ("a2", "a"), ("b1", "b"), ("none", None))
    )
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work, **options))
        await eventually(lambda: len(work.begun) == len(first) and begun(server))
        assert work.begun == first
        work.finish(*first)
        for id in ("a2", "b1", "none"):
            if id not in first:
                await eventually(lambda id=id: id in work.begun)
                work.finish(id)
        await eventually(lambda: len(server.acked) == 4)
        await running.stopped()
    assert [id for id in work.ended if id.startswith("a")] == ["a1", "a2"]


async def test_what_is_behind_a_failed_message_goes_back_untried() -> None:
    server, work = PlayedServer(), Work()
    server.facts = {"ordering": "strict", "retry_backoff_ms": 50}
    server.on_subscribe = lambda connection, _: connection.say(
        keyed(("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"))
    )
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work))
        await eventually(lambda: len(work.begun) == 2)
        work.fail("a1", ValueError("no"))
        await eventually(lambda: len(nacks(server)) == 2)
        assert nacks(server) == [(["r-a1"], None, True), (["r-a2", "r-a3"], None, False)]
        assert work.begun == ["a1", "b1"]
        work.finish("b1")
        await running.stopped()


async def test_what_was_on_its_way_behind_a_failed_message_does_not_overtake_it() -> None:
    server, work = PlayedServer(), Work()
    server.facts = {"ordering": "strict"}
    server.on_subscribe = lambda connection, _: connection.say(keyed(("a1", "a")))
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work))
        await eventually(lambda: work.begun == ["a1"])
        server.answers = False
        work.fail("a1", ValueError("no"))
        await eventually(lambda: sent(server, Nack))
        server.connection.say(keyed(("a2", "a"), ("b1", "b")))  # sent before the server knew
        await eventually(lambda: work.begun == ["a1", "b1"])
        server.answers = True
        server.connection.say(Ok(id=sent(server, Nack)[0].id, results=[]))
        await eventually(lambda: len(nacks(server)) == 2)
        assert nacks(server)[1] == (["r-a2"], None, False)
        server.connection.say(keyed(("a1", "a")))
        await eventually(lambda: work.begun == ["a1", "b1", "a1"])
        work.finish("a1", "b1")
        await running.stopped()
    assert sorted(server.acked) == ["r-a1", "r-b1"]


@pytest.mark.parametrize(
    ("facts", "delay_ms", "behind"),
    [
        ({"retry_backoff_ms": 50}, None, (None, True)),
        ({"retry_backoff_ms": 50}, 9, (9, False)),
        ({}, 9, (9, False)),
        ({}, None, (None, False)),
    ],
)
async def test_an_order_that_only_the_client_keeps_goes_back_with_the_delay(
    facts: dict[str, Any], delay_ms: int | None, behind: tuple[int | None, bool]
) -> None:
    server = delivering("a", "b", "c")
    server.facts = facts

    async def handle(message: Message) -> None:
        await message.nack(delay_ms=delay_ms, reason="later")

    await ran(server, handle, lambda: len(nacks(server)) == 2, in_order=True)
    assert nacks(server) == [(["r-a"], delay_ms, True), (["r-b", "r-c"], *behind)]


async def test_what_is_behind_a_lost_message_goes_back_before_it_could_overtake() -> None:
    server, work = PlayedServer(), Work()
    server.facts = {"ordering": "strict"}
    server.on_subscribe = lambda connection, _: connection.say(keyed(("a1", "a"), ("a2", "a"), ("a3", "a")))
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work))
        await eventually(lambda: work.begun == ["a1"])
        server.connection.say(LostFrame(sub=1, receipts=["r-a2"]))
        await eventually(lambda: running.runner._subscription and running.runner._subscription.state.inbox[0].is_lost)
        work.finish("a1")
        await eventually(lambda: nacks(server))
        await running.stopped()
    assert nacks(server) == [(["r-a3"], None, False)] and work.begun == ["a1"]


async def test_what_has_no_receipt_is_handled_one_after_the_other() -> None:
    server, work = delivering("a", "b", "c", receipt=None), Work()
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work))
        for id in ("a", "b", "c"):
            await eventually(lambda id=id: work.begun and work.begun[-1] == id)
            work.finish(id)
        await eventually(lambda: running.runner.done == 3)
        await running.stopped()
    assert not sent(server, Ack) and not sent(server, Begin)


async def test_what_waits_in_a_line_that_moves_may_wait_for_another_handlers_time() -> None:
    server, work = delivering("a", "b", "c"), Work()
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work, in_order=True, prefetch=2))
        await eventually(lambda: work.begun == ["a"])
        subscription = running.runner._subscription
        assert subscription is not None
        last = subscription.state.inbox[-1]
        before = last.hold_until
        work.finish("a")
        await eventually(lambda: work.begun == ["a", "b"])
        assert last in subscription.state.inbox and last.hold_until > before
        work.finish("b")
        await eventually(lambda: work.begun == ["a", "b", "c"])
        work.finish("c")
        await running.stopped()


async def test_what_waits_behind_a_handler_that_hangs_goes_back_untried() -> None:
    server, work = delivering("a", "b"), Work()
    server.facts = {"visibility_timeout_ms": 40}
    async with session(server) as pushq:
        running = Running(pushq.runner("q", work, in_order=True, prefetch=1, handler_limit_s=0.05))
        await eventually(lambda: nacks(server))
        server.connection.deliver("c")  # it came later, and must not be first either
        await eventually(lambda: running.runner.waiting == 2)
        work.finish("a")
        await eventually(lambda: (["r-c"], None, False) in nacks(server))
        await running.stopped()
    assert nacks(server) == [(["r-b"], None, False), (["r-c"], None, False)] and work.begun == ["a"]
