"""`pushq metadata` as a process of its own: what it confirmed is there after a kill, and it ends when asked to."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from backend_store.metadata.remote import RemoteMetadata
from backend_store.model import QueueConfig, Unavailable
from tests.support.cli import run
from tests.support.environment import without_settings
from tests.support.metadata import MetadataProcess

pytestmark = pytest.mark.anyio


async def test_what_it_confirmed_is_there_after_a_kill(tmp_path: Path) -> None:
    with MetadataProcess(tmp_path / "meta") as process:
        remote = RemoteMetadata(process.url, process.secret)
        try:
            assert await remote.connected(5)
            made, _ = await remote.create_queue("default", "q", QueueConfig(kind="stream"))
            process.kill()
            process.start()
            assert (await _answered(lambda: remote.get_queue("default", "q"))).value == made
            assert len(await remote.list_keys()) == 1, "the key of the first start, and no other"
        finally:
            await remote.close()
        assert process.stop() == 0


async def _answered(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The answer, as soon as there is a connection again."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await ask()
            except Unavailable:
                await asyncio.sleep(0.02)


def test_its_secrets_are_for_the_owner_of_the_folder_only(tmp_path: Path) -> None:
    with MetadataProcess(tmp_path / "meta") as process:
        for file in (process.secret_file, process.data / "admin.key"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert process.key.startswith("pushq_")


@pytest.mark.parametrize(
    ("listen", "told"),
    [("0.0.0.0:0", "--tls-cert, --tls-key and --tls-ca"), ("127.0.0.1", "HOST:PORT"), ("127.0.0.1:1", "cannot listen")],
)
def test_it_refuses_an_address_it_cannot_serve_safely(tmp_path: Path, listen: str, told: str) -> None:
    with socket.socket() as other:
        if listen.endswith(":1"):
            other.bind(("127.0.0.1", 0))
            other.listen()
            listen = f"127.0.0.1:{other.getsockname()[1]}"
        ended = run("metadata", "--data", str(tmp_path / "meta"), "--listen", listen, env=without_settings())
    assert ended.code in (2, 3) and told in ended.err


def test_what_is_for_several_hosts_needs_a_coordinator(tmp_path: Path) -> None:
    command = ["metadata", "--data", str(tmp_path / "meta"), "--form", "ring"]
    ended = run(*command, env=without_settings())
    assert ended.code == 2 and "require --etcd" in ended.err
    ended = run(*command, "--etcd", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", env=without_settings())
    assert ended.code == 3 and "cannot use etcd at http://127.0.0.1:1" in ended.err
