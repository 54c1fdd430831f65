"""What the suites about coordinators stand on: one etcd a file, and keys of their own for each test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from backend_store.cluster.coordinator import Coordinator
from tests.support.coordinators import Coordinated, open_folder, over_etcd
from tests.support.etcd import Etcd

# Promises that several files take in: a failure shows what the two sides were, as in a file of tests.
pytest.register_assert_rewrite("tests.contracts.storage_promises")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture(params=["embedded", "etcd"])
async def coordinated(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Coordinated]:
    if request.param == "embedded":
        host = open_folder(tmp_path / "data")

        @asynccontextmanager
        async def same() -> AsyncIterator[Coordinator]:
            yield host.coordinator

        yield Coordinated(host.coordinator, host.coordinator.compact, same)
        await host.close()
        return
    cluster: Etcd = request.getfixturevalue("etcd")
    namespace = f"{uuid.uuid4()}/".encode()
    async with over_etcd(*cluster.endpoints, namespace=namespace) as coordinator:
        yield Coordinated(coordinator, cluster.compact, lambda: over_etcd(*cluster.endpoints, namespace=namespace))


@pytest.fixture
async def coordinator(coordinated: Coordinated) -> Coordinator:
    return coordinated.coordinator
