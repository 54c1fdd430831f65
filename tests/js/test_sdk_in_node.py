"""The JavaScript SDK in Node: its rules against fakes, its example and its transports against the real server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.server import PushqServer

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[1] / "push" / "js" / "example.mjs"
RUN_S_MAX = 60
SIDE_BY_SIDE = 3
"""Processes of Node that share the files: most of the time each waits for a clock."""


def run(node: str, *arguments: str, server: PushqServer | None = None, queue: str = "orders") -> str:
    """Runs Node to its end and returns what it printed; anything but exit code 0 fails the test."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PUSHQ_")}
    if server is not None:
        env |= {"PUSHQ_URL": server.url, "PUSHQ_KEY": server.key, "PUSHQ_QUEUE": queue}
    ended = subprocess.run(
        [node, *arguments], env=env, cwd=HERE, capture_output=True, text=True, check=False, timeout=RUN_S_MAX
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def test_the_rules_of_the_sdk_hold(node: str) -> None:
    files = sorted(path.name for path in HERE.glob("*.test.mjs"))
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        shares = [files[first::SIDE_BY_SIDE] for first in range(SIDE_BY_SIDE)]
        printed = list(threads.map(lambda share: run(node, "all.mjs", *share), shares))
    passed = [re.search(r"^# pass (\d+)$", said, re.MULTILINE) for said in printed]
    assert sum(int(one[1]) for one in passed if one) > 10 * len(files), printed


@pytest.mark.parametrize("transport", ["ws", "sse", "poll"])
def test_the_example_runs_over_each_transport(node: str, shared_server: PushqServer, transport: str) -> None:
    queue = f"orders-{transport}"
    # Node 20 has a WebSocket behind this flag; later ones have it anyway and know the flag still.
    printed = run(node, "--experimental-websocket", str(EXAMPLE), transport, server=shared_server, queue=queue)
    lines = printed.splitlines()
    assert lines[0].endswith(f"over {transport}")
    assert sorted(line for line in lines if line.startswith("order ")) == [
        "order 1, attempt 1",
        "order 2, attempt 1",
        "order 3, attempt 1",
        "order 3, attempt 2",
        "order 4, attempt 1",
        "order 5, attempt 1",
    ]
    assert lines[-1] == "all orders are done"
    request = urllib.request.Request(f"{shared_server.url}/v1/queues/{queue}", headers=shared_server.headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        stats = json.load(answer)["stats"]
    assert (stats["ready"], stats["in_flight"], stats["acked_total"]) == (0, 0, 5)


def test_without_a_websocket_the_example_falls_back_to_sse(node: str, shared_server: PushqServer) -> None:
    major = int(subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout[1:3])
    flags = ["--no-experimental-websocket"] if major >= 22 else []
    printed = run(node, *flags, str(EXAMPLE), server=shared_server, queue="orders-any")
    assert "over sse" in printed.splitlines()[0]
