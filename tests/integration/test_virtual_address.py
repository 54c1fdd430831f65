"""One address in front of two balancers: it moves when one of them dies, and clients go on where they were."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.js.conftest import node_path
from tests.support.balancers import DEPLOY, Balancer, Site, mistakes, put_files
from tests.support.hosts import Host
from tests.support.patience import PATIENCE_S, until
from tests.support.steady_history import Steady

CONFIG = DEPLOY / "keepalived" / "keepalived.conf"
ROOT = DEPLOY.parent
MOVED_S_MAX = PATIENCE_S
"""Two checks a second apart, and less than four announcements; the rest is for a machine that does much else."""
BACK_S_MAX = 2 * PATIENCE_S
"""A client that is cut again and again waits longer each time."""
ROUND = 20
QUEUE = "--dedupe", "id", "--visibility-timeout-ms", "5000"
"""What was on its way to a connection that was cut comes again when its lease ends."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as site:
        yield site


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Host]:
    """With the interface and the script that the file names."""
    with Host("machine", tmp_path) as host:
        host.run("ip", "link", "add", "eth0", "type", "bridge")
        put_files(host)
        yield host


@pytest.mark.parametrize("role", ["primary", "secondary"])
def test_the_file_has_no_mistake(role: str, machine: Host, tmp_path: Path) -> None:
    assert mistakes(machine, role, CONFIG, tmp_path / "said") == ""


def test_a_mistake_in_it_is_found(machine: Host, tmp_path: Path) -> None:
    here = tmp_path / "keepalived.conf"
    here.write_text(CONFIG.read_text().replace("$ROUTER=51", "$ROUTER=999"))
    assert "999" in mistakes(machine, "primary", here, tmp_path / "said")


def check_moved(site: Site, sessions: Sequence[Steady], holder: Balancer) -> None:
    """The address is at `holder`, which knows; the sessions came back there and go on."""
    before = [session.count("acked") for session in sessions]
    took_s = site.wait_for_vip(holder, MOVED_S_MAX)
    print(f"the address moved to the {holder.role} after {took_s:.1f} s")
    until(lambda: holder.state() == "MASTER", holder.log, within_s=MOVED_S_MAX)
    for session, acked in zip(sessions, before, strict=True):
        session.wait_for("acked", acked + ROUND, BACK_S_MAX)


@pytest.mark.parametrize("is_back", [False, True], ids=["once", "there and back"])
def test_the_address_moves_and_sessions_go_on(site: Site, *, is_back: bool) -> None:
    """Once under a client in Python; there and back under one in Node too."""
    env = site.env | {"PYTHONPATH": str(ROOT), "NODE_EXTRA_CA_CERTS": str(site.authority.certificate)}
    python = [sys.executable, "-m", "tests.support.steady_client"]
    node = [node_path(), "--experimental-websocket", str(ROOT / "tests" / "js" / "names" / "steady.mjs")]
    sessions = []
    clients = (("python", python, "ws"), ("node", node, "websocket"))
    for name, command, transport in clients if is_back else clients[:1]:
        site.client.run(sys.executable, "-m", "gateway", "queue", "create", name, *QUEUE, env=env)
        sessions.append(Steady(site.client, name, [*command, site.url, name, transport], env))
    for session in sessions:
        session.wait_for("acked", ROUND, BACK_S_MAX)

    site.primary.kill_haproxy()
    check_moved(site, sessions, site.secondary)
    assert site.primary.state() == "FAULT"

    # The first one is well again, and the address stays: coming back must cost no client its connection.
    site.primary.start_haproxy()
    until(lambda: site.primary.state() == "BACKUP", site.primary.log, within_s=MOVED_S_MAX)
    assert site.secondary.has_vip()
    if is_back:
        site.secondary.kill_keepalived()
        check_moved(site, sessions, site.primary)

    for session in sessions:
        seen = session.finish()
        assert (seen.lost, seen.again) == ([], []), session.name
        assert seen.published >= (3 if is_back else 2) * ROUND
    connected = [each for each in sessions[0].events() if each["event"] == "connected"]
    assert [each["resumed"] for each in connected] == [False] + [True] * (len(connected) - 1)
    assert len(connected) >= (3 if is_back else 2)
