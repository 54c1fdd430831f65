"""What operators ask of moves between clusters over HTTP, and what stays in the audit of it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import msgspec
import pytest

from backend_store.client import Store
from backend_store.model import Conflict, NotFound, QueueConfig, QueueDefinition, QueueNotFound
from backend_store.remote.definitions.moves import Moves, QueueMove, QueueShare
from backend_store.remote.store import RemoteBackends
from gateway.app import create_app
from gateway.clusters.overview import ClustersView
from gateway.config.settings import Settings
from gateway.limits import SPLIT_CLUSTERS_MAX
from tests.unit.gateway.conftest import URL, Clock

pytestmark = pytest.mark.anyio

ORDERS = QueueMove("default", "orders", "us", "eu", "sealing", 1_700_000_000_000, None)
SHOWN = {
    "tenant": "default",
    "queue": "orders",
    "from": "us",
    "to": "eu",
    "state": "sealing",
    "since": "2023-11-14T22:13:20.000Z",
    "left": None,
    "share": 1.0,
}


class FakeMoves(Moves):
    """Does what it is told at once, and knows the clusters us and eu."""

    def __init__(self) -> None:
        self.found: list[QueueMove] = []
        self.lies = [QueueShare("us", 1.0)]
        self.wanted: list[str] = []

    def under_way(self) -> list[QueueMove]:
        return self.found

    async def begin(self, tenant: str, name: str, to: str) -> QueueMove:
        if to != "eu":
            raise NotFound(f"unknown cluster {to!r}")
        self.found = [ORDERS._replace(tenant=tenant, queue=name)]
        return self.found[0]

    async def spread(self, tenant: str, name: str, over: Sequence[str]) -> None:
        if (gone := next((one for one in over if one not in ("us", "eu")), None)) is not None:
            raise NotFound(f"unknown cluster {gone!r}")
        self.wanted = list(over)

    def shares(self, definition: QueueDefinition) -> list[QueueShare]:
        return self.lies

    def goal(self, definition: QueueDefinition) -> list[str]:
        return self.wanted

    async def give_up(self, tenant: str, name: str) -> None:
        if not self.found:
            raise QueueNotFound(f"there is no queue {name!r}")
        if self.found[0].state != "sealing":
            raise Conflict("the new cluster has it")
        self.found = []


class World:
    def __init__(self, store: Store, clock: Clock) -> None:
        self.moves = FakeMoves()
        clusters = {"": SimpleNamespace(name="us"), "eu": SimpleNamespace(name="eu")}
        there = SimpleNamespace(moves=self.moves, clusters=clusters, metadata=Metadata(store))
        self.view = ClustersView(cast(RemoteBackends, there), clock)
        self.app = create_app(store, Settings(), clock_ms=clock, clusters=self.view)
        self.store = store

    async def client(self, *scopes: str) -> httpx2.AsyncClient:
        key = await self.app.gateway.keyring.create(name="k", tenant="default", scopes=scopes)
        headers = {"Authorization": f"Bearer {key.token}"}
        return httpx2.AsyncClient(transport=httpx2.ASGITransport(self.app), base_url=URL, headers=headers)

    async def acts(self) -> list[dict[str, Any]]:
        answer = await (await self.client("admin", "operator")).get("/v1/audit")
        found: list[dict[str, Any]] = answer.json()["items"]
        return [one for one in found if one["action"].startswith("moves.")]


class Metadata:
    """Definitions as a gateway with clusters has them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, tenant: str, name: str) -> Any:
        return self._store.queue(tenant, name).definition


@pytest.fixture
async def world(store: Store, clock: Clock) -> Any:
    made = World(store, clock)
    yield made
    await made.app.gateway.hub.close()


async def test_a_move_is_begun_listed_and_given_up(world: World) -> None:
    http = await world.client("operator")
    begun = await http.post("/v1/cluster/moves", json={"queue": "orders", "to": "eu"})
    assert (begun.status_code, begun.json()) == (202, SHOWN)
    assert begun.headers["location"] == "/v1/cluster/queues/default/orders"
    assert (await http.get("/v1/cluster/moves")).json() == {"items": [SHOWN]}
    gone = await http.delete("/v1/cluster/moves/default/orders")
    assert (gone.status_code, gone.content) == (204, b"")
    assert (await http.get("/v1/cluster/moves")).json() == {"items": []}


async def test_a_queue_of_any_tenant_is_found_with_its_moves(world: World) -> None:
    await world.store.create_queue("acme", "orders", QueueConfig())
    world.moves.found = [ORDERS, ORDERS._replace(tenant="acme", state="draining", left=7)]
    http = await world.client("operator")
    found = await http.get("/v1/cluster/queues/acme/orders")
    mine = SHOWN | {"tenant": "acme", "state": "draining", "left": 7}
    assert found.json() == {
        "tenant": "acme",
        "queue": "orders",
        "cluster": "us",
        "moves": [mine],
        "clusters": [{"cluster": "us", "share": 1.0}],
        "goal": [],
    }
    absent = await http.get("/v1/cluster/queues/acme/none")
    assert (absent.status_code, absent.json()["code"]) == (404, "queue-not-found")


async def test_a_queue_is_spread_over_clusters_and_its_place_says_how_far_that_is(world: World) -> None:
    await world.store.create_queue("default", "orders", QueueConfig())
    http = await world.client("operator")
    begun = await http.post("/v1/cluster/moves", json={"queue": "orders", "over": ["us", "eu"]})
    assert (begun.status_code, begun.json()["goal"]) == (202, ["us", "eu"])
    assert begun.headers["location"] == "/v1/cluster/queues/default/orders"
    assert begun.json() == (await http.get(begun.headers["location"])).json()
    world.moves.lies = [QueueShare("us", 171 / 256), QueueShare("eu", 85 / 256)]
    world.moves.found = [ORDERS._replace(share=43 / 256)]
    found = (await http.get(begun.headers["location"])).json()
    assert found["clusters"] == [{"cluster": "us", "share": 0.668}, {"cluster": "eu", "share": 0.332}]
    assert found["moves"] == [SHOWN | {"share": 0.168}]


async def test_a_queue_of_several_clusters_is_merged_by_a_move(world: World) -> None:
    http = await world.client("operator")
    for body in ({"to": "eu", "over": None}, {"to": None, "over": ["eu"]}):
        await world.store.create_queue("default", "orders", QueueConfig())
        assert (await http.post("/v1/cluster/moves", json={"queue": "orders", **body})).status_code == 202
    assert world.moves.found and world.moves.wanted == ["eu"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"queue": "orders", "to": "eu", "over": ["us", "eu"]}, 400, "set either to"),
        ({"queue": "orders", "over": []}, 400, "clusters, not 0"),
        (
            {"queue": "orders", "over": [str(number) for number in range(SPLIT_CLUSTERS_MAX + 1)]},
            400,
            "over must name 1 to 16",
        ),
        ({"queue": "orders", "over": ["us", ""]}, 400, "empty name"),
        ({"queue": "orders", "over": ["us", "us"]}, 400, "names a cluster twice"),
        ({"queue": "orders", "over": "us"}, 400, "over"),
        ({"queue": "orders", "over": ["us", "asia"]}, 404, "unknown cluster 'asia'"),
        ({"queue": "orders", "to": "asia"}, 404, "unknown cluster 'asia'"),
        ({"queue": "orders"}, 400, "to"),
        ({"queue": "orders", "to": "eu", "form": "us"}, 400, "form"),
    ],
)
async def test_a_move_that_cannot_begin_is_refused(world: World, body: Any, status: int, said: str) -> None:
    answer = await (await world.client("operator")).post("/v1/cluster/moves", json=body)
    assert answer.status_code == status and said in answer.text


async def test_a_move_is_not_given_up_when_the_new_cluster_has_the_queue(world: World) -> None:
    http = await world.client("operator")
    world.moves.found = [ORDERS._replace(state="draining")]
    assert (await http.delete("/v1/cluster/moves/default/orders")).status_code == 409
    world.moves.found = []
    assert (await http.delete("/v1/cluster/moves/default/none")).status_code == 404


async def test_a_move_to_nowhere_names_both_fields_that_say_where(world: World) -> None:
    answer = await (await world.client("operator")).post("/v1/cluster/moves", json={"queue": "orders"})
    assert [one["pointer"] for one in answer.json()["errors"]] == ["/to", "/over"]


CALLS = (
    ("GET", "/v1/cluster/moves"),
    ("POST", "/v1/cluster/moves"),
    ("DELETE", "/v1/cluster/moves/default/orders"),
    ("GET", "/v1/cluster/queues/default/orders"),
)


async def test_moves_are_for_operators(world: World) -> None:
    http = await world.client("admin")
    assert {(await http.request(*call, json=None)).status_code for call in CALLS} == {403}


async def test_a_server_that_keeps_its_messages_itself_has_no_moves(store: Store, clock: Clock, world: World) -> None:
    object.__setattr__(world.app.gateway, "clusters", None)
    http = await world.client("operator", "manage:*", "view:*")
    for call in CALLS:
        answer = await http.request(*call)
        assert answer.status_code == 404 and "stores messages itself" in answer.json()["detail"]
    made = await http.put("/v1/queues/orders", json={})
    assert made.status_code == 201 and "cluster" not in made.json()


async def test_the_audit_says_which_queue_was_to_go_where(world: World) -> None:
    http = await world.client("operator")
    await http.post("/v1/cluster/moves", json={"queue": "orders", "to": "eu"})
    await http.delete("/v1/cluster/moves/default/orders")
    given_up, begun = await world.acts()
    made = {change["field"]: msgspec.json.decode(change["after"]) for change in begun["changes"]}
    assert (begun["action"], made) == (
        "moves.begin",
        {"tenant": "default", "queue": "orders", "from": "us", "to": "eu"},
    )
    assert (given_up["action"], given_up["target"]) == ("moves.give_up", "/v1/cluster/moves/default/orders")


async def test_the_audit_says_over_which_clusters_a_queue_was_to_lie(world: World) -> None:
    await world.store.create_queue("default", "orders", QueueConfig())
    await (await world.client("operator")).post("/v1/cluster/moves", json={"queue": "orders", "over": ["us", "eu"]})
    [begun] = await world.acts()
    made = {change["field"]: msgspec.json.decode(change["after"]) for change in begun["changes"]}
    assert made == {
        "tenant": "default",
        "queue": "orders",
        "clusters": [{"cluster": "us", "share": 1.0}],
        "goal": ["us", "eu"],
    }


async def test_a_queue_tells_its_cluster(world: World) -> None:
    http = await world.client("manage:*", "view:*")
    made = await http.put("/v1/queues/orders", json={})
    assert (made.status_code, made.json()["cluster"]) == (201, "us")
    [listed] = (await http.get("/v1/queues")).json()["items"]
    assert listed["cluster"] == "us"
