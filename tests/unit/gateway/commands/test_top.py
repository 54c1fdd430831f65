"""Two samples of the queues make a table of rates."""

from __future__ import annotations

from typing import Any

from gateway.commands.top import Sample, nodes_of, rows_of


def stats(**numbers: int) -> dict[str, Any]:
    names = ("ready", "in_flight", "delayed", "oldest_age_ms", "consumers", "published_total", "acked_total")
    return dict.fromkeys(names, 0) | numbers


def test_rate_is_what_moved_over_the_time_between() -> None:
    before = Sample(10.0, {"q": stats(published_total=100, acked_total=50)})
    after = Sample(12.0, {"q": stats(published_total=300, acked_total=60, ready=190, consumers=2)})
    [row] = rows_of(before, after)
    assert (row.published_per_s, row.acked_per_s, row.ready, row.consumers) == (100.0, 5.0, 190, 2)


def test_fullest_queue_stands_first() -> None:
    sample = Sample(1.0, {"a": stats(ready=1), "b": stats(in_flight=5), "c": stats(ready=5), "d": stats()})
    assert [row.queue for row in rows_of(sample, sample)] == ["b", "c", "a", "d"]


def test_new_queue_and_one_made_anew_have_not_moved() -> None:
    before = Sample(1.0, {"again": stats(published_total=100)})
    after = Sample(2.0, {"again": stats(published_total=3), "new": stats(published_total=7)})
    assert [row.published_per_s for row in rows_of(before, after)] == [0.0, 0.0]


def test_deleted_queue_is_gone() -> None:
    assert rows_of(Sample(1.0, {"q": stats()}), Sample(2.0, {})) == []


def node(name: str, **more: Any) -> dict[str, Any]:
    known = {"alive": True, "removing": False, "draining": False, "disk_used_bytes": 30, "disk_free_bytes": 70}
    return {"name": name, **known, **more}


def shard(name: str, leader: str | None, in_sync: list[str], lag: dict[str, int | None]) -> dict[str, Any]:
    return {"name": name, "leader": leader, "replicas": ["a", "b", "c"], "in_sync": in_sync, "lag": lag}


def test_backends_that_are_away_or_behind_come_first() -> None:
    shards = [
        shard("0", "a", ["a", "b"], {"b": 0, "c": None}),
        shard("1", "a", ["a", "b"], {"b": 700, "c": 9}),
        shard("2", None, ["b"], {}),
    ]
    nodes = [node("a"), node("b", draining=True), node("c", alive=False, removing=True, disk_used_bytes=None)]
    found = nodes_of({"nodes": nodes, "shards": shards})
    assert [(one.node, one.leads, f"{one.in_sync}/{one.copies}", one.lag_entries, one.asked) for one in found] == [
        ("c", 0, "0/3", 9, "leaving"),
        ("a", 2, "2/3", 0, ""),
        ("b", 0, "3/3", 700, "draining"),
    ]
