"""Which backends of a cluster are there: by the words of several, and in a gateway that outlives all it was told of."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from backend_store.client.embedded import EmbeddedStore
from backend_store.model import QueueConfig, Unavailable
from backend_store.node.node import Node
from backend_store.remote import store as stores
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.limits import BACKENDS_HEARD_MAX
from backend_store.remote.line.backend_addresses import Addresses, There
from backend_store.remote.store import RemoteBackends
from backend_store.service.serving import StoreServer, StoreService
from backend_store.storage.memory import MemoryEngine
from backend_store.wire.store_frames import BackendAt
from push.delivery.lookup_retry import LookingUp
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio

A, B, C = (BackendAt(name, f"192.0.2.1:{number}") for number, name in enumerate("abc"))


def test_who_is_there_by_the_word_of_one_that_is_connected_is_there() -> None:
    heard: list[There] = []
    addresses = Addresses(heard.append)
    addresses.said("line 0", [A, B])
    addresses.said("line 1", [B, C])
    assert heard == [[A, B], [A, B, C]]
    addresses.silent("line 0")
    assert addresses.there == [B, C]
    addresses.said("line 1", [C])
    assert addresses.there == [C]


def test_the_last_word_counts_while_nobody_is_connected() -> None:
    addresses = Addresses(lambda there: None)
    addresses.said("line 0", [A, B])
    addresses.silent("line 0")
    assert addresses.there == [A, B]
    addresses.said("line 1", [B])
    assert addresses.there == [B]
    addresses.said("line 1", [])
    assert addresses.there == [B]


def test_nobody_hears_of_what_changes_while_all_lines_are_closed() -> None:
    heard: list[There] = []
    addresses = Addresses(heard.append)
    addresses.said("line 0", [A, B])
    addresses.said("line 1", [A])
    addresses.close()
    addresses.silent("line 0")
    assert heard == [[A, B]]


def test_a_lane_that_one_of_them_knows_of_is_there() -> None:
    addresses = Addresses(lambda there: None)
    with_lane = BackendAt("a", A.address, has_lane=True)
    addresses.said("line 0", [A])
    addresses.said("line 1", [with_lane])
    addresses.said("line 2", [A])
    assert addresses.there == [with_lane]


@pytest.mark.parametrize("address", ["", "0.0.0.0:8092", "[::]:8092", "nowhere", "a:b"])
def test_what_cannot_be_gone_to_is_left_out(address: str) -> None:
    addresses = Addresses(lambda there: None)
    addresses.said("line 0", [A, BackendAt("d", address)])
    assert addresses.there == [A]


def test_no_more_are_taken_than_there_may_be() -> None:
    addresses = Addresses(lambda there: None)
    many = [BackendAt(f"{n:04}", f"192.0.2.1:{n + 1}") for n in range(2 * BACKENDS_HEARD_MAX)]
    addresses.said("line 0", many)
    addresses.said("line 1", many[BACKENDS_HEARD_MAX:])
    assert addresses.there == many[:BACKENDS_HEARD_MAX]


class Cluster:
    """Backends of one shard that lies with whoever a test says leads it. None of them says who that is."""

    def __init__(self) -> None:
        self.node = Node(MemoryEngine(), directory=None)
        self.servers: dict[str, StoreServer] = {}
        self.ports: dict[str, int] = {}
        self._services: dict[str, dict[int, StoreService]] = {}
        self._leader: dict[int, StoreService] = {}
        self.stores: list[RemoteBackends] = []

    @property
    def there(self) -> list[BackendAt]:
        return [BackendAt(name, f"127.0.0.1:{self.ports[name]}") for name in sorted(self.servers)]

    async def join(self, name: str) -> None:
        services = self._services[name] = {}
        server = StoreServer(services, there=lambda: self.there)
        self.ports[name] = await server.listen("127.0.0.1", 0, None)
        self.servers[name] = server
        self._tell()

    def lead(self, name: str) -> None:
        for shard in self._leader:
            self._leader[shard].close()
        for services in self._services.values():
            services.clear()
        self._leader = self._services[name]
        self._leader[0] = StoreService(EmbeddedStore(self.node))
        self.servers[name].led()

    async def leave(self, name: str) -> None:
        server = self.servers.pop(name)
        await server.close()
        self._tell()

    def _tell(self) -> None:
        for server in self.servers.values():
            server.tell_backends()

    async def gateway(self, *names: str) -> RemoteBackends:
        addresses = [("127.0.0.1", self.ports[name]) for name in names]
        made = RemoteBackends(FixedDirectory(addresses), None, LookingUp, addresses=addresses)
        self.stores.append(made)
        await made.open()
        return made

    async def close(self) -> None:
        for store in self.stores:
            await store.close()
        for service in self._leader.values():
            service.close()
        for server in self.servers.values():
            await server.close()
        await self.node.close()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    await made.node.start()
    for name in "abc":
        await made.join(name)
    made.lead("a")
    try:
        yield made
    finally:
        await made.close()


async def test_a_gateway_goes_on_when_every_backend_that_it_was_told_of_is_replaced(cluster: Cluster) -> None:
    store = await cluster.gateway("a", "b", "c")
    for number, (gone, new) in enumerate(["ad", "be", "cf", "dg"]):
        await cluster.join(new)
        cluster.lead(new)
        await cluster.leave(gone)
        await eventually(lambda: store.first.line.is_open)
        await store.create_queue("default", f"q{number}", QueueConfig(encrypted=False))
    assert len(cluster.node.metadata.queues) == 4


async def test_a_gateway_that_is_told_of_one_that_does_not_lead_finds_the_leader(cluster: Cluster) -> None:
    await cluster.join("d")
    cluster.lead("d")
    store = await cluster.gateway("b")
    assert store.first.line.is_open


async def test_a_gateway_that_was_told_of_nobody_who_is_left_says_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "START_SECONDS_MAX", 0.1)
    await cluster.join("d")
    cluster.lead("d")
    await cluster.leave("a")
    with pytest.raises(Unavailable, match="the backend of shard 0 is unreachable"):
        await cluster.gateway("a")


async def test_a_gateway_whose_backends_lead_nothing_says_where_it_asked(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "START_SECONDS_MAX", 0.1)
    server = StoreServer({})
    address = ("127.0.0.1", await server.listen("127.0.0.1", 0, None))
    store = RemoteBackends(FixedDirectory([address]), None, LookingUp, addresses=[address])
    with pytest.raises(Unavailable, match=rf"^the backend of shard 0 is not at 127\.0\.0\.1:{address[1]}$"):
        await store.open()
    await server.close()
