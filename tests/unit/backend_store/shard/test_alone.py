from pathlib import Path

import pytest

from backend_store.node.node import Node
from backend_store.shard.alone import open_alone
from backend_store.shard.interface import Shard, ShardHost

pytestmark = pytest.mark.anyio


async def test_host_alone_leads_its_shard_until_it_is_closed(tmp_path: Path) -> None:
    alone = await open_alone(tmp_path, address="127.0.0.1:9")
    host: ShardHost = alone
    told: list[object] = []

    def on_lead(shard: Shard, node: Node) -> None:
        told.append(shard.node is node)

    host.listen(on_lead=on_lead, on_lose=lambda shard: told.append(shard.node))
    assert [leader.address for leader in host.leaders.values()] == ["127.0.0.1:9"]
    await alone.close()
    assert told == [True, None]
    assert not host.leaders
