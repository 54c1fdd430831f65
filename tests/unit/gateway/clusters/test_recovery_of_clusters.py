"""What the backends of further clusters keep in quarantine, as a gateway shows it and drops it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from backend_store.service.recovering import operate
from backend_store.shard.departures import _kept_in, _put_aside
from backend_store.shard.recovery import Recovery as Kept
from gateway.clusters.recovery import Recovery
from gateway.clusters.watch import ClusterWatch
from tests.support.patience import eventually
from tests.unit.backend_store.remote.test_clusters import PLAIN, World
from tests.unit.backend_store.shard.test_quarantine import SHARD
from tests.unit.backend_store.shard.test_recovery import copy_of

pytestmark = pytest.mark.anyio


class HomeBackends:
    """Those of the home cluster; there are none."""

    def backends(self) -> dict[str, str | None]:
        return {}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Its further cluster keeps a piece of two messages."""
    shards = tmp_path / "shards"
    shards.mkdir(mode=0o700)
    folder = copy_of(shards, high_watermark=1)
    assert _kept_in(folder, SHARD, has_tail=True) == 2
    _put_aside(folder, f"{folder.name}-disk")
    async with AsyncExitStack() as opened:
        made = World(opened)
        made.eu.operate = partial(operate, Kept({}, shards))
        await made.open()
        yield made


async def test_what_backends_of_further_clusters_keep_is_shown_and_dropped(world: World) -> None:
    store = await world.ready()
    recovery = Recovery(cast(ClusterWatch, HomeBackends()), store, None)
    found = await recovery.survey()
    [(host, port)] = world.eu.at.addresses
    assert [(piece.messages, piece.backends) for piece in found.pieces] == [(2, [f"eu/{host}:{port}"])]
    assert found.unreachable == []
    await recovery.drop(found.pieces[0].name, 2)
    assert (await recovery.survey()).pieces == []


async def test_a_cluster_that_is_not_ours_is_not_asked(world: World) -> None:
    theirs = await world.gateway(world.eu.at, [])
    await theirs.create_queue("default", "q", PLAIN)
    store = await world.gateway()
    await eventually(lambda: store.clusters["eu"].is_met)
    found = await Recovery(cast(ClusterWatch, HomeBackends()), store, None).survey()
    assert (found.pieces, len(found.unreachable)) == ([], 1)
