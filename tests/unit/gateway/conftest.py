"""A store in memory for the gateway's unit tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from backend_store.client import Store
from backend_store.node.node import Node
from backend_store.storage.memory import MemoryEngine


class Clock:
    """Milliseconds that a test moves by hand."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(clock: Clock, anyio_backend: object) -> AsyncIterator[Store]:
    node = Node(MemoryEngine(), directory=None, clock_ms=clock)
    await node.start()
    yield Store(node)
    await node.close()
