"""`pushq metadata` as a process of its own: what it confirmed is there after a kill, and it ends when asked to."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from backend_store.metadata.remote import RemoteMetadata
from backend_store.model import QueueConfig, Unavailable
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
    ("listen", "told"), [("0.0.0.0:0", "without TLS"), ("127.0.0.1", "HOST:PORT"), ("127.0.0.1:1", "cannot listen")]
)
def test_it_refuses_an_address_it_cannot_serve_safely(tmp_path: Path, listen: str, told: str) -> None:
    command = [sys.executable, "-m", "gateway", "metadata", "--data", str(tmp_path / "meta"), "--listen", listen]
    if listen.endswith(":1"):
        with MetadataProcess(tmp_path / "other") as other:
            command[-1] = f"127.0.0.1:{other.port}"
            ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    else:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode in (2, 3) and told in ended.stderr


def test_what_is_for_several_hosts_needs_a_coordinator(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gateway", "metadata", "--data", str(tmp_path / "meta"), "--form", "ring"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2 and "need --etcd" in ended.stderr
    command += ["--etcd", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 3 and "cannot use etcd at http://127.0.0.1:1" in ended.stderr
