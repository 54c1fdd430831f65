"""The console in real Chromium: each view in each role, at 320 px, by keyboard alone, read by axe, fed foreign code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from tests.browser.conftest import WAIT_MS_MAX
from tests.browser.console import api, check_look, serious, sign_in
from tests.browser.gallery import EVIL, QUEUE, served, used
from tests.browser.waiting import wait_until
from tests.support.patience import until
from tests.support.receiver import Receiver
from tests.support.server import PushqServer
from web_console.limits import STREAMS_PER_SESSION_MAX


@pytest.fixture(scope="module")
def live_dir(server: PushqServer) -> Path:
    """As the job `live_usage` leaves it."""
    return server.data.parent / "live"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    with served(tmp_path_factory.mktemp("console"), is_full=False) as running:
        yield running


@pytest.fixture(scope="module")
def signed_in(server: PushqServer, browser: Browser) -> Iterator[Callable[[str], Page]]:
    """A page of somebody with that role. Their scripts must not fail, and nothing may break the security policy."""
    contexts: dict[str, BrowserContext] = {}
    wrong: list[str] = []

    def of(role: str) -> Page:
        if role not in contexts:
            contexts[role] = browser.new_context(viewport={"width": 1280, "height": 900})
            page = contexts[role].new_page()
            page.set_default_timeout(WAIT_MS_MAX)
            page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
            page.on("console", lambda said: wrong.append(said.text) if "Content Security" in said.text else None)
            sign_in(page, server, role)
        page = contexts[role].pages[0]
        page.set_viewport_size({"width": 1280, "height": 900})
        return page

    yield of
    for context in contexts.values():
        context.close()
    assert wrong == []


def test_the_usage_page_follows_the_job_without_being_loaded_again(
    server: PushqServer, signed_in: Callable[[str], Page], live_dir: Path
) -> None:
    page = signed_in("customer")
    page.goto(f"{server.url}/console/usage")
    hour = page.get_by_role("region", name="Last hour, by queue and operation")
    expect(hour.get_by_role("row", name="orders")).to_contain_text("7")
    expect(page.locator("figure.plot canvas")).to_have_count(3)
    expect(page.get_by_text("298 more rows with fewer requests")).to_be_visible()
    page.evaluate("() => { window.isTheSame = true; }")
    used(live_dir, 9)
    expect(hour.get_by_role("row", name="orders")).to_contain_text("9", timeout=WAIT_MS_MAX)
    assert page.evaluate("() => window.isTheSame")


WRITES_DOWN = """
const fillText = CanvasRenderingContext2D.prototype.fillText;
window.drawn = [];
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const place = this.getTransform().transformPoint({x, y});
  const width = this.measureText(text).width;
  window.drawn.push({text, x: place.x, y: place.y, width, colour: this.fillStyle, canvas: this.canvas});
  return fillText.apply(this, arguments);
};
const clearRect = CanvasRenderingContext2D.prototype.clearRect;
CanvasRenderingContext2D.prototype.clearRect = function () {
  window.drawn = window.drawn.filter((one) => one.canvas !== this.canvas);
  return clearRect.apply(this, arguments);
};
window.marks = () => [...document.querySelectorAll("figure.plot canvas")].map(
  (canvas) => window.drawn.filter((one) => one.canvas === canvas).map(({canvas, ...one}) => one)
);
"""
"""What is written in plots, by plot."""
ARE_OF_COLOUR = "window.marks().every((plot) => plot.length && plot.every((mark) => mark.colour === '%s'))"


@pytest.mark.parametrize("width", [1280, 320])
def test_plots_speak_in_words_and_24_hours_and_no_mark_covers_another(
    server: PushqServer, signed_in: Callable[[str], Page], width: int
) -> None:
    page = signed_in("viewer").context.browser.new_context(  # type: ignore[union-attr]
        viewport={"width": width, "height": 900}, locale="en-US", timezone_id="Asia/Tokyo"
    ).new_page()  # fmt: skip
    page.set_default_timeout(WAIT_MS_MAX)
    page.add_init_script(WRITES_DOWN)
    sign_in(page, server, "viewer")
    for span in ("15m", "24h"):
        page.goto(f"{server.url}{QUEUE}?range={span}")
        expect(page.locator("figure.plot canvas")).to_have_count(4)
        assert page.locator(".u-legend").first.locator(".u-label").all_inner_texts() == [
            "Time (UTC)", "waiting", "in flight", "delayed",
        ]  # fmt: skip
        for marks in page.evaluate("window.marks()"):
            times = [mark for mark in marks if re.fullmatch(r"\d\d:\d\d(:\d\d)?", mark["text"])]
            days = [mark for mark in marks if re.fullmatch(r"\d{4}-\d\d-\d\d", mark["text"])]
            assert len(times) >= (2 if width > 320 else 1)  # of a quarter of an hour one that is round fits there
            assert days and not [mark for mark in marks if re.search(r"[ap]m|/\d", mark["text"])]
            for row in (times, days):
                ends = sorted({(mark["x"] - mark["width"] / 2, mark["x"] + mark["width"] / 2) for mark in row})
                assert all(left[1] < right[0] for left, right in pairwise(ends)), row
    page.context.close()


def test_plots_have_utc_wherever_they_are_seen_and_the_colours_of_the_theme_that_is_chosen(
    server: PushqServer, signed_in: Callable[[str], Page]
) -> None:
    page = signed_in("viewer").context.browser.new_context(timezone_id="Asia/Tokyo").new_page()  # type: ignore[union-attr]
    page.set_default_timeout(WAIT_MS_MAX)
    page.add_init_script(WRITES_DOWN)
    sign_in(page, server, "viewer")
    page.goto(server.url + QUEUE)
    canvases = page.locator("figure.plot canvas")
    expect(canvases).to_have_count(4)
    now = datetime.now(UTC)
    minutes = {(now - timedelta(minutes=ago)).strftime("%H:%M") for ago in range(-1, 20)}
    marks = page.evaluate("window.marks()[0]")
    times = {mark["text"][:5] for mark in marks if re.fullmatch(r"\d\d:\d\d(:\d\d)?", mark["text"])}
    assert times and times <= minutes
    for wanted, quiet in (("light", "#555e70"), ("dark", "#a2abbd"), ("auto", "#555e70")):
        page.get_by_role("button", name="Theme").click()
        expect(page.get_by_role("button", name="Theme")).to_have_text(f"Theme: {wanted}")
        expect(canvases).to_have_count(4)
        wait_until(page, ARE_OF_COLOUR % quiet)
    page.emulate_media(color_scheme="dark")
    wait_until(page, ARE_OF_COLOUR % "#a2abbd")
    page.context.close()


def test_by_keyboard_alone_a_message_is_published_found_and_seen_live(
    server: PushqServer, signed_in: Callable[[str], Page]
) -> None:
    page = signed_in("operator")
    page.goto(f"{server.url}/console")
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    page.wait_for_load_state("domcontentloaded")  # a heading is there before the script that knows the keys
    page.keyboard.press("/")
    page.keyboard.insert_text("thumb")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.wait_for_load_state()
    page.locator("body").press("j")
    expect(page.get_by_role("link", name="thumbnails")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("thumbnails")
    expect(page.locator("#live-state [role=status]")).to_have_text("Live")
    ready = page.locator(".facts div").first.locator("dd")
    expect(ready).to_have_text("0")
    api(server, "POST", "/v1/queues/thumbnails/messages", {"messages": [{"body": 1}]})
    expect(ready).to_have_text("1")
    page.locator("nav.sub").first.get_by_role("link", name="Publish").press("Enter")
    page.locator("textarea[name=body]").fill(json.dumps({"from": "keyboard"}))
    page.get_by_role("button", name="Publish").press("Enter")
    expect(page.get_by_role("status")).to_contain_text("Published ")
    page.locator("#live").get_by_role("link").first.press("Enter")
    expect(page.locator("pre.payload")).to_contain_text('"from": "keyboard"')


def test_a_paused_page_stays_and_says_so(server: PushqServer, signed_in: Callable[[str], Page]) -> None:
    page = signed_in("operator")
    page.goto(f"{server.url}/console/queues/mail")
    said = page.locator("#live-state [role=status]")
    expect(said).to_have_text("Live")
    page.locator("body").press("p")
    expect(said).to_have_text("Paused")
    ready = page.locator(".facts div").first.locator("dd")
    before = ready.inner_text()
    page.evaluate("() => { window.looks = 0; document.addEventListener('looked', () => { window.looks += 1; }); }")
    api(server, "POST", "/v1/queues/mail/messages", {"messages": [{"body": 1}]})
    wait_until(page, "window.looks >= 2")
    assert ready.inner_text() == before
    page.get_by_role("button", name="Go on").click()
    expect(ready).to_have_text(str(int(before) + 1))


def test_a_page_that_goes_on_shows_what_changed_once_while_it_was_paused(
    server: PushqServer, signed_in: Callable[[str], Page]
) -> None:
    queue = "/v1/queues/parcels"
    api(server, "PUT", queue, {"max_attempts": 1})
    page = signed_in("operator")
    page.goto(f"{server.url}/console/queues/parcels/dead")
    expect(page.locator("#live-state [role=status]")).to_have_text("Live")
    page.get_by_role("button", name="Pause").click()
    api(server, "POST", f"{queue}/messages", {"messages": [{"body": 1}]})
    [held] = api(server, "POST", f"{queue}/receive", {"max": 1})["messages"]
    api(server, "POST", f"{queue}/nack", {"receipts": [held["receipt"]]})
    page.evaluate("() => { window.looks = 0; document.addEventListener('looked', () => { window.looks += 1; }); }")
    wait_until(page, "window.looks >= 2")
    expect(page.get_by_text("No dead letters")).to_be_visible()
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("#live-state [role=status]")).to_have_text("Live")


def test_dead_letters_go_back_as_an_operation(server: PushqServer, signed_in: Callable[[str], Page]) -> None:
    page = signed_in("operator")
    page.goto(f"{server.url}{QUEUE}/dead")
    expect(page.locator("tbody tr")).to_have_count(5)
    page.locator("summary", has_text="Redrive").press("Enter")
    page.get_by_role("button", name="Count only").press("Enter")
    expect(page.locator(".notice")).to_contain_text("would move 5 messages")
    page.locator("summary", has_text="Redrive").press("Enter")
    page.get_by_label("Type orders").fill("orders")
    page.locator("details[open]").get_by_role("button", name="Redrive").press("Enter")
    expect(page.locator("progress")).to_have_attribute("value", "5")
    expect(page.get_by_text("No dead letters")).to_be_visible()


def test_a_plot_of_zeros_has_an_axis_that_begins_small(server: PushqServer, signed_in: Callable[[str], Page]) -> None:
    page = signed_in("viewer").context.new_page()
    api(server, "PUT", "/v1/queues/idle", {})

    def zeros(route: Route) -> None:
        answer = route.fetch()
        series = re.compile(r'data-series="[^"]*"')
        route.fulfill(response=answer, body=series.sub(lambda found: found[0].replace("null", "0"), answer.text()))

    page.route(f"{server.url}/console/queues/idle", zeros)  # not the stream behind it, which does not end
    page.add_init_script(WRITES_DOWN)
    page.goto(f"{server.url}/console/queues/idle")
    expect(page.locator("figure.plot canvas")).to_have_count(4)
    values = [[mark["text"] for mark in marks if ":" not in mark["text"]] for marks in page.evaluate("window.marks()")]
    assert [texts[-1] for texts in values] == ["10", "10", "1 s", "10"]
    page.close()


def test_on_a_narrow_screen_the_menu_is_one_row_with_the_current_view_in_sight(
    server: PushqServer, signed_in: Callable[[str], Page]
) -> None:
    page = signed_in("admin")
    page.set_viewport_size({"width": 390, "height": 800})
    for path in ("/console", "/console/help", "/console/keys"):
        page.goto(server.url + path)
        tops = page.locator("nav.menu a").evaluate_all("links => links.map((link) => link.getBoundingClientRect().top)")
        assert len(set(tops)) == 1 and page.locator("main").evaluate("main => main.getBoundingClientRect().top") < 160
        expect(page.locator("nav.menu [aria-current]")).to_be_in_viewport(ratio=1)
        expect(page.get_by_role("button", name="Sign out")).to_be_in_viewport(ratio=1)


def check_copy(page: Page, server: PushqServer) -> None:
    """By the clipboard of today, then without it, as over plain HTTP from another machine."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    other = page.context.new_page()
    other.goto(f"{server.url}/console/help")
    for before in ("() => {}", "() => Object.defineProperty(navigator, 'clipboard', { value: undefined })"):
        other.bring_to_front()
        other.evaluate("navigator.clipboard.writeText('before')")
        page.bring_to_front()
        page.evaluate(before)
        page.evaluate("document.getElementById('copied').textContent = ''")
        page.get_by_role("button", name="Copy").press("Enter")
        expect(page.locator("#copied")).to_have_text("Copied")
        other.bring_to_front()
        assert other.evaluate("navigator.clipboard.readText()") == page.locator("code.secret").inner_text()
    other.close()


def test_a_new_key_is_shown_once(server: PushqServer, signed_in: Callable[[str], Page]) -> None:
    page = signed_in("customer")
    page.goto(f"{server.url}/console/keys")
    page.get_by_text("Create a key").press("Enter")
    page.get_by_label("Name").fill(EVIL[:60])
    page.get_by_label("Scopes").fill("consume:orders")
    page.get_by_role("button", name="Create").press("Enter")
    expect(page.locator("code.secret")).to_contain_text("pushq_")
    check_copy(page, server)
    page.get_by_role("link", name="Back").click()
    expect(page.locator("code.secret")).to_have_count(0)
    expect(page.get_by_role("rowheader").get_by_text(EVIL[:60])).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 800})
    page.locator("summary", has_text="Revoke").first.press("Enter")
    page.wait_for_function("""() => {
        const box = document.querySelector("td details[open] form").getBoundingClientRect();
        return box.left >= 0 && box.right <= innerWidth;
    }""")
    assert page.evaluate("() => window.hacked") is None


def test_a_growing_queue_fires_is_silenced_and_resolves(server: PushqServer, signed_in: Callable[[str], Page]) -> None:
    page = signed_in("customer")
    page.goto(f"{server.url}/console/alerts/rules")
    page.locator("summary", has_text="Create a rule").press("Enter")
    page.get_by_label("Name").fill("invoices wait")
    page.get_by_label("Queues").fill("invoices*")
    page.get_by_label("Limit").fill("10")
    page.get_by_role("button", name="Create").press("Enter")
    expect(page.get_by_role("rowheader", name="invoices wait")).to_be_visible()
    queue = "/v1/queues/invoices-of-a-customer-with-a-very-long-name"
    api(server, "POST", f"{queue}/messages", {"messages": [{"body": 1}] * 20})
    page.goto(f"{server.url}/console/alerts")
    firing = page.locator(".alerts.firing tbody tr")
    expect(firing).to_contain_text("invoices wait")
    expect(firing).to_contain_text("depth is 20 messages, above 10")
    box = firing.bounding_box()
    assert box is not None and box["height"] < 80, "one row, two lines at most"
    firing.locator("summary").press("Enter")
    expect(firing.get_by_role("link", name="Open the rule")).to_be_visible()
    api(server, "POST", f"{queue}/messages", {"messages": [{"body": 1}]})
    expect(firing).to_contain_text("depth is 21 messages, above 10")
    expect(firing.get_by_role("link", name="Open the rule")).to_be_visible()
    assert serious(page) == []
    page.goto(f"{server.url}/console")
    said = page.locator(".notice", has_text="invoices wait")
    expect(said).to_have_text(re.compile(r"^invoices wait: invoices-of-\S+: depth is 21 messages, above 10 Alerts$"))
    page.goto(f"{server.url}/console/alerts")
    firing.get_by_role("link", name="Silence").press("Enter")
    page.get_by_label("Reason").fill("the month's end")
    page.locator("details[open]").get_by_role("button", name="Silence").press("Enter")
    expect(page.locator(".notice")).to_contain_text("it mutes 1 alert now")
    page.goto(f"{server.url}/console/alerts")
    expect(page.locator(".alerts.silenced tbody tr")).to_contain_text("invoices wait")
    name = queue.rpartition("/")[2]
    api(server, "POST", f"{queue}/purge", {"confirm": name})
    expect(page.locator(".alerts.resolved tbody tr")).to_contain_text("invoices wait")


def test_a_rule_made_here_tells_a_receiver_made_here(
    server: PushqServer, signed_in: Callable[[str], Page], tmp_path: Path
) -> None:
    page = signed_in("customer")
    with Receiver(tmp_path) as receiver:
        page.goto(f"{server.url}/console/alerts/receivers")
        page.locator("summary", has_text="Create a receiver").press("Enter")
        page.get_by_label("Name").fill(EVIL[:60])
        page.get_by_label("URL").fill(receiver.url)
        page.get_by_role("button", name="Create").press("Enter")
        receiver.knows(page.locator("code.secret").inner_text())
        page.get_by_role("link", name="Back").click()
        page.locator("summary", has_text="Test").press("Enter")
        page.get_by_role("button", name="Test").press("Enter")
        expect(page.locator(".notice")).to_contain_text("accepted it (204")
        check_look(page, "/console/alerts/receivers-one", "dark")

        page.goto(f"{server.url}/console/alerts/rules")
        page.locator("summary", has_text="Create a rule").press("Enter")
        page.get_by_label("Name").fill("the log is long")
        page.get_by_label("Queues").fill("audit.log")
        page.get_by_label("Limit").fill("1000")
        page.get_by_label("For at least").fill("1s")
        page.get_by_label(EVIL[:60]).check()
        page.get_by_role("button", name="Create").press("Enter")
        expect(page.locator(".notice")).to_contain_text("notifies 1 receiver")
        row = page.get_by_role("row", name="the log is long")
        expect(row).to_contain_text(EVIL[:60])

        api(server, "POST", "/v1/queues/audit.log/messages", {"messages": [{"body": 1}] * 20})
        row.get_by_role("link", name="the log is long").press("Enter")
        expect(page.get_by_label("For at least")).to_have_value("1s")
        expect(page.get_by_label("Clears at")).to_have_value("")
        check_look(page, "/console/alerts/rules-edit", "light")
        page.get_by_label("Limit").fill("10")
        page.get_by_role("button", name="Save").press("Enter")
        expect(page.locator(".notice")).to_contain_text("updated; enabled, notifies 1 receiver")
        until(lambda: [one["body"]["data"]["subject"] for one in receiver.told[1:]] == ["audit.log"], "it is told")
        assert all(one["genuine"] for one in receiver.told)

        row.locator("summary", has_text="Disable").press("Enter")
        row.get_by_role("button", name="Disable").press("Enter")
        expect(page.locator(".notice")).to_contain_text("disabled until you enable it")
        expect(row.locator("summary", has_text="Enable")).to_be_visible()
    assert page.evaluate("() => window.hacked") is None


def test_settings_of_a_queue_are_changed_on_their_page(server: PushqServer, signed_in: Callable[[str], Page]) -> None:
    page = signed_in("operator")
    page.goto(f"{server.url}/console/queues/mail")
    page.get_by_role("navigation", name="This queue").get_by_role("link", name="Settings").press("Enter")
    page.get_by_label("max_attempts").fill("4")
    page.get_by_label("dedupe", exact=True).select_option("id")
    check_look(page, "/console/queues/mail/settings", "dark")
    page.get_by_role("button", name="Save").press("Enter")
    expect(page.locator(".notice")).to_have_text("Changed max_attempts, dedupe of mail")
    expect(page.get_by_label("max_attempts")).to_have_value("4")
    config = api(server, "GET", "/v1/queues/mail")["config"]
    assert (config["max_attempts"], config["dedupe"]) == (4, "id")


def test_an_open_form_stays_with_its_row_when_rows_before_it_go(
    server: PushqServer, signed_in: Callable[[str], Page]
) -> None:
    """Or somebody ends a connection that they do not mean."""
    page = signed_in("customer")
    address = f"{server.url}/v1/queues/thumbnails/events"
    with ExitStack() as left:
        for _ in range(3):
            left.enter_context(httpx2.stream("GET", address, headers=server.headers))
        until(lambda: len(api(server, "GET", "/v1/connections")["items"]) == 3, "all are connected")
        page.goto(f"{server.url}/console/connections?sort=connected_at")
        expect(page.locator("#live-state [role=status]")).to_have_text("Live")
        ids = page.locator("tbody tr td.code:nth-last-child(2)").all_inner_texts()
        last = page.get_by_role("row").filter(has_text=ids[-1])
        last.locator("summary").press("Enter")
        page.get_by_role("button", name="Pause").click()
        api(server, "DELETE", f"/v1/connections/{ids[0]}")
        api(server, "POST", "/v1/queues/thumbnails/messages", {"messages": [{"body": 1}] * 40})
        until(
            lambda: [one["sent"] > 0 for one in api(server, "GET", "/v1/connections")["items"]] == [True, True],
            "no row is as it was",
        )
        page.get_by_role("button", name="Go on").click()
        expect(page.locator("tbody tr")).to_have_count(2)
        expect(last.locator("details")).to_have_attribute("open", "")
        items = page.locator("tbody input[name=item]").evaluate_all("all => all.map((one) => one.value)")
        assert items == page.locator("tbody tr td.code:nth-last-child(2)").all_inner_texts() == ids[1:]
        last.get_by_role("button", name="Disconnect").press("Enter")
        expect(page.locator(".notice")).to_contain_text(f"Connection {ids[-1]} was ended")


def test_a_customer_composes_and_saves_a_dashboard(server: PushqServer, signed_in: Callable[[str], Page]) -> None:
    page = signed_in("customer")
    page.goto(f"{server.url}/console/dashboards")
    page.locator("summary", has_text="Create a dashboard").press("Enter")
    page.get_by_label("Name").fill("mine")
    page.get_by_label("Queues").fill("mail nowhere")
    page.get_by_role("button", name="Save").press("Enter")
    expect(page.locator(".notice.bad")).to_contain_text("there is no queue 'nowhere'")
    expect(page).to_have_url(f"{server.url}/console/dashboards")  # loaded again, it is not sent again
    expect(page.get_by_label("Name")).to_have_value("mine")
    field = page.get_by_label("Queues")
    expect(field).to_have_value("mail nowhere")
    expect(field).to_be_focused()
    expect(field).to_have_accessible_description("there is no queue 'nowhere'")
    assert serious(page) == []
    field.fill("mail orders")
    page.get_by_role("button", name="Save").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("mine")
    expect(page.locator(".scroll tbody tr")).to_have_count(2)
    expect(page.get_by_text("pushq top mail orders")).to_be_visible()
    assert serious(page) == []


def test_a_page_that_the_server_does_not_keep_live_stays_and_is_live_when_there_is_room(
    server: PushqServer, signed_in: Callable[[str], Page]
) -> None:
    page = signed_in("operator")
    page.goto(f"{server.url}/console/help")
    cookies = {one["name"]: one["value"] for one in page.context.cookies()}  # type: ignore[typeddict-item]
    said = page.locator("#live-state [role=status]")
    with ExitStack() as others:
        for _ in range(STREAMS_PER_SESSION_MAX):
            address = f"{server.url}/console/live?page=/console/alerts"
            assert others.enter_context(httpx2.stream("GET", address, cookies=cookies)).status_code == 200
        page.goto(f"{server.url}/console/queues")
        expect(said).to_have_text("Not live: too many live pages are open; close some")
        expect(page.get_by_role("rowheader", name="mail", exact=True)).to_be_visible()
        expect(page.locator("main")).to_have_count(1)
    expect(said).to_have_text("Live")
    expect(page.get_by_role("rowheader", name="mail", exact=True)).to_be_visible()


def test_one_quota_of_a_tenant_is_changed_and_the_others_stay(
    server: PushqServer, signed_in: Callable[[str], Page]
) -> None:
    tenant = "/v1/tenants/bakery"
    api(server, "PUT", tenant, {"quotas": {"requests_per_s": 500, "queues": 20}})
    before = api(server, "GET", tenant)["quotas"]
    page = signed_in("admin")
    page.goto(f"{server.url}/console/tenants")
    page.locator("summary", has_text="Create a tenant").press("Enter")
    page.get_by_label("Name").fill("bakery")
    page.get_by_label("Queues").fill("30")
    page.get_by_role("button", name="Create").press("Enter")
    expect(page.locator(".notice.bad")).to_contain_text("there is a tenant 'bakery' already")
    assert api(server, "GET", tenant)["quotas"] == before
    page.get_by_role("rowheader", name="bakery").get_by_role("link").press("Enter")
    expect(page.get_by_label("Requests per s")).to_have_value("500")
    assert serious(page) == []
    page.get_by_label("Queues").fill("30")
    page.get_by_role("button", name="Save").press("Enter")
    expect(page.locator(".notice")).to_have_text("Quotas of bakery updated")
    assert api(server, "GET", tenant)["quotas"] == before | {"queues": 30}


def test_a_page_whose_server_is_gone_says_that_it_is_stale(
    server: PushqServer, signed_in: Callable[[str], Page]
) -> None:
    page = signed_in("admin")
    page.clock.install()
    page.goto(f"{server.url}/console/queues")
    said = page.locator("#live-state [role=status]")
    expect(said).to_have_text("Live")
    typing = signed_in("operator")
    typing.goto(f"{server.url}{QUEUE}/publish")
    typing.get_by_label("Key").fill("k-1")
    server.stop()
    expect(said).to_have_text("Connection lost: connecting again…")
    page.clock.fast_forward(60_000)
    expect(said).to_contain_text("Stale")
    typing.get_by_role("button", name="Publish").press("Enter")
    expect(typing.get_by_role("alert")).to_have_text("The server does not answer. Nothing was sent; try again.")
    expect(typing.get_by_label("Key")).to_have_value("k-1")
    server.start()
    typing.get_by_role("button", name="Publish").press("Enter")
    expect(typing.get_by_role("alert")).to_contain_text("Your session expired and nothing was changed.")
    typing.get_by_label("API key or JWT").fill(server.key)
    typing.get_by_role("button", name="Sign in").press("Enter")
    expect(typing.get_by_label("Key")).to_have_value("k-1")
    expect(typing).to_have_url(f"{server.url}{QUEUE}/publish")
    typing.get_by_role("button", name="Publish").press("Enter")
    expect(typing.locator(".notice.good")).to_contain_text("Published")
    page.clock.fast_forward(60_000)
    expect(said).to_have_text("Signed out: load the page again")
