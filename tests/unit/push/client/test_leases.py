from __future__ import annotations

import pytest

from push.client.core import Subscribed
from push.client.frames import Ack, Deliver, Extend, LostFrame, Ok, Subscribe, WireMessage
from push.client.model import Lost
from tests.unit.push.client.world import World

PING_NEVER = 3_600_000


def test_a_held_lease_is_extended_at_half_of_its_time() -> None:
    world = World()
    world.open(ping_ms=PING_NEVER)
    world.subscribe(visibility_timeout_ms=10_000)
    world.deliver("a", "b")
    world.pass_time(4.4)
    assert world.take(Extend) == []
    world.pass_time(0.7)
    frame = world.take(Extend)[0]
    assert (list(frame.receipts), frame.visibility_timeout_ms, frame.sub) == (["r-a", "r-b"], 10_000, 1)


def test_the_core_asks_to_be_woken_for_the_extension() -> None:
    world = World()
    world.open(ping_ms=PING_NEVER)
    world.subscribe(visibility_timeout_ms=10_000)
    world.deliver("a")
    assert world.now + 4.4 <= world.core.next_wakeup(world.now) <= world.now + 5.0


def test_extension_goes_on_until_the_ack() -> None:
    world = World()
    world.open(ping_ms=PING_NEVER)
    state = world.subscribe(visibility_timeout_ms=10_000)
    world.deliver("a")
    delivery = world.get(state)
    for _ in range(3):
        world.pass_time(5)
        world.answer(world.take(Extend)[0])
    world.settle(delivery)
    world.answer(world.take(Ack)[0])
    world.pass_time(5)
    assert world.take(Extend) == []


def test_extension_ends_at_the_handlers_limit() -> None:
    world = World()
    world.open(ping_ms=PING_NEVER)
    state = world.subscribe(visibility_timeout_ms=10_000, handler_limit_s=12)
    world.deliver("a")
    world.get(state)
    extended = 0
    for _ in range(10):
        world.pass_time(5)
        for frame in world.take(Extend):
            extended += 1
            world.answer(frame)
    assert extended == 2


def test_the_handlers_limit_counts_from_the_handing_over() -> None:
    world = World()
    world.open(ping_ms=PING_NEVER)
    state = world.subscribe(visibility_timeout_ms=10_000, handler_limit_s=12)
    world.deliver("a")
    world.pass_time(10)
    world.take(Extend)
    world.get(state)
    world.pass_time(10)
    assert len(world.take(Extend)) == 1


def test_extension_can_be_switched_off() -> None:
    world = World()
    world.open(ping_ms=PING_NEVER)
    world.subscribe(visibility_timeout_ms=10_000, extend_leases=False)
    world.deliver("a")
    world.pass_time(9)
    assert world.take(Extend) == []


def test_the_servers_visibility_timeout_counts_where_the_user_named_none() -> None:
    world = World()
    world.open(ping_ms=PING_NEVER)
    state = world.core.subscribe(Subscribed(queue="q", credit=10))
    frame = world.take(Subscribe)[0]
    world.feed(Ok(id=frame.id, sub=1, visibility_timeout_ms=2_000))
    world.deliver("a")
    assert state.visibility_timeout_ms == 2_000
    world.pass_time(1)
    assert world.take(Extend)[0].visibility_timeout_ms == 2_000


def test_a_lost_lease_of_a_message_in_the_users_hands_is_told() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a")
    delivery = world.get(state)
    world.feed(LostFrame(sub=1, receipts=["r-a"]))
    assert delivery.is_lost
    assert world.lost == [delivery]
    assert world.events[-1] == Lost("q", ("a",))


def test_a_lost_lease_of_a_message_nobody_saw_takes_the_message_away() -> None:
    world = World()
    world.open()
    state = world.subscribe()
    world.deliver("a", "b")
    world.feed(LostFrame(sub=1, receipts=["r-a"]))
    assert world.get(state).message.id == "b"
    assert world.lost == []


def test_a_refused_extension_tells_that_the_lease_is_lost() -> None:
    world = World()
    world.open(ping_ms=PING_NEVER)
    state = world.subscribe(visibility_timeout_ms=10_000)
    world.deliver("a")
    delivery = world.get(state)
    world.pass_time(5)
    world.answer(world.take(Extend)[0], ok=False)
    assert world.lost == [delivery]
    world.pass_time(5)
    assert world.take(Extend) == [], "a lost lease is not extended again"


def test_an_extension_that_crosses_the_ack_is_no_loss() -> None:
    world = World()
    world.open(ping_ms=PING_NEVER)
    state = world.subscribe(visibility_timeout_ms=10_000)
    world.deliver("a")
    delivery = world.get(state)
    world.pass_time(5)
    extend = world.take(Extend)[0]
    world.settle(delivery)
    world.answer(world.take(Ack)[0])
    world.answer(extend, ok=False)
    assert not delivery.is_lost and world.lost == []


def test_leases_of_one_moment_share_few_frames() -> None:
    world = World()
    world.open(ping_ms=PING_NEVER)
    world.subscribe(visibility_timeout_ms=10_000)
    for n in range(20):
        world.now += 0.01
        world.feed(Deliver(sub=1, messages=[WireMessage(id=f"{n}", receipt=f"{n}")]))
    world.pass_time(5)
    assert len(world.take(Extend)) == 1


def test_no_extension_is_sent_or_piled_up_while_offline() -> None:
    world = World(settle_timeout_s=1000)
    world.open(ping_ms=PING_NEVER)
    world.subscribe(visibility_timeout_ms=10_000)
    world.deliver("a")
    world.cut()
    for _ in range(5):
        world.pass_time(5)
    assert world.core.is_idle
    world.open()
    world.pass_time(0)
    assert [list(frame.receipts) for frame in world.take(Extend)] == [["r-a"]]


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_messages_without_receipts_have_no_lease(ack: str) -> None:
    world = World()
    world.open(ping_ms=PING_NEVER)
    state = world.subscribe(ack=ack, visibility_timeout_ms=10_000)
    world.deliver("a", with_receipt=False)
    world.pass_time(9)
    assert world.take(Extend) == [] and len(state.leases) == 0


def test_an_extension_under_way_is_nobodys_answer_when_the_session_ends() -> None:
    world = World()
    world.open(ping_ms=PING_NEVER)
    world.subscribe(visibility_timeout_ms=10_000)
    world.deliver("a")
    world.pass_time(5)
    world.take(Extend)
    world.cut(4501)
    assert world.settled == {}
