"""The cluster's demo in real Chromium: a leader, a gateway and the balancer are killed by their buttons, and no message
is missing or doubled."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.waiting import wait_until
from tests.support.environment import without_settings
from tests.support.patience import PATIENCE_S, until
from tests.support.prerequisites import require
from tests.support.server import free_port

ROOT = Path(__file__).resolve().parents[2]
READY_S_MAX = 4 * PATIENCE_S
AGAIN_S_MAX = 4 * PATIENCE_S
"""Far above the seconds that are promised: a session that ends, an election, a start."""
STREAM_SHARD = 1
"""The first queue lies there: the shard with the definitions comes last of those that have as many queues."""


@pytest.fixture(scope="module")
def demo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    require("etcd")
    require("haproxy")
    folder = tmp_path_factory.mktemp("cluster-demo")
    log = folder / "demo.log"
    command = [sys.executable, "-m", "gateway", "dev-cluster", "demo", "--directory", str(folder / "cluster")]
    command += ["--listen", f"127.0.0.1:{free_port()}"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=without_settings(), stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        until(lambda: process.poll() is not None or "demo: " in log.read_text(), log.read_text, within_s=READY_S_MAX)
        found = re.search(r"^demo: (\S+)$", log.read_text(), re.MULTILINE)
        assert found is not None, log.read_text()
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(READY_S_MAX) == 0, log.read_text()
    assert f"{folder}" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def demo(page: Page, demo_url: str) -> Page:
    page.goto(demo_url)
    wait_until(page, "Number(document.getElementById('received').textContent.replace(',', '')) > 50")
    return page


def figure(page: Page, name: str) -> int:
    return int(page.locator(f"#{name}").inner_text().replace(",", ""))


def kill(page: Page, *names: str) -> None:
    """Press their buttons, and wait until they are up again as other processes and every message has come."""
    parts = {name: page.locator(f"#part-{name}") for name in names}
    processes = {name: part.locator(".pid").inner_text() for name, part in parts.items()}
    received = figure(page, "received")
    for name in names:
        page.get_by_role("button", name=f"Kill {name}").click()
    for name, part in parts.items():
        expect(page.locator("#events")).to_contain_text(f"{name} got SIGKILL")
        expect(part).to_have_attribute("data-state", "up", timeout=AGAIN_S_MAX * 1000)
        expect(part.locator(".pid")).not_to_have_text(processes[name])
    expect(page.locator("#status")).to_contain_text("Nothing is missing, nothing doubled", timeout=AGAIN_S_MAX * 1000)
    wait_until(
        page,
        f"Number(document.getElementById('received').textContent.replaceAll(',', '')) > {received + 100}",
        seconds_max=AGAIN_S_MAX,
    )
    expect(page.locator("#missing")).to_have_text("0")
    assert figure(page, "doubled") == 0


def test_a_leader_is_killed_by_its_button_and_nothing_is_missing_or_doubled(demo: Page) -> None:
    assert "token" not in demo.url
    leads = re.compile(rf"leads shards? .*\b{STREAM_SHARD}\b")
    leader = demo.locator(".part").filter(has_text=leads).locator("h3")
    expect(leader).to_have_count(1)
    kill(demo, leader.inner_text())
    expect(demo.locator("#events")).to_contain_text(f"it led shard {STREAM_SHARD}")


def test_a_gateway_and_the_balancer_are_killed_at_once_and_nothing_is_missing_or_doubled(demo: Page) -> None:
    kill(demo, "gateway1", "haproxy")


def test_the_page_fits_a_phone_and_every_button_says_what_it_kills(demo: Page) -> None:
    demo.set_viewport_size({"width": 320, "height": 640})
    assert demo.evaluate("document.documentElement.scrollWidth") == 320
    names = demo.get_by_role("button").evaluate_all("buttons => buttons.map((button) => button.ariaLabel)")
    assert sorted(names) == [
        f"Kill {name}" for name in ("backend1", "backend2", "backend3", "etcd", "gateway1", "gateway2", "haproxy")
    ]


def test_without_the_token_the_page_shows_nothing(page: Page, demo_url: str) -> None:
    page.goto(demo_url.partition("#")[0])
    expect(page.locator("#status")).to_contain_text("Open the address printed by the command")
    expect(page.locator(".part")).to_have_count(0)
