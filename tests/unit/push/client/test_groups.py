"""A subscription in a group of a stream: the server keeps its place, and messages have receipts."""

from __future__ import annotations

from push.client.core import Subscribed, SubscriptionState
from push.client.frames import Ack, Credit, Deliver, Extend, Nack, Ok, Subscribe, Unsubscribe, WireMessage
from tests.unit.push.client.world import World


def joined(world: World, *, mode: str | None = None, **asked: object) -> SubscriptionState:
    state = world.core.subscribe(Subscribed(queue="q", credit=10, group="g", **asked))  # type: ignore[arg-type]
    world.feed(Ok(id=world.take(Subscribe)[0].id, sub=1, mode=mode))
    return state


def deliver(world: World, *ids: str, partition: int = 0, cursor: str | None = None) -> None:
    messages = [WireMessage(id=id, receipt=f"r-{id}", partition=partition) for id in ids]
    world.feed(Deliver(sub=1, messages=messages, cursor=cursor))


def test_a_group_begins_where_it_is_told_and_goes_on_where_it_stands() -> None:
    world = World()
    world.open("s1")
    joined(world, start="earliest")
    deliver(world, "a", cursor="c1")
    world.cut()
    world.open("s2")
    again = world.take(Subscribe)[0]
    assert (again.group, again.start) == ("g", None)


def test_a_refused_start_is_asked_for_again() -> None:
    world = World()
    world.open("s1")
    world.core.subscribe(Subscribed(queue="q", credit=10, group="g", start="earliest"))
    world.take(Subscribe)
    world.cut()
    world.open("s2")
    assert world.take(Subscribe)[0].start == "earliest"


def test_a_cut_before_the_first_message_of_a_group_is_no_reset() -> None:
    world = World()
    world.open("s1")
    joined(world, start="latest")
    world.cut()
    world.open("s2")
    assert [type(event).__name__ for event in world.events] == ["Connected", "Disconnected", "Connected"]


def test_unread_messages_of_a_lost_session_come_again_by_themselves() -> None:
    world = World()
    world.open("s1")
    state = joined(world)
    deliver(world, "a", cursor="c1")
    world.cut()
    world.open("s2")
    assert state.take(world.now) is None


def test_credit_is_given_back_by_acks_and_not_by_reading() -> None:
    world = World()
    world.open()
    state = joined(world)
    deliver(world, *(f"{n}" for n in range(10)), cursor="c1")
    for _ in range(10):
        world.get(state)
    assert world.take(Credit) == []


def test_with_offsets_an_ack_covers_what_its_partition_delivered_before() -> None:
    world = World()
    world.open()
    state = joined(world, mode="offsets")
    deliver(world, "a", "b")
    deliver(world, "c", partition=1)
    deliver(world, "d")
    held = {delivery.message.id: delivery for delivery in (world.get(state) for _ in range(4))}
    world.settle(held["b"])
    assert list(world.take(Ack)[0].receipts) == ["r-b"]
    assert [name for name, delivery in held.items() if state.leases.held(delivery.receipt or "")] == ["c", "d"]


def test_with_offsets_an_earlier_message_may_be_acked_after_a_later_one() -> None:
    world = World()
    world.open()
    state = joined(world, mode="offsets")
    deliver(world, "a", "b")
    first, second = world.get(state), world.get(state)
    world.settle(second)
    world.settle(first)
    world.answer(world.take(Ack)[0])
    assert world.settled == {"ack a": None, "ack b": None}


def test_with_offsets_a_nack_is_of_one_message() -> None:
    world = World()
    world.open()
    state = joined(world, mode="offsets")
    deliver(world, "a", "b")
    first, second = world.get(state), world.get(state)
    world.settle(second, "nack")
    assert list(world.take(Nack)[0].receipts) == ["r-b"]
    assert state.leases.held(first.receipt or "") is first


def test_with_leases_each_message_is_settled_by_itself() -> None:
    world = World()
    world.open()
    state = joined(world, mode="leases")
    deliver(world, "a", "b")
    first, second = world.get(state), world.get(state)
    world.settle(second)
    assert state.leases.held(first.receipt or "") is first


def test_a_reader_far_behind_a_queue_that_delivers_at_most_once_unsubscribes_for_a_while() -> None:
    world = World(auto_inbox_factor=3)
    world.open()
    world.subscribe(credit=1)
    world.deliver("a", "b", "c", "d", with_receipt=False)
    assert [frame.sub for frame in world.take(Unsubscribe)] == [1]


def test_a_session_that_goes_on_says_at_once_what_it_has_of_a_group_with_offsets() -> None:
    world = World()
    world.open("s1")
    joined(world, mode="offsets")
    deliver(world, "a", "b")
    for session, extended in (("s1", [["r-a", "r-b"]]), ("s2", [])):
        world.cut()
        world.open(session)
        world.feed(Ok(id=world.take(Subscribe)[0].id, sub=1, mode="offsets"))
        world.pass_time(0)
        assert [frame.receipts for frame in world.take(Extend)] == extended


def test_a_session_that_goes_on_says_nothing_of_a_group_with_leases() -> None:
    world = World()
    world.open("s1")
    joined(world, mode="leases")
    deliver(world, "a")
    world.cut()
    world.open("s1")
    world.feed(Ok(id=world.take(Subscribe)[0].id, sub=1, mode="leases"))
    world.pass_time(0)
    assert world.take(Extend) == []
