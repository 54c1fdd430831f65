"""What a gateway says of all clusters, and which of them a call is about."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backend_store.core.outer.limits import REPORT_MS_MAX
from backend_store.core.outer.managing import Rules
from backend_store.model import Forbidden, InvalidRequest, NotFound, QueueConfig
from backend_store.node.meter import Load
from gateway.api import cluster as calls
from gateway.clock import wall_clock_ms
from gateway.clusters.overview import ClustersView
from gateway.observability.metrics import clusters as cluster_metrics
from tests.support.outer_world import OuterWorld
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world() -> AsyncIterator[OuterWorld]:
    made = OuterWorld()
    try:
        await made.open()
        yield made
    finally:
        await made.close()


async def test_before_a_manager_has_run_every_cluster_is_silent(world: OuterWorld) -> None:
    await world.manager("one")
    state = ClustersView(world.stores[0], wall_clock_ms).state()
    assert [(one.name, one.is_home, one.model, one.state) for one in state.clusters] == [
        ("main", True, "leader_follower", "silent"),
        ("us", False, "leader_follower", "silent"),
    ]
    assert state.managers.holder is None and state.managers.is_silent and state.manager_events == []
    assert {one.utilisation for one in state.clusters} == {None} and state.plan.moves == ()


async def test_why_a_cluster_is_not_the_one_of_its_name_is_shown(world: OuterWorld) -> None:
    await world.manager("right")
    await world.manager("wrong", further="eu")
    (_, eu) = ClustersView(world.stores[1], wall_clock_ms).summaries()
    assert eu.state == "unhealthy" and eu.detail is not None and "cluster 'us', not 'eu'" in eu.detail


async def test_what_the_manager_wrote_is_shown_until_it_is_old(world: OuterWorld) -> None:
    manager = await world.manager("one", Rules())
    store, now_ms = world.stores[0], 0
    await world.backends[0].create_queue("default", "orders", QueueConfig())
    await eventually(lambda: store.metadata.spread.queues[""] == 1, "the queue is known")
    world.loads["us"] = Load("x", cpu=0.9)
    await manager.look()
    now_ms = wall_clock_ms()
    view = ClustersView(store, lambda: now_ms)
    main, us = view.summaries()
    assert (main.queues, main.state, main.utilisation, main.hot_since) == (1, "ok", 0.1, None)
    assert (us.queues, us.state, us.utilisation, us.backends, us.fullest) == (0, "hot", 0.9, 1, "CPU")
    assert us.detail == "x is fullest: 90% of its CPU" and us.hot_since is not None
    state = view.state()
    assert (state.managers.holder, state.managers.term, state.managers.is_silent) == ("one", 1, False)
    assert [event.kind for event in state.manager_events][:3] == ["manager", "known", "known"]
    series = {family.name: family for family in cluster_metrics.families(gateway(clusters=view))}
    takes = {sample.labels["cluster"]: sample.value for sample in series["pushq_cluster_takes_queues"].samples}
    assert takes == {"main": 1, "us": 0}
    now_ms += REPORT_MS_MAX + 1
    assert [one.state for one in view.summaries()] == ["silent", "silent"] and view.state().managers.is_silent


async def test_without_a_coordinator_all_clusters_are_shown_to_operators_and_no_backends(world: OuterWorld) -> None:
    await world.manager("one")
    there = gateway(clusters=ClustersView(world.stores[0], wall_clock_ms))
    found = json.loads((await calls.get(there, cast(Any, Asked()))).body)
    assert [one["name"] for one in found["clusters"]] == ["main", "us"]
    assert (found["nodes"], found["shards"], found["events"], found["manager"]) == ([], [], [], None)
    assert found["backends_known"] is False
    with pytest.raises(Forbidden):
        await calls.get(there, cast(Any, Asked(is_operator=False)))
    with pytest.raises(NotFound, match=r"cluster\.coordinator"):
        await calls.get(there, cast(Any, Asked(cluster="main")))


def gateway(**parts: Any) -> Any:
    return SimpleNamespace(**{"cluster": None, "further": {}, "clusters": None} | parts)


class Asked:
    """A call as far as the handlers look at it."""

    def __init__(self, *, is_operator: bool = True, **query: str) -> None:
        self.principal = SimpleNamespace(name="k", access=SimpleNamespace(is_operator=is_operator))
        self.given = query

    def query(self, *known: str) -> dict[str, str]:
        if wrong := set(self.given) - set(known):
            raise InvalidRequest(f"unknown parameter {min(wrong)!r}")
        return self.given


TWO = SimpleNamespace(names=["main", "us"])


def about(there: Any, call: Asked) -> Any:
    return calls._watch(there, cast(Any, call))


def test_a_call_is_about_the_home_cluster_or_the_one_that_it_names() -> None:
    there = gateway(cluster="home", further={"us": "other"}, clusters=TWO)
    assert about(there, Asked()) == about(there, Asked(cluster="main")) == "home"
    assert about(there, Asked(cluster="us")) == "other"
    with pytest.raises(NotFound, match="'eu'; the clusters are main, us"):
        about(there, Asked(cluster="eu"))
    with pytest.raises(Forbidden):
        about(there, Asked(is_operator=False))
    with pytest.raises(InvalidRequest):
        about(there, Asked(clutser="us"))


def test_a_cluster_without_its_coordinator_is_not_shown_and_the_setting_is_named() -> None:
    with pytest.raises(NotFound, match=r"of cluster 'main': start it with cluster\.coordinator"):
        about(gateway(clusters=TWO), Asked())
    with pytest.raises(NotFound, match="does not have a cluster to show"):
        about(gateway(), Asked())
    with pytest.raises(NotFound, match=r"coordinator of the entry 'us' of store\.clusters"):
        about(gateway(cluster="home", clusters=TWO), Asked(cluster="us"))
    with pytest.raises(NotFound, match="stores messages itself"):
        about(gateway(), Asked(cluster="main"))
