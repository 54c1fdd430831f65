"""The page of the node over a real cluster in real Chromium: a backend is drained there, and the page follows."""

from __future__ import annotations

from pathlib import Path

import httpx2
from playwright.sync_api import Browser, expect

from tests.browser.conftest import WAIT_MS_MAX
from tests.browser.console import check_look, sign_in
from tests.support.backends import ROLE, Backends
from tests.support.patience import until
from tests.support.prerequisites import require
from tests.support.server import PushqServer


def test_a_backend_is_drained_on_its_page_which_follows(browser: Browser, tmp_path: Path) -> None:
    require("etcd")
    with Backends(tmp_path, ROLE) as cluster:
        env = {"PUSHQ_CLUSTER__COORDINATOR": cluster.coordinator}
        with PushqServer(tmp_path / "gateway", env=env) as server, browser.new_context() as context:

            def leader() -> str | None:
                answer = httpx2.get(f"{server.url}/v1/cluster", headers=server.headers)
                shards = answer.json()["shards"] if answer.status_code == 200 else []
                led = [shard["leader"] for shard in shards if shard["serving"] and len(shard["in_sync"]) == 3]
                return led[0] if led else None

            until(lambda: leader() is not None, "all are in sync")
            led = leader()
            assert led is not None
            page = context.new_page()
            page.set_default_timeout(WAIT_MS_MAX)
            sign_in(page, server, "admin")
            page.goto(f"{server.url}/console/node")
            backends = page.get_by_role("region", name="Backends")
            row = backends.get_by_role("row").filter(has=page.get_by_role("rowheader", name=led, exact=True))
            row.locator("summary", has_text="Drain").press("Enter")
            expect(row).to_contain_text(f"{led} hands over shard 0.")
            check_look(page, "/console/node-drain", "dark")
            page.set_viewport_size({"width": 320, "height": 700})
            events = page.get_by_role("region", name="Events").locator("tbody tr")
            heights = events.evaluate_all("rows => rows.map((row) => row.getBoundingClientRect().height)")
            assert heights and max(heights) < 140, "texts stand one word to a line"
            page.set_viewport_size({"width": 1280, "height": 900})
            row.get_by_role("button", name="Drain").press("Enter")
            expect(page.locator(".notice")).to_contain_text("is draining")
            expect(row.locator("summary", has_text="End drain")).to_be_visible()
            page.evaluate("() => { window.isTheSame = true; }")
            shard = page.get_by_role("region", name="Shards").locator("tbody tr td").first
            expect(shard).not_to_have_text(led)

            # Somebody else ends the drain: the page has the other button, without being loaded again.
            httpx2.delete(f"{server.url}/v1/cluster/nodes/{led}/drain", headers=server.headers).raise_for_status()
            expect(row.locator("summary", has_text="End drain")).to_have_count(0)
            expect(row.locator("summary", has_text="Drain")).to_be_visible()
            assert page.evaluate("() => window.isTheSame")

            page.locator("summary", has_text="Rebalance").press("Enter")
            page.get_by_role("button", name="Preview").press("Enter")
            expect(page.locator(".notice")).to_contain_text("move")
            row.locator("summary", has_text="Remove").press("Enter")
            row.get_by_label(f"Type {led}").fill("another")
            row.get_by_role("button", name="Remove").press("Enter")
            expect(page.locator(".notice.bad")).to_contain_text("nothing was changed")
