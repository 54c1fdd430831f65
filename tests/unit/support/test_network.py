from __future__ import annotations

import socket

import pytest

from tests.support import network


def test_connect_to_another_machine_is_refused_and_remembered() -> None:
    with socket.socket() as outgoing, pytest.raises(network.OutsideConnect, match=r"192\.0\.2\.1"):
        outgoing.connect(("192.0.2.1", 80))  # TEST-NET-1: nobody lives there
    assert network.refused == ["('192.0.2.1', 80)"]
    network.refused.clear()


def test_connect_to_this_machine_is_let_through() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        pass
    assert network.refused == []


@pytest.mark.anyio
async def test_async_tests_run_on_asyncio_in_debug_mode() -> None:
    import asyncio

    assert asyncio.get_running_loop().get_debug()
