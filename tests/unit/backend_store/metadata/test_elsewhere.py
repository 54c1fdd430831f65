"""Where a new queue's messages shall lie, among shards and clusters."""

from __future__ import annotations

import msgspec
import pytest

from backend_store.metadata.elsewhere import HERE, Elsewhere
from backend_store.model import Conflict, QueueConfig, QueueDefinition, Unavailable, Whereabouts


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
    assert elsewhere.choose("new", [], here=0, cluster="us", shards=3) == Whereabouts("us", 0)
    elsewhere.put(queue("fffff", "us", 0))
    assert elsewhere.choose("new", [], here=0, cluster="us", shards=3) == Whereabouts("us", 2)
    elsewhere.remove(queue("bb", "eu", 0))
    assert elsewhere.choose("new", [], here=0, cluster="eu", shards=2) == Whereabouts("eu", 0)


def test_a_changed_queue_is_counted_once(elsewhere: Elsewhere) -> None:
    elsewhere.put(queue("bb", "eu", 0))
    elsewhere.remove(queue("bb", "eu", 0))
    elsewhere.put(queue("ccc", "eu", 1))
    assert elsewhere.choose("new", [], here=0, cluster="eu", shards=2) == Whereabouts("eu", 0)


def test_a_queue_lies_beside_those_that_it_names(elsewhere: Elsewhere) -> None:
    named = queue("ccc", "eu", 1)
    assert elsewhere.choose("new", [None, named], here=0, cluster="eu", shards=9) == named.place


def test_a_gateway_that_had_not_heard_of_a_named_queue_tries_again(elsewhere: Elsewhere) -> None:
    with pytest.raises(Unavailable, match="goes beside 'ccc'") as caught:
        elsewhere.choose("new", [queue("ccc", "eu", 1)], here=0)
    assert caught.value.retry_after_ms


def test_queues_that_lie_apart_cannot_be_named_together(elsewhere: Elsewhere) -> None:
    apart = [queue("bb", "eu", 0), queue("a", "", 0)]
    with pytest.raises(Conflict, match="lies in shard 0 of cluster 'eu' and 'a' in shard 0"):
        elsewhere.choose("new", apart, here=0)
    with pytest.raises(Conflict, match="of one shard"):
        elsewhere.check(queue("dddd", "us", 1), [queue("a", "", 1)])
