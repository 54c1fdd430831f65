"""The tables of all clusters on the page of the node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from web_console.pages import cluster, records, render
from web_console.tables import Table
from web_console.visit import Visit

pytestmark = pytest.mark.anyio

EU = {
    "name": "eu",
    "is_home": False,
    "model": "independent_hosts",
    "backends": 3,
    "queues": 7,
    "utilisation": 0.834,
    "fullest": "CPU",
    "state": "hot",
    "detail": "c is fullest: 91% of its CPU",
    "hot_since": None,
    "reported_at": "2026-01-31T12:00:00.000Z",
}
NEVER_HEARD = EU | {"name": "us", "model": None, "backends": None, "utilisation": None, "state": "silent"}
PLAN = {
    "version": 1,
    "moves": [
        {"queue": "orders", "from": "eu", "to": "us"},
        {"queue": "views", "from": "eu", "to": "us", "merge": True},
    ],
    "partitions": [{"queue": "news", "partitions": 4, "clusters": ["eu", "us"], "tenant": "shop"}],
}
MANAGED = {"holder": "m", "term": 1, "since": "x", "seen_at": "2026-01-31T12:00:00.000Z", "is_silent": False}
NOTHING: dict[str, Any] = {"version": 1, "moves": [], "partitions": []}


async def tables(**of_all: Any) -> dict[str, Table]:
    return {table.caption: table for table in (await loaded(**of_all))["cluster"]}


async def loaded(under_way: tuple[Any, ...] = (), **of_all: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"nodes": [], "shards": [], "events": [], "clusters": [], "manager_events": []}
    empty["managers"] = MANAGED
    state = empty | {"plan": NOTHING, "backends_known": True, "is_embedded": False} | of_all

    async def maybe(path: str) -> dict[str, Any]:
        return {"items": list(under_way)} if path == "/v1/cluster/moves" else state

    visit = SimpleNamespace(maybe=maybe, may_do=lambda act: False, path="/console/node")
    return await cluster.load(cast(Visit, visit))


async def test_every_cluster_has_a_row_also_one_that_was_never_heard() -> None:
    found = await tables(clusters=[EU, NEVER_HEARD])
    rows = found["Clusters"].rows
    assert [(row["name"], row["model"], row["used"], row["state"]) for row in rows] == [
        ("eu", "independent hosts", "83%", "hot"),
        ("us", None, None, "silent"),
    ]
    assert "pushq manager" in found["Decisions"].empty and "Recommended moves" not in found


async def test_a_cluster_that_no_manager_listens_to_is_not_called_silent() -> None:
    nobody = dict.fromkeys(MANAGED) | {"is_silent": True}
    (row,) = (await tables(clusters=[NEVER_HEARD], managers=nobody))["Clusters"].rows
    assert row["state"] == "no manager" and "pushq manager is not running" in row["detail"]
    gone = MANAGED | {"is_silent": True}
    heard, lost = (await tables(clusters=[EU, NEVER_HEARD], managers=gone))["Clusters"].rows
    assert heard["state"] == "hot" and lost["state"] == "manager away"
    assert "m manages the clusters and has not reported since 2026-01-31 12:00:00.000 UTC" in lost["detail"]


async def test_earlier_events_are_shown_on_demand() -> None:
    rows = [{"number": number, "at": "x", "kind": "left", "text": f"event {number}."} for number in range(30)]
    visit = SimpleNamespace(session=SimpleNamespace(form_token="t"))
    values = {**await loaded(events=rows), "plots": [], "visit": visit, "here": "/console/node"}
    page = render.live_part("console/node.html", values)
    first, more, rest = page.partition('<details class="more"')
    assert more and "20 earlier" in rest
    assert "event 29." in first and "event 20." in first and "event 19." not in first and "event 19." in rest


def event(number: int, kind: str, shard: str | None = None, *, second: int) -> dict[str, Any]:
    about = f"shard {shard}" if shard is not None else f"backend {number}"
    at = f"2026-01-31T12:00:{second:02}.000Z"
    return {"number": number, "at": at, "kind": kind, "text": f"{kind} {about}", "shard": shard}


async def test_events_of_many_shards_at_once_are_one_row_with_their_number() -> None:
    events = [
        event(1, "left", second=0),
        event(2, "left", second=0),
        *(event(3 + shard, "elected", str(shard), second=shard) for shard in range(12)),
        event(15, "lead-moved", "10", second=12),
        event(16, "lead-moved", "2", second=13),
        event(17, "lead-moved", "10", second=14),
        event(18, "lead-moved", "2", second=40),
        event(19, "damaged", "0", second=40),
        event(20, "damaged", "1", second=40),
    ]
    rows = (await tables(events=events))["Events"].rows
    assert [(row["number"], row["text"]) for row in rows] == [
        (20, "damaged shard 1"),
        (19, "damaged shard 0"),
        (18, "lead-moved shard 2"),
        (17, "lead-moved shard 10; and 2 more, of shards 2, 10"),
        (14, "elected shard 11; and 11 more, of shards 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …"),
        (2, "left backend 2"),
        (1, "left backend 1"),
    ]


async def test_what_the_manager_would_do_has_a_row_for_each_queue() -> None:
    rows = (await tables(clusters=[EU], plan=PLAN))["Recommended moves"].rows
    assert [tuple(row[column.key] for column in cluster.PLAN) for row in rows] == [
        ("default", "orders", "move", "eu", "us"),
        ("default", "views", "merge", "eu", "us"),
        ("shop", "news", "split, 4 partitions", "eu", "us"),
    ]


async def test_queues_on_their_way_to_another_cluster_have_a_row_each_while_there_are_any() -> None:
    caption = "Queues moving between clusters"
    assert caption not in await tables(clusters=[EU])
    move = {"tenant": "shop", "queue": "orders", "from": "eu", "to": "us", "state": "draining", "since": "x", "left": 3}
    under_way = (move | {"share": 1.0}, move | {"share": 0.332})
    rows = (await tables(under_way=under_way, clusters=[EU]))[caption].rows
    shown = [tuple(row[column.key] for column in cluster.MOVES) for row in rows]
    assert shown == [(*move.values(), "100%"), (*move.values(), "33%")]


async def test_a_server_that_keeps_its_messages_itself_shows_no_clusters() -> None:
    assert set(await tables()) == {"Backends", "Shards", "Events"}


async def test_a_server_without_the_coordinator_shows_all_clusters_and_names_the_setting() -> None:
    found = await loaded(clusters=[EU], backends_known=False)
    assert [table.caption for table in found["cluster"]] == ["Clusters", "Decisions"]
    assert "cluster.coordinator" in found["unknown"]


async def test_a_backend_that_is_away_and_a_shard_that_nobody_serves_stand_out() -> None:
    node = dict.fromkeys(("alive", "draining", "removing")) | {"name": "a", "copies": 1}
    shard = {"name": "0", "leader": None, "serving": False, "lag": {}}
    shard |= dict.fromkeys(("replicas", "in_sync", "wanted"), ())
    found = await tables(nodes=[node], shards=[shard])
    assert [row["alive"] for row in found["Backends"].rows] == ["away"]
    assert [row["serving"] for row in found["Shards"].rows] == ["not served"]
    macros = render.templates().get_template("console/macros.html").module
    for name, table in (("alive", found["Backends"]), ("serving", found["Shards"])):
        column = next(one for one in table.columns if one.key == name)
        assert 'class="tag bad"' in macros.cell(column, table.rows[0])  # type: ignore[attr-defined]


@pytest.mark.parametrize(("nodes", "wanted"), [(None, True), ([], False)])
async def test_a_gateway_of_backends_draws_no_disk_and_no_commits_of_its_own(nodes: Any, wanted: bool) -> None:
    names = [name for _, _, lines in records.NODE_PLOTS for name in lines]
    series = {"start_ms": 0, "step_ms": 1000, "series": {name: [0.0, 0.0] for name in names}}
    state = {"nodes": nodes, "shards": [], "events": [], "clusters": [], "backends_known": True, "is_embedded": False}

    async def maybe(path: str, **query: Any) -> Any:
        return series if path == "/v1/series/node" else None if nodes is None else state

    visit = SimpleNamespace(maybe=maybe, may_do=lambda act: False, path="/console/node")
    drawn = {heading for heading, *_ in (await records.load_node(cast(Visit, visit)))["plots"]}
    assert ({"Disk used", "Commits"} <= drawn, "Memory" in drawn) == (wanted, True)
