"""The JavaScript SDK in Node against the real server: the same stories over each transport."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.server import SOON_BACK, PushqServer

HERE = Path(__file__).resolve().parent / "server"
STORIES = sorted(path.name for path in HERE.glob("*.test.mjs"))
RUN_S_MAX = 120
SERVER_ENV = SOON_BACK


@pytest.mark.parametrize("transport", ["ws", "sse", "poll"])
@pytest.mark.parametrize("story", STORIES)
def test_the_sdk_and_the_server_agree(node: str, shared_server: PushqServer, story: str, transport: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PUSHQ_")}
    env |= {"PUSHQ_URL": shared_server.url, "PUSHQ_KEY": shared_server.key, "PUSHQ_TRANSPORT": transport}
    # Node 20 has a WebSocket behind this flag; later ones have it anyway and know the flag still.
    command = [node, "--experimental-websocket", "--test-reporter=spec", story]
    ended = subprocess.run(command, env=env, cwd=HERE, capture_output=True, text=True, check=False, timeout=RUN_S_MAX)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
