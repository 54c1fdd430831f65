"""Where a new queue's messages shall lie, among shards and clusters."""

from __future__ import annotations

import msgspec
import pytest

from backend_store.metadata.elsewhere import HERE, ClusterSize, Elsewhere, usual_shards
from backend_store.model import Conflict, QueueConfig, QueueDefinition, Unavailable, Whereabouts
from backend_store.wire.store_frames import Copies


def queue(name: str, cluster: str = "", shard: int = 0) -> QueueDefinition:
    return QueueDefinition(len(name), "t", name, QueueConfig(), 1, 1, shard=shard, cluster=cluster)


@pytest.fixture
def elsewhere() -> Elsewhere:
    made = Elsewhere([queue("a", "", 1), queue("bb", "eu", 0), queue("ccc", "eu", 1), queue("dddd", "us", 1)])
    made.shards = 2
    return made


def test_a_definition_of_an_earlier_version_lies_in_the_home_cluster() -> None:
    row = msgspec.msgpack.decode(msgspec.msgpack.encode(queue("a")))
    row.pop("cluster") if isinstance(row, dict) else row.pop()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(row), type=QueueDefinition) == queue("a")


def test_queues_are_counted_in_each_shard_of_each_cluster(elsewhere: Elsewhere) -> None:
    assert elsewhere.choose("new", [], here=5) == Whereabouts("", 1)
    assert elsewhere.choose("new", [], here=0) == HERE
    assert elsewhere.choose("new", [], ClusterSize("us", 3), here=0) == Whereabouts("us", 0)
    elsewhere.put(queue("fffff", "us", 0))
    assert elsewhere.choose("new", [], ClusterSize("us", 3), here=0) == Whereabouts("us", 2)
    elsewhere.remove(queue("bb", "eu", 0))
    assert elsewhere.choose("new", [], ClusterSize("eu", 2), here=0) == Whereabouts("eu", 0)


def test_without_a_word_on_its_copies_a_queue_lies_in_no_shard_of_another_mode(elsewhere: Elsewhere) -> None:
    copies = [Copies("sync", 3, 2), Copies("async", 3, 2)]
    elsewhere.usual = lambda: usual_shards(copies, "sync")
    assert elsewhere.choose("new", [], here=9) == HERE
    assert elsewhere.choose("new", [], ClusterSize("", among=(1,)), here=9) == Whereabouts("", 1)
    assert elsewhere.choose("new", [queue("a", "", 1)], here=9) == Whereabouts("", 1)
    copies.append(Copies("sync", 3, 2))
    assert elsewhere.choose("new", [], here=9) == Whereabouts("", 2)


@pytest.mark.parametrize(
    ("modes", "mode", "shards"),
    [
        (["sync", "sync", "async"], "sync", [0, 1]),
        (["sync", "", "async"], "sync", [0]),
        (["sync", "async", "async"], "async", [0, 1, 2]),
        (["async", "async"], "sync", [0, 1]),  # of a cluster that was async when its shards were placed
        (["", ""], "sync", []),
    ],
)
def test_queues_that_ask_for_no_mode_lie_where_it_is_the_clusters(
    modes: list[str], mode: str, shards: list[int]
) -> None:
    assert usual_shards([Copies(one) for one in modes], mode) == shards


def test_a_changed_queue_is_counted_once(elsewhere: Elsewhere) -> None:
    elsewhere.put(queue("bb", "eu", 0))
    elsewhere.remove(queue("bb", "eu", 0))
    elsewhere.put(queue("ccc", "eu", 1))
    assert elsewhere.choose("new", [], ClusterSize("eu", 2), here=0) == Whereabouts("eu", 0)


def test_a_queue_lies_beside_those_that_it_names(elsewhere: Elsewhere) -> None:
    named = queue("ccc", "eu", 1)
    assert elsewhere.choose("new", [None, named], ClusterSize("eu", 9), here=0) == named.place


def test_a_gateway_that_had_not_heard_of_a_named_queue_tries_again(elsewhere: Elsewhere) -> None:
    with pytest.raises(Unavailable, match="must be placed with 'ccc'") as caught:
        elsewhere.choose("new", [queue("ccc", "eu", 1)], here=0)
    assert caught.value.retry_after_ms


def test_queues_that_lie_apart_cannot_be_named_together(elsewhere: Elsewhere) -> None:
    apart = [queue("bb", "eu", 0), queue("a", "", 0)]
    with pytest.raises(Conflict, match="is in shard 0 of cluster 'eu' and 'a' in shard 0"):
        elsewhere.choose("new", apart, here=0)
    with pytest.raises(Conflict, match="of one shard"):
        elsewhere.check(queue("dddd", "us", 1), [queue("a", "", 1)])
