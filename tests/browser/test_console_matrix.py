"""Every view of the console in real Chromium: what each role sees and may do, how it looks in both themes and at
320 px, what axe finds, and how it goes by keyboard alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import WAIT_MS_MAX
from tests.browser.console import api, serious, sign_in
from tests.browser.gallery import (
    LONG,
    NARROW,
    PATHS,
    QUEUE,
    THEMES,
    WIDE,
    index,
    picture,
    reading,
    save_dashboard,
    seen_by,
    served,
    server_has_fired,
    take,
)
from tests.support.server import PushqServer
from web_console.roles import ACTS, ROLES, VIEWS, Role
from web_console.views import VIEWS as PAGES

OFFERED: dict[Role, set[str]] = {
    "viewer": set(),
    "operator": {"publish", "create queue", "change queue", "purge", "redrive"},
    "customer": {
        *("publish", "create queue", "change queue", "purge", "redrive", "disconnect"),
        *("make key", "rotate key", "revoke key", "save dashboard", "remove dashboard"),
        *("make rule", "switch rule", "test rule", "delete rule", "make receiver", "test receiver"),
        *("silence", "end silence"),
    },
}
"""The acts whose forms a role finds on its views of this server, which has no cluster, and takes no deletions."""
OFFERED["admin"] = OFFERED["customer"] | {"make tenant"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    with served(tmp_path_factory.mktemp("console")) as running:
        yield running


class People:
    """A page for each role, signed in by keyboard, and what went wrong on any of them."""

    def __init__(self, browser: Browser, server: PushqServer) -> None:
        self._browser, self._server = browser, server
        self._pages: dict[Role, Page] = {}
        self.wrong: list[str] = []

    def __getitem__(self, role: Role) -> Page:
        if role not in self._pages:
            page = self._browser.new_context(viewport={"width": WIDE[0], "height": WIDE[1]}).new_page()
            page.set_default_timeout(WAIT_MS_MAX)
            page.on("pageerror", lambda error: self.wrong.append(f"{page.url}: {error}"))
            page.on("console", lambda said: self._note(said.text))
            sign_in(page, self._server, role)
            self._pages[role] = page
        return self._pages[role]

    def _note(self, said: str) -> None:
        if "Content Security" in said:
            self.wrong.append(said)

    def close(self) -> None:
        for page in self._pages.values():
            page.context.close()


@pytest.fixture(scope="module")
def people(browser: Browser, server: PushqServer) -> Iterator[People]:
    """Their scripts must not fail, and nothing may break the security policy."""
    found = People(browser, server)
    save_dashboard(found["admin"], server)
    yield found
    found.close()
    assert found.wrong == []


@pytest.mark.parametrize("role", ROLES)
def test_a_role_finds_its_views_and_acts_and_is_refused_the_others(
    server: PushqServer, people: People, role: Role
) -> None:
    """As the server answers this session: read like a page, and not drawn. An admin's are drawn below."""
    page, seen, offered = people[role], seen_by(role), set()
    for view, found in zip(PATHS, page.evaluate(_READ, list(PATHS.values())), strict=True):
        assert found["status"] == (200 if view in seen else 403), (role, view)
        assert found["title"], (role, view)
        if view not in seen:
            assert f"not available to the role {role}" in found["main"], (role, view)
            continue
        assert "Command line:" in found["main"], (role, view)
        offered |= set(found["acts"])
        assert found["menu"] == [one.title for one in PAGES if one.in_menu and one.name in seen], (role, view)
    assert offered == OFFERED[role], role
    # What is not offered is refused, too: sent as a form of this very session, with its token and origin.
    page.goto(server.url + PATHS["publish" if role != "viewer" else "overview"])
    token = page.evaluate("() => document.querySelector('[name=form_token]')?.value ?? 'none'")
    assert (token == "none") == (role == "viewer"), "who is offered no form gets no token for one"
    refused = [act for act, roles in ACTS.items() if role not in roles]
    for act, (status, said) in zip(refused, page.evaluate(_SENT, [refused, token]), strict=True):
        assert status == 403, (role, act, status)
        assert role == "viewer" or f"{act} is not available to the role {role}" in said, (role, act, said)


_READ = """paths => Promise.all(paths.map(async (path) => {
  const answer = await fetch(path);
  const read = new DOMParser().parseFromString(await answer.text(), "text/html");
  const acts = [...read.querySelectorAll("form[action^='/console/do/']")].map((one) => one.getAttribute("action"));
  return {
    status: answer.status,
    title: read.querySelector("h1").textContent.trim(),
    main: read.querySelector("main").textContent,
    menu: [...read.querySelectorAll("nav.menu a")].map((one) => one.textContent.trim()),
    acts: acts.map((one) => one.replace("/console/do/", "").replaceAll("-", " ")),
  };
}))"""
_SENT = """([acts, token]) => Promise.all(acts.map(async (act) => {
  const body = new URLSearchParams({form_token: token, back: "/console", item: "x", name: "x"});
  const address = `/console/do/${act.replaceAll(" ", "-")}`;
  const answer = await fetch(address, {method: "POST", body, redirect: "manual"});
  return [answer.status, await answer.text()];
}))"""


@pytest.mark.parametrize("role", [role for role in ROLES if role != "admin"])
def test_no_foreign_code_runs_on_what_a_role_sees(server: PushqServer, people: People, role: Role) -> None:
    page = people[role]
    for view in seen_by(role):
        page.goto(server.url + PATHS[view])
        expect(page.get_by_text("Command line:")).to_be_visible()
        assert page.evaluate("() => window.hacked") is None, (role, view)


def test_a_viewer_sees_no_payload(server: PushqServer, people: People) -> None:
    page = people["viewer"]
    page.goto(server.url + PATHS["message"])
    expect(page.get_by_text("Your key cannot see payloads")).to_be_visible()
    assert "lamp" not in page.content()
    assert serious(page) == []
    page.goto(server.url + PATHS["messages"])
    assert "lamp" not in page.content() and page.get_by_text("hidden: requires consume").count() > 1


OF_EACH_KIND = ("overview", "queue", "messages", "dead letters", "connections", "tenants", "usage", "settings")
"""A list, a form, a table that is wide, plots, payloads: views that no other test has axe read."""


@pytest.mark.parametrize(
    ("views", "themes"),
    [(OF_EACH_KIND, 1), (tuple(PATHS), len(THEMES))],
    ids=["one of each kind, a theme by turns", "each one, both themes"],
)
def test_views_are_readable_and_fit_into_320_px(
    server: PushqServer, people: People, views: Sequence[str], themes: int
) -> None:
    """Seen by an admin, who sees all that there is on each, with its forms open. A picture of each is kept."""
    page = people["admin"]
    server_has_fired(server)
    assert sorted(PATHS) == sorted(VIEWS)
    for number, view in enumerate(views):
        page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
        page.goto(server.url + PATHS[view])
        expect(page.get_by_text("Command line:")).to_be_visible()
        assert page.evaluate("() => window.hacked") is None, view
        page.evaluate(_OPEN)
        for theme in [THEMES[(number + turn) % len(THEMES)] for turn in range(themes)]:
            page.emulate_media(color_scheme=theme)
            assert serious(page) == [], (view, theme)
        page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
        wide = page.evaluate(_WIDTH)
        assert wide <= NARROW[0], f"{view} is {wide} px wide with its forms open"
        page.evaluate(_CLOSE)
        wide = page.evaluate(_WIDTH)
        assert wide <= NARROW[0], f"{view} is {wide} px wide"
        picture(page, view, "admin", theme, NARROW[0])
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})


_WIDTH = "() => document.documentElement.scrollWidth"
_OPEN = "() => document.querySelectorAll('details').forEach((one) => { one.open = true; })"
_CLOSE = "() => document.querySelectorAll('details').forEach((one) => { one.open = false; })"


def test_pictures_show_each_view_in_both_themes_and_widths(server: PushqServer, people: People, tmp_path: Path) -> None:
    """`make screenshots` takes them."""
    pictures = [one for view in PATHS for one in take(people["admin"], server, view, "admin", tmp_path)]
    assert len({one.file.read_bytes() for one in pictures if one.width == WIDE[0]}) == 2 * len(VIEWS)
    assert index(pictures, tmp_path).read_text().count("<img") == 4 * len(VIEWS)


# ------------------------------------------------------------------------------------------------------- keyboard


class Keyboard:
    """Somebody who has no mouse: tabs to what they mean, and sees where the focus is."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def to(self, name: str) -> None:
        """Tab by Tab, up to what is called so. Each stop on the way shows that it has the focus."""
        tabs = self.page.evaluate(_TABS_TO, name)
        assert tabs, f"no {name!r} from here on"
        for _ in range(tabs):
            self.page.keyboard.press("Tab")
        unmarked = [stop for stop in self.page.evaluate("() => window.stops") if not stop["is_marked"]]
        assert unmarked == [], "the focus is not to be seen"
        stop = self.stop()
        assert re.fullmatch(name, stop["name"]), f"the focus is on {stop}, not on {name!r}"

    def stop(self) -> dict[str, Any]:
        found: dict[str, Any] = self.page.evaluate(_STOP)
        return found

    def fill(self, label: str, text: str) -> None:
        self.to(label)
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(text)

    def press(self, name: str, key: str = "Enter") -> None:
        self.to(name)
        self.page.keyboard.press(key)


_TELL = """(one) => {
  const style = getComputedStyle(one);
  const text = one.labels?.[0]?.textContent ?? one.getAttribute("aria-label") ?? one.textContent;
  const is_marked = one === document.body || (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2);
  return {tag: one.tagName, name: text.trim().replace(/\\s+/g, " "), is_marked};
}"""
_STOP = f"() => ({_TELL})(document.activeElement)"


def test_the_focus_goes_through_a_page_in_its_order_and_out_of_it(server: PushqServer, people: People) -> None:
    page = people["admin"]
    for view in ("overview", "rules", "publish"):
        page.goto(server.url + PATHS[view])
        keyboard = Keyboard(page)
        page.keyboard.press("Tab")
        assert keyboard.stop()["name"] == "Skip to the content"
        expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
        page.keyboard.press("Enter")
        assert page.evaluate("() => document.activeElement.id") == "main"
        page.goto(server.url + PATHS[view])
        page.evaluate("() => document.addEventListener('focusin', (event) => (window.order ??= []).push(event.target))")
        stops = page.evaluate(_STOPS)
        for _ in range(stops + 2):
            page.keyboard.press("Tab")
        in_order = page.evaluate(
            "() => window.order.every((one, at, all) => !at || all[at - 1].compareDocumentPosition(one) & 4 ||"
            " one.classList.contains('skip'))"
        )
        assert in_order, view
        assert page.evaluate("() => new Set(window.order).size") == stops, f"{view}: the focus is held somewhere"


_ALL_STOPS = """[...document.querySelectorAll(
  "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")]
  .filter((one) => one.checkVisibility() && (one.type !== "radio" || one.checked))"""
_STOPS = f"() => {_ALL_STOPS}.length"
_TABS_TO = f"""(name) => {{
  const tell = {_TELL}, all = {_ALL_STOPS}, at = all.indexOf(document.activeElement);
  if (!window.stops) document.addEventListener("focusin", (event) => window.stops.push(tell(event.target)));
  window.stops = [];
  return all.slice(at + 1).findIndex((one) => new RegExp(`^(?:${{name}})$`).test(tell(one).name)) + 1;
}}"""
"""How many there are from the focus on; what has it meanwhile is written down."""


def test_by_keyboard_alone_from_the_sign_in_to_the_sign_out(server: PushqServer, browser: Browser) -> None:
    page = browser.new_context(viewport={"width": WIDE[0], "height": WIDE[1]}).new_page()
    page.set_default_timeout(WAIT_MS_MAX)
    sign_in(page, server, "admin")
    keyboard = Keyboard(page)
    heading = page.get_by_role("heading", level=1)

    # The list, a filter, a queue. A heading is there before the script that knows the keys.
    page.wait_for_load_state()
    for key in "gq":
        page.keyboard.press(key)
    expect(heading).to_have_text("Queues")
    page.wait_for_load_state()
    page.keyboard.press("/")
    page.keyboard.insert_text("thumb")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.wait_for_load_state()
    page.keyboard.press("j")
    assert keyboard.stop() == {"tag": "A", "name": "thumbnails", "is_marked": True}
    page.keyboard.press("Enter")
    expect(heading).to_have_text("thumbnails")

    # Publish, and look at what was published.
    keyboard.press("Publish")
    expect(heading).to_have_text("Publish to thumbnails")
    keyboard.fill("Body.*", '{"by": "keyboard"}')
    keyboard.press("Publish")
    expect(page.get_by_role("status")).to_contain_text("Published ")
    keyboard.press(r"\d+-[0-9a-f]+")
    expect(page.locator("pre.payload")).to_contain_text('"by": "keyboard"')

    # Dead letters go back. A form that was opened closes with Escape, and the focus is where it was.
    page.goto(server.url + PATHS["dead letters"])
    keyboard.press("Redrive")
    keyboard.to("Message ids")
    page.keyboard.press("Escape")
    expect(page.locator("details.act[open]")).to_have_count(0)
    assert keyboard.stop()["name"] == "Redrive" and keyboard.stop()["tag"] == "SUMMARY"
    page.keyboard.press("Enter")
    keyboard.fill("Type orders", "orders")
    keyboard.press("Redrive")
    expect(page.locator("progress")).to_have_attribute("value", "5")

    # An alert that fires is silenced.
    server_has_fired(server)
    page.goto(server.url + PATHS["alerts"])
    keyboard.press("Silence")
    expect(heading).to_have_text("Silences")
    keyboard.fill("Reason", "known")
    keyboard.press("Silence")
    expect(page.locator(".notice")).to_contain_text("it mutes 1 alert now")

    # A connection is ended.
    with reading(server, LONG, messages=3):
        page.goto(server.url + PATHS["connections"])
        row = page.get_by_role("row").filter(has_text=LONG)
        expect(row).to_have_count(1)
        ids = {one["id"] for one in api(server, "GET", "/v1/connections")["items"]}
        keyboard.press("Disconnect")
        keyboard.press("Disconnect")
        expect(page.locator(".notice")).to_contain_text("was ended")
        left = {one["id"] for one in api(server, "GET", "/v1/connections")["items"]}
        assert len(ids - left) == 1

    keyboard.press("Sign out")
    expect(page.get_by_label("API key or JWT")).to_be_focused()
    page.goto(server.url + QUEUE)
    expect(page.get_by_label("API key or JWT")).to_be_visible()
    page.context.close()
