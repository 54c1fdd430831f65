"""At most once: a message is settled before it is sent, so nobody gets it twice and a crash may lose it."""

from __future__ import annotations

import pytest

from backend_store.core.leases.leases import Lease
from backend_store.core.leases.receipts import by_token
from backend_store.storage.engine import Table
from tests.support.queues import counts, crashed, draft, drained, publish, queue, rows, settle, texts, took
from tests.support.world import Consumer, World


def careless(*bodies: str, **settings: object) -> World:
    world = queue(delivery="at_most_once", **settings)
    publish(world, *map(draft, bodies))
    return world


def sent(lease: Lease | None) -> bool:
    """Whether its bytes may leave."""
    return lease is not None and lease.durable


def test_the_bytes_leave_once_it_is_on_the_disk_that_they_did() -> None:
    world, consumer = careless("a"), Consumer()
    lease = world.take(1, consumer)
    assert not sent(lease) and consumer.sendable_calls == 0
    world.committer.prepare()
    assert not sent(lease)
    world.committer.land()
    assert sent(lease) and consumer.sendable_calls == 1


def test_there_is_nothing_to_ack() -> None:
    world = careless("a")
    lease = took(world)
    assert lease is not None and not lease.receipts and lease.token == ""
    world.settle_down()
    assert settle(world, ["00", "nonsense"]) == [False, False]
    assert by_token(["00"]) and counts(world) == (0, 0, 0)


def test_what_was_handed_out_is_not_in_flight_and_not_handed_out_again() -> None:
    world = careless("a", "b")
    assert texts(took(world, 1)) == ["a"]
    assert counts(world) == (2, 0, 0), "nothing is settled yet"
    assert texts(took(world, 1)) == ["b"] and took(world) is None
    world.settle_down()
    assert counts(world) == (0, 0, 0) and world.partition.state.acked_total == 2


def test_time_brings_nothing_back() -> None:
    world = careless("a")
    took(world, visibility_ms=100)
    world.settle_down()
    world.pass_time(3_600_000)
    assert took(world) is None


def test_a_crash_before_the_commit_brings_the_message_back_for_it_was_never_sent() -> None:
    world = careless("a")
    lease = took(world)
    crashed(world)
    assert not sent(lease) and drained(world) == ["a"]


def test_a_crash_after_the_commit_may_lose_the_message_but_never_sends_it_twice() -> None:
    world = careless("a")
    lease = took(world)
    world.committer.prepare()
    crashed(world, landed=True)
    assert not sent(lease) and drained(world) == [] and counts(world) == (0, 0, 0)


def test_a_purge_takes_along_what_waits_to_be_sent() -> None:
    world, consumer = careless("a", "b"), Consumer()
    lease = world.take(2, consumer)
    world.purge()
    world.commit()
    assert lease is not None and not lease.bits, "nothing of it is to be sent"
    assert counts(world) == (0, 0, 0)
    assert sent(lease) and consumer.sendable_calls > 0, "nobody waits for it any more"
    assert consumer.released_total == 2, "others may come in its place"


def test_taking_back_what_was_not_sent_changes_nothing_for_it_is_settled() -> None:
    world = careless("a")
    lease = took(world)
    assert lease is not None
    world.main.unsent(lease)
    world.settle_down()
    assert took(world) is None and counts(world) == (0, 0, 0)


def test_consumers_share_a_chunk_without_overlap() -> None:
    world = careless(*"abcdef")
    came = [texts(took(world, 2)) for _ in range(3)]
    world.settle_down()
    assert came == [["a", "b"], ["c", "d"], ["e", "f"]]


@pytest.mark.parametrize("settings", [{"priorities": 2}, {"ordering": "strict"}, {"sequencing": "producer"}])
def test_it_goes_with_every_order(settings: dict[str, object]) -> None:
    world = careless("a", "b", **settings)
    assert drained(world) == ["a", "b"]
    crashed(world)
    assert drained(world) == []


def test_nothing_is_left_of_what_was_sent() -> None:
    world = careless("a", "b", "c")
    drained(world, limit=1)
    assert rows(world, Table.LOG, Table.MARKS, Table.RETRY, Table.LEASES) == 0
