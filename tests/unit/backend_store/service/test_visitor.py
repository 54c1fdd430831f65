"""A backend and a gateway's line to it, over a real socket."""

from __future__ import annotations

import pytest

from backend_store.remote.directory import FixedDirectory
from backend_store.remote.line import Line
from backend_store.service.limits import VISITOR_OUTBOX_BYTES_MAX
from backend_store.service.serving import StoreServer, StoreService
from backend_store.wire.store_frames import (
    STORE_FRAME_BYTES_MAX,
    Place,
    Want,
)
from tests.support.gateways import Gateway
from tests.support.patience import eventually
from tests.support.queues import draft
from tests.support.stores import made, opened, published

pytestmark = pytest.mark.anyio

MESSAGES = 100
BODY = "x" * 1_000_000
WAIT_S = 60


async def test_a_backlog_of_big_messages_comes_in_frames_that_a_gateway_takes() -> None:
    """More than one frame may have was once leased in one turn: the line broke, and again with each new try."""
    assert MESSAGES * len(BODY) > STORE_FRAME_BYTES_MAX
    store = await opened()
    queue = await made(store, "big", max_message_bytes=1 << 20)
    for _ in range(MESSAGES):
        await published(queue, draft(BODY))
    service = StoreService(store)
    server, gateway = StoreServer({0: service}), Gateway()
    port = await server.listen("127.0.0.1", 0, None)
    line = Line(0, FixedDirectory([("127.0.0.1", port)]), gateway, "gateway", None)
    try:
        assert await line.opened(WAIT_S)
        line.want(Want(Place("default", "big", queue.uid), 3_600_000, 2 * MESSAGES, 10))
        await eventually(lambda: gateway.messages >= MESSAGES, within_s=WAIT_S)
        assert (gateway.messages, line.connections) == (MESSAGES, 1)
        assert gateway.biggest_bytes < VISITOR_OUTBOX_BYTES_MAX
    finally:
        await line.close()
        service.close()
        await server.close()
        await store.close()
