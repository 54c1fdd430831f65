"""The demo page in real Chromium under `pushq demo`: every card and every button, a killed server among them."""

from __future__ import annotations

import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.waiting import WAIT_S_MAX, wait_until
from tests.support.environment import SMALL_FOLDERS, without_settings
from tests.support.forked import Forked
from tests.support.patience import PATIENCE_S
from tests.support.server import STOP_S_MAX, UNHURRIED, free_port

ROOT = Path(__file__).resolve().parents[2]
READY_S_MAX = PATIENCE_S
AGAIN_MS_MAX = PATIENCE_S * 1000
"""From a crash until every client is connected: the restart, then a back-off or two."""
STILL_MS = 1_000
"""How long nothing may be confirmed before the load counts as paused."""
LEASE_S = 8.0
"""What was on its way in the moment of a cut comes again when its lease runs out."""
every_transport = pytest.mark.parametrize("label", ["WebSocket", "SSE", "Long-poll"])


@pytest.fixture(scope="module")
def demo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`pushq demo`: a server that is started again when it dies."""
    address = f"127.0.0.1:{free_port()}"
    url = f"http://{address}"
    folder = tmp_path_factory.mktemp("demo")
    command = ["gateway", "demo", "--data", str(folder / "data"), "--listen", address]
    with (folder / "demo.log").open("wb") as log:
        env = without_settings() | UNHURRIED | SMALL_FOLDERS
        process = Forked(command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        _await_ready(url, process, folder / "demo.log")
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S_MAX) == 0


def _await_ready(url: str, process: Forked, log: Path) -> None:
    deadline = time.monotonic() + READY_S_MAX
    while True:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)


@pytest.fixture
def demo(page: Page, demo_url: str) -> Page:
    page.goto(f"{demo_url}/demo")
    expect(page.locator("#status")).to_have_text("All clients are connected over WebSocket.")
    return page


def counter(page: Page, name: str) -> int:
    return int(page.locator(f"#{name}").inner_text())


def wait_for_more(page: Page, name: str, than: int) -> None:
    wait_until(page, f"Number(document.getElementById('{name}').textContent) > {than}")


def settle(page: Page) -> None:
    """Pauses the load and waits until each confirmed message has been received."""
    page.get_by_role("button", name="Pause the load").click()
    shown = "(name) => Number(document.getElementById(name).textContent)"
    all_are_there = "document.getElementById('missing').dataset.unreceived === '0'"
    none_is_under_way = f"(({shown})('waiting') === 0 && ({shown})('received') >= ({shown})('sent'))"
    # A publish that was under way may be confirmed after all others have been received: it counts when it is there too.
    sent = -1
    while sent != counter(page, "sent"):
        sent = counter(page, "sent")
        page.wait_for_timeout(STILL_MS)
        wait_until(page, f"{all_are_there} && {none_is_under_way}", seconds_max=LEASE_S + WAIT_S_MAX)
    assert counter(page, "missing") == 0
    assert sent > 0
    assert counter(page, "received") >= sent


def use_transport(page: Page, label: str) -> None:
    page.get_by_role("radio", name=label, exact=True).check()
    shown = {"Long-poll": "long-poll"}.get(label, label)
    expect(page.locator("#status")).to_have_text(f"All clients are connected over {shown}.")


def crash(page: Page) -> None:
    page.get_by_role("button", name="Crash the server process").click()
    expect(page.locator("#status")).to_contain_text("The server is back", timeout=AGAIN_MS_MAX)


def test_the_load_runs_and_nothing_is_missing_or_doubled(demo: Page) -> None:
    wait_for_more(demo, "received", 10)
    settle(demo)
    assert counter(demo, "duplicate") == 0
    assert counter(demo, "redelivered") == 0


def a_job_runs_to_its_end(page: Page) -> None:
    page.get_by_role("button", name="Start a job").click()
    bar = page.get_by_role("progressbar", name="Job 1")
    expect(bar).to_be_visible()
    expect(page.locator("#job-list")).to_contain_text("Job 1: done")
    assert bar.evaluate("bar => bar.value") == 100


def both_people_see_what_either_says(page: Page) -> None:
    for name, text in (("Left", "Hello Right"), ("Right", "Hello <b>Left</b>")):
        page.get_by_label(f"Message from {name}").fill(text)
        page.locator(f"#{name}-form").get_by_role("button", name="Send").click()
        for reader in ("Left", "Right"):
            expect(page.locator(f"#{reader}-lines li").last).to_have_text(f"{name}: {text}")


def notifications_catch_up_after_being_offline(page: Page) -> None:
    expect(page.locator("#unread")).to_have_text("1")
    page.get_by_role("button", name="Mark as read").click()
    expect(page.locator("#unread")).to_have_text("0")
    offline = page.get_by_role("button", name="Go offline")
    offline.click()
    expect(page.locator("#client-phone")).to_have_attribute("data-state", "closed")
    for _ in range(3):
        page.get_by_role("button", name="Send one").click()
    time.sleep(0.3)
    expect(page.locator("#unread")).to_have_text("0")
    offline.click()
    expect(page.locator("#unread")).to_have_text("3")


@every_transport
def test_every_card_works_over_each_transport(demo: Page, label: str) -> None:
    if label != "WebSocket":
        use_transport(demo, label)
    notifications_catch_up_after_being_offline(demo)
    both_people_see_what_either_says(demo)
    a_job_runs_to_its_end(demo)
    wait_for_more(demo, "received", counter(demo, "received") + 5)
    if label != "WebSocket":
        use_transport(demo, "WebSocket")
    settle(demo)


@every_transport
def test_a_cut_connection_comes_back_and_loses_nothing(demo: Page, label: str) -> None:
    if label != "WebSocket":
        use_transport(demo, label)
    wait_for_more(demo, "received", 5)
    demo.get_by_role("button", name="Cut my connection").click()
    expect(demo.locator("#status")).to_have_text("The connections were cut; all clients are connected again.")
    wait_for_more(demo, "received", counter(demo, "received") + 5)
    settle(demo)


@every_transport
def test_a_crashed_server_comes_back_nothing_is_missing_and_a_job_goes_on(demo: Page, label: str) -> None:
    if label != "WebSocket":
        use_transport(demo, label)
    wait_for_more(demo, "received", 5)
    demo.get_by_role("button", name="Start a job").click()
    wait_until(demo, "document.querySelector('#job-list progress')?.value >= 20")
    crash(demo)
    expect(demo.locator("#job-list")).to_contain_text("Job 1: done")
    wait_for_more(demo, "received", counter(demo, "received") + 5)
    settle(demo)


def test_a_slow_consumer_is_held_back_and_the_server_keeps_its_backlog(demo: Page) -> None:
    wait_for_more(demo, "received", 10)
    slow = demo.get_by_role("button", name="Slow consumer")
    slow.click()
    expect(slow).to_have_attribute("aria-pressed", "true")
    wait_for_more(demo, "waiting", 50)
    assert counter(demo, "missing") == 0, "what the server holds is late, not missing"
    slow.click()
    settle(demo)


def test_the_frame_log_shows_the_protocol_and_no_credential(demo: Page) -> None:
    demo.get_by_label("from", exact=True).select_option("producer")
    log = demo.locator("#log")
    expect(log).to_contain_text('"type":"publish"')
    expect(log).not_to_contain_text("consumer")
    demo.get_by_role("button", name="Cut my connection").click()
    expect(log).to_contain_text('"type":"connect"')
    assert "pushq_" not in demo.locator("#log").inner_text()
    wait_until(demo, "document.getElementById('log').textContent.split('\\n').length > 50")
    assert demo.evaluate("document.getElementById('log').textContent.split('\\n').length") <= 200


def test_the_page_fits_a_phone_every_control_has_a_name_and_every_region_a_title(demo: Page) -> None:
    demo.set_viewport_size({"width": 320, "height": 640})
    assert demo.evaluate("document.documentElement.scrollWidth") == 320
    unnamed = """() => [...document.querySelectorAll("button, input, select")].filter(
        (control) => !control.textContent.trim() && !control.labels?.length && !control.ariaLabel).length"""
    assert demo.evaluate(unnamed) == 0
    untitled = """() => [...document.querySelectorAll("section")].filter(
        (section) => !document.getElementById(section.getAttribute("aria-labelledby"))?.textContent.trim()).length"""
    assert demo.evaluate(untitled) == 0
    assert demo.locator("[role=status]").count() >= 1


def test_two_tabs_share_the_load_and_neither_misses_any(demo: Page) -> None:
    other = demo.context.new_page()
    other.goto(demo.url)
    expect(other.locator("#status")).to_have_text("All clients are connected over WebSocket.")
    wait_for_more(other, "received", 5)
    for tab in (demo, other):
        tab.get_by_role("button", name="Pause the load").click()
    for tab in (demo, other):
        wait_until(tab, "document.getElementById('missing').dataset.unreceived === '0'")
        assert counter(tab, "missing") == 0


@pytest.mark.parametrize("path", ["/demo/crash", "/demo/token"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "https://example.com"},
        {"Origin": "null"},
        {"Origin": "{url}", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://pushq.example", "Host": "pushq.example"},
    ],
    ids=[
        "use an origin such as https://shop.example",
        "foreign origin",
        "opaque origin",
        "cross-site",
        "a name that is not loopback",
    ],
)
def test_only_the_demo_page_itself_may_crash_the_server_or_get_a_key(
    demo_url: str, path: str, headers: dict[str, str]
) -> None:
    given = {name: value.format(url=demo_url) for name, value in headers.items()}
    request = urllib.request.Request(demo_url + path, data=b"", headers=given, method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=5)
    assert refused.value.code == 403
    refused.value.close()


def test_the_index_leads_to_everything(page: Page, demo_url: str) -> None:
    page.goto(demo_url)
    links = page.locator("main a").evaluate_all("links => links.map((link) => link.getAttribute('href'))")
    assert "/demo" in links
    for link in links:
        answer = page.request.get(demo_url + link)
        assert answer.ok, link
