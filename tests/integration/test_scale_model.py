"""The model of scale still runs on the real cores, and its figures hang together."""

from __future__ import annotations

import subprocess
import sys

from tests.bench.scale_model import NODES_PER_CLUSTER, beats, decide, fill, weigh


def test_a_queue_weighs_less_than_the_page_promises() -> None:
    weight = weigh(300)
    assert 100 < weight.stored < 1_500 and weight.stored < weight.held < 4_000


def test_a_second_cluster_doubles_what_can_be_placed() -> None:
    (_, one, fullest), (_, two, _) = fill(1), fill(2)
    assert 0.75 * NODES_PER_CLUSTER < one <= 0.8 * NODES_PER_CLUSTER and fullest <= 0.8
    assert 1.95 < two / one < 2.05


def test_the_coordinator_hears_from_nodes_and_not_from_queues() -> None:
    assert beats(1_000, 3) == (2_006, 3)


def test_a_settled_cluster_plans_nothing_and_a_lost_node_only_its_own() -> None:
    made = decide(9)
    assert made.shards == 90 and 0 < made.lost_moves <= 60 + 32


def test_it_prints_its_tables() -> None:
    command = [sys.executable, "-m", "tests.bench.scale_model", "--small"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "1,000,000 queues" in done.stdout and "clusters of 50" in done.stdout
