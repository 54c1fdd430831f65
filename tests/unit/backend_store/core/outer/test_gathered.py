"""What shards say becomes what a cluster says."""

from __future__ import annotations

from backend_store.core.outer.gathered import ShardSaid, gathered


def test_a_node_is_as_full_as_its_fullest_part_and_a_cluster_as_its_nodes_are_on_the_average() -> None:
    report = gathered("eu", 7, [ShardSaid("a", cpu=0.2, disk=0.9), ShardSaid("b", cpu=0.5, commits=0.1)])
    assert report is not None
    assert (report.cluster, report.at_ms, report.nodes, report.utilisation) == ("eu", 7, 2, 0.7)
    assert report.is_healthy and report.fullest == "disk" and "a is fullest: 90% of its disk" in report.detail


def test_a_node_that_leads_several_shards_is_one_and_those_that_lead_none_count_as_they_wrote() -> None:
    others = {"a": 0.1, "b": 0.3, "c": None}
    report = gathered("eu", 0, [ShardSaid("a", cpu=0.5, others=others), ShardSaid("a", cpu=0.5, others=others)])
    assert report is not None and report.nodes == 3
    assert report.utilisation == 0.4, "of a and b: c has not said yet"


def test_a_shard_that_is_silent_or_ails_makes_the_cluster_ill_and_only_all_of_them_make_it_silent() -> None:
    ill = gathered("eu", 0, [ShardSaid("a"), None])
    assert ill is not None and not ill.is_healthy and ill.detail.startswith("no response for shard 1;")
    short = gathered("eu", 0, [ShardSaid("a"), ShardSaid("b", ails="1 of at least 2 replicas are in sync")])
    assert short is not None and not short.is_healthy and "shard 1: 1 of at least 2" in short.detail
    assert gathered("eu", 0, [None, None]) is None


def test_backends_that_are_too_old_to_say_who_they_are_count_by_their_shards() -> None:
    report = gathered("eu", 0, [ShardSaid("", disk=0.1), ShardSaid("", disk=0.3)])
    assert report is not None and (report.nodes, report.utilisation) == (2, 0.2)


def test_what_any_shard_knows_of_missing_copies_is_known_of_the_cluster() -> None:
    report = gathered("eu", 0, [ShardSaid("a", nodes_needed=3), ShardSaid("", copies_missing=2)])
    assert report is not None and (report.nodes_needed, report.copies_missing) == (3, 2)
