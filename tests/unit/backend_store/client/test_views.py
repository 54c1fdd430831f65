"""The views of a queue's partitions as one: receipts go home, and what is ready is taken by turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backend_store.client.embedded import EmbeddedQueue
from backend_store.client.views import Views, extending, giving_back
from backend_store.core.leases.receipts import by_token
from backend_store.core.limits import KEYED_CROWD_MIN, KEYED_PATIENCE_MS
from backend_store.core.log.chunk import KIND_JSON, Draft, blocks_of
from backend_store.core.log.sublogs import VIEW_MAIN
from backend_store.model import QueueConfig
from backend_store.node.views.view import View
from tests.support.node_world import NodeWorld
from tests.support.world import Consumer, receipts_by_seq, verdicts

KEYS = [f"k{number}" for number in range(30)]


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    world = NodeWorld()
    yield world
    world.close()


def filled(world: NodeWorld, partitions: int = 3, messages: int = 30, **settings: Any) -> EmbeddedQueue:
    queue = world.make("q", QueueConfig(partitions=partitions, lease_mode="memory", **settings))
    if messages:
        publish(world, queue, *KEYS[:messages])
    world.settle()
    return queue


def publish(world: NodeWorld, queue: EmbeddedQueue, *keys: str) -> None:
    blocks = blocks_of([Draft(KIND_JSON, b"1", {"key": key}) for key in keys]).blocks
    world.tell(lambda: queue.publish(blocks, lambda answer: None))


def views_of(queue: EmbeddedQueue) -> Views:
    return Views([partition.view(VIEW_MAIN) for partition in queue._partitions.all])


def taken(world: NodeWorld, views: Views, limit: int = 64) -> list[str]:
    """The receipts of one lease."""
    lease = world.tell(lambda: views.take(limit, Consumer(), 30_000))
    world.settle()
    return [] if lease is None else [*receipts_by_seq(lease).values()]


def asked(world: NodeWorld, views: Views, receipts: list[str], ask: Any = View.settle) -> list[bool]:
    answers: list[Any] = []
    world.tell(lambda: views.ask(by_token(receipts), ask, answers.append))
    world.settle()
    assert len(answers) == 1
    return verdicts(receipts, answers[0])


def test_consumers_are_given_from_each_partition_in_turn(world: NodeWorld) -> None:
    views = views_of(filled(world))
    leases = [world.tell(lambda: views.take(1, Consumer(), 30_000)) for _ in range(6)]
    assert [lease.state.partition for lease in leases if lease is not None] == [0, 1, 2, 0, 1, 2]


def test_what_is_ready_in_one_partition_is_found_when_the_others_have_nothing(world: NodeWorld) -> None:
    queue = filled(world, messages=1)
    views = views_of(queue)
    assert views.has_ready and views.ready == 1
    assert len(taken(world, views)) == 1
    assert not views.has_ready and views.ready == 0 and taken(world, views) == []


def test_a_partition_whose_keys_all_wait_reads_on_after_a_moment(world: NodeWorld) -> None:
    """What comes behind them may be what they wait for, by way of another partition."""
    queue = filled(world, partitions=2, messages=0, ordering="strict")
    stuck = KEYS[: 4 * KEYED_CROWD_MIN]
    for keys in ([*stuck], [*stuck], [*stuck], ["another"]):
        publish(world, queue, *keys)
    world.settle()
    world.restart()
    views = views_of(world.queue("q"))
    held = 0
    while receipts := taken(world, views):
        held += len(receipts)
    assert held == len(stuck)
    world.pass_time(KEYED_PATIENCE_MS)
    assert taken(world, views) == []  # it looks whether that was long enough, and says so
    assert len(taken(world, views)) == 1


def test_acks_of_all_partitions_are_one_answer(world: NodeWorld) -> None:
    queue = filled(world)
    views = views_of(queue)
    receipts = [receipt for _ in range(3) for receipt in taken(world, views)]
    assert len(receipts) == 30
    assert asked(world, views, receipts) == [True] * 30
    assert queue.stats().acked_total == 30 and queue.stats().ready == 0


def test_nacks_and_extensions_go_to_the_view_that_gave_the_message_out(world: NodeWorld) -> None:
    queue = filled(world)
    views = views_of(queue)
    receipts = [receipt for _ in range(3) for receipt in taken(world, views)]
    assert asked(world, views, receipts, extending(60_000)) == [True] * 30
    assert asked(world, views, receipts, giving_back(0, None, tried=True)) == [True] * 30
    assert queue.stats().ready == 30
    assert asked(world, views, receipts, extending(60_000)) == [False] * 30


def test_receipts_of_a_partition_that_has_gone_are_nobodys(world: NodeWorld) -> None:
    queue = filled(world)
    views = views_of(queue)
    receipts = [receipt for _ in range(3) for receipt in taken(world, views)]
    views.set([view for view in views.all if view.partition.index != 1])
    own = {view.partition.index: receipts for view, receipts in views.by_view(by_token(receipts))}
    assert sorted(own) == [0, 2]
    assert 0 < sum(asked(world, views, receipts)) < 30


def test_nothing_is_decided_about_receipts_that_are_all_nobodys(world: NodeWorld) -> None:
    queue = filled(world)
    views = views_of(queue)
    receipts = taken(world, views)
    gone = queue._partitions.all[0]
    views.set([view for view in views.all if view.partition is not gone])
    assert asked(world, views, receipts) == [False] * len(receipts)


@pytest.mark.parametrize("text", ["", "?", "AAAA", "nonsense." * 3, "é" * 80])
def test_what_is_no_receipt_is_stale(world: NodeWorld, text: str) -> None:
    views = views_of(filled(world))
    assert asked(world, views, [text + "00"]) == [False]


def test_a_receipt_of_another_partition_means_nothing_to_the_only_one_that_is_left(world: NodeWorld) -> None:
    queue = filled(world)
    views = views_of(queue)
    receipts = [receipt for _ in range(3) for receipt in taken(world, views)]
    views.set(views.all[:1])
    assert sum(asked(world, views, receipts)) == views.all[0].partition.state.acked_total < 30


def test_a_lease_is_given_back_where_it_is_from_even_if_that_is_gone(world: NodeWorld) -> None:
    queue = filled(world)
    views = views_of(queue)
    leases = [world.tell(lambda: views.take(64, Consumer(), 30_000)) for _ in range(3)]
    for lease in leases:
        assert lease is not None
        view = views.of(lease)
        assert view is not None and view.partition.index == lease.state.partition
    views.set(views.all[1:])
    assert leases[0] is not None and views.of(leases[0]) is None


def test_all_partitions_together_hand_out_no_more_than_a_queue_may(world: NodeWorld) -> None:
    views = views_of(filled(world))
    for view in views.all:
        view.core.policy = view.core.policy._replace(in_flight_max=7)
    given = [len(taken(world, views, 3)) for _ in range(5)]
    assert given == [3, 3, 1, 0, 0]


def test_an_error_of_one_partition_is_the_answer(world: NodeWorld) -> None:
    queue = filled(world)
    views = views_of(queue)
    receipts = [receipt for _ in range(3) for receipt in taken(world, views)]
    answers: list[Any] = []
    world.tell(queue._partitions.all[2].close)
    world.tell(lambda: views.ask(by_token(receipts), View.settle, answers.append))
    world.settle()
    assert [error.code for error in answers] == ["queue-not-found"]


def test_who_waits_for_messages_is_woken_by_each_partition(world: NodeWorld) -> None:
    queue = filled(world, messages=0)
    views = views_of(queue)
    woken: list[int] = []
    world.tell(lambda: views.on_ready(lambda: woken.append(1)))
    for key in KEYS[:10]:
        before = len(woken)
        publish(world, queue, key)
        world.settle()
        assert len(woken) > before
