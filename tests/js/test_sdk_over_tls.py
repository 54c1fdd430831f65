"""The JavaScript SDK in Node over https:// and wss://: it trusts whom Node is told to trust."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.server import PushqServer
from tests.support.tls import Authority, settings

SDK = Path(__file__).resolve().parents[2] / "push" / "js" / "pushq.js"
PROGRAM = """
import {connect} from '%s'
const {PUSHQ_URL: url, PUSHQ_KEY: key, PUSHQ_TRANSPORT: transport} = process.env
const pushq = connect({url, token: async () => key, transports: [transport]})
const got = new Promise(heard => pushq.subscribe('orders', {credit: 1}, async message => heard(message.body)))
await pushq.publish('orders', 'over ' + transport)
console.log(await got)
await pushq.close()
process.exit(0)
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    data = tmp_path_factory.mktemp("tls") / "data"
    with PushqServer(data, env=settings(authority.issue()), tls=authority.context()) as server:
        made = httpx2.put(f"{server.url}/v1/queues/orders", headers=server.headers, verify=authority.context())
        assert made.status_code == 201
        yield server


@pytest.mark.parametrize("transport", ["ws", "sse", "poll"])
def test_node_publishes_and_is_pushed_to_over_tls(
    node: str, server: PushqServer, authority: Authority, tmp_path: Path, transport: str
) -> None:
    program = tmp_path / "program.mjs"
    program.write_text(PROGRAM % SDK)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PUSHQ_")}
    env |= {"PUSHQ_URL": server.url, "PUSHQ_KEY": server.key, "PUSHQ_TRANSPORT": transport}
    env |= {"NODE_EXTRA_CA_CERTS": str(authority.certificate)}
    command = [node, "--experimental-websocket", str(program)]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=30)
    assert ended.stdout == f"over {transport}\n", f"{ended.stdout}\n{ended.stderr}"
