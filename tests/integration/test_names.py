"""Several addresses under one name: clients go on when one is dead, on no machine, or takes connections in silence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.js.conftest import node_path
from tests.support.hosted import HostedPushq, name_server, silent
from tests.support.hosts import Host
from tests.support.patience import PATIENCE_S
from tests.support.steady_history import Steady

ROOT = Path(__file__).resolve().parents[2]
STORY = ROOT / "tests" / "js" / "names" / "steady.mjs"
NAME = "pushq.test"
REFUSING = "refusing.test"
"""The same without the silent address: Node waits for one that takes the connection and is silent."""
PORT = 8080
NOBODY, SILENT, FIRST, SECOND = (f"127.0.0.{last}:{PORT}" for last in (11, 12, 13, 14))
GONE = f"192.0.2.99:{PORT}"
"""The machine is not there: no answer and no refusal, as from an address that moved nowhere."""
URL = f"http://{NAME}:{PORT}"
NODE_URL = f"http://{REFUSING}:{PORT}"
IN_PYTHON = ("python", sys.executable, "-m", "tests.support.steady_client")
ROUND = 10
FOUND_S_MAX = 2 * PATIENCE_S
"""Three of five addresses are bad; a silent one costs 3 s, and a client may meet it more than once."""
CALL_S_MAX = 20.0


class World(NamedTuple):
    host: Host
    server: HostedPushq

    @property
    def env(self) -> dict[str, str]:
        return {"PUSHQ_URL": URL, "PUSHQ_KEY": self.server.key, "PYTHONPATH": str(ROOT)}

    def move(self, listen: str) -> None:
        """The server crashes, and comes back at this address."""
        self.server.kill()
        self.server.start(listen)

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command line, with the name alone to go by."""
        command = self.host.command(sys.executable, "-m", "gateway", *arguments)
        return subprocess.run(
            command, env=self.env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=CALL_S_MAX
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("names")
    with Host("one", folder) as host:
        _lead_nowhere(host, GONE.rpartition(":")[0])
        records = {NAME: (NOBODY, SILENT, GONE, FIRST, SECOND), REFUSING: (NOBODY, GONE, FIRST, SECOND)}
        name_server(host, {name: [each.rpartition(":")[0] for each in several] for name, several in records.items()})
        silent(host, SILENT)
        with HostedPushq(host, folder / "data", FIRST) as server:
            yield World(host, server)


def _lead_nowhere(host: Host, address: str) -> None:
    """What is sent to `address` leaves for a machine that is not there."""
    host.run("ip", "link", "add", "nowhere", "type", "veth", "peer", "name", "void")
    host.run("ip", "link", "set", "void", "up")
    host.run("ip", "link", "set", "nowhere", "up")
    host.run("ip", "address", "add", "192.0.2.1/24", "dev", "nowhere")
    host.run("ip", "neighbour", "add", address, "lladdr", "02:00:00:00:00:01", "dev", "nowhere", "nud", "permanent")


def steady(world: World, queue: str, url: str, transport: str, *command: str) -> Steady:
    world.server.create_queue(queue, dedupe="id", visibility_timeout_ms=5000)
    return Steady(world.host, queue, [*command, url, queue, transport], world.env)


def test_the_name_server_gives_every_address_and_not_always_in_one_order(world: World) -> None:
    orders = {world.host.run("getent", "ahosts", NAME) for _ in range(8)}
    firsts = {order.split()[0] for order in orders}
    assert len(firsts) > 1
    assert all(len({line.split()[0] for line in order.splitlines()}) == 5 for order in orders)


@pytest.mark.parametrize(
    ("python", "node"),
    [(["ws", "poll"], []), (["sse"], ["websocket", "sse", "longpoll"])],
    ids=["two in Python", "the others and in Node"],
)
def test_clients_find_the_address_that_works_at_first_and_when_it_moves(
    world: World, python: list[str], node: list[str]
) -> None:
    if world.server.listen != FIRST:
        world.move(FIRST)
    in_node = ("node", node_path(), "--experimental-websocket", str(STORY))
    clients = [
        steady(world, f"{language}-{transport}", url, transport, *command)
        for (language, *command), url, transports in ((IN_PYTHON, URL, python), (in_node, NODE_URL, node))
        for transport in transports
    ]
    for client in clients:
        client.wait_for("acked", ROUND, FOUND_S_MAX)
    world.move(SECOND)
    before = {client.name: client.count("acked") for client in clients}
    for client in clients:
        client.wait_for("acked", before[client.name] + ROUND, FOUND_S_MAX)
    for client in clients:
        seen = client.finish()
        assert (seen.lost, seen.again) == ([], []), client.name
        assert seen.published >= 2 * ROUND


def test_commands_find_it_each_time(world: World) -> None:
    assert world.call("queue", "create", "orders").returncode == 0
    world.move(FIRST if world.server.listen == SECOND else SECOND)
    published = world.call("publish", "orders", "one")
    assert published.returncode == 0, published.stderr
    ran = world.call("consume", "orders", "--count", "1")
    assert '"one"' in ran.stdout, ran.stderr


def test_when_nobody_answers_the_command_ends_with_its_code_for_it(world: World) -> None:
    world.server.kill()
    ran = world.call("publish", "orders", "one")
    assert ran.returncode == 5, ran
