"""The documentation's pages in a browser: none is wider than a small screen, and no link of theirs leads nowhere."""

from __future__ import annotations

from urllib.parse import urldefrag

from playwright.sync_api import Page, expect

from tests.support.server import PushqServer

SMALL = {"width": 320, "height": 700}
LOOK = """async (address) => {
  const answer = await fetch(address);
  const read = new DOMParser().parseFromString(await answer.text(), "text/html");
  const looks = (of) => [...of.querySelectorAll("head link[rel=stylesheet]")].map((one) => one.getAttribute("href"));
  const isHtml = answer.headers.get("content-type").startsWith("text/html");
  const isOurs = new URL(address).pathname.startsWith("/docs");
  if (!isHtml || !isOurs) return {status: answer.status, ids: [], links: [], width: 0};
  if (String(looks(read)) !== String(looks(document))) throw new Error(`${address} looks different`);
  document.body = read.body;
  const all = (selector) => document.querySelectorAll(selector);
  return {
    status: answer.status,
    width: document.documentElement.scrollWidth,
    links: [...all("main a, nav a")].map((link) => new URL(link.getAttribute("href"), address).href),
    ids: [...all("[id]")].map((one) => one.id),
  };
}"""
"""Shows another page with the styles of the one that was loaded."""


def test_no_page_is_wider_than_a_small_screen_and_every_link_leads_somewhere(
    page: Page, shared_server: PushqServer
) -> None:
    """Every page that links lead to from `/docs`, by the browser's own reading of it."""
    url = shared_server.url
    page.set_viewport_size(SMALL)
    page.goto(f"{url}/docs")
    ids: dict[str, set[str]] = {}
    linked: dict[str, set[str]] = {}
    wide, missing, waiting = [], [], [f"{url}/docs"]
    while waiting:
        address = waiting.pop()
        if address in ids:
            continue
        seen = page.evaluate(LOOK, address)
        ids[address] = set(seen["ids"])
        if seen["status"] != 200:
            missing.append(address)
        if seen["width"] > SMALL["width"]:
            wide.append(f"{address} is {seen['width']} px wide")
        for link in seen["links"]:
            target, anchor = urldefrag(link)
            if target.startswith(url):
                waiting.append(target)
                linked.setdefault(target, set()).add(anchor)
    assert len(ids) > 50
    assert wide == []
    assert missing == []
    lost = {f"{target}#{one}" for target, anchors in linked.items() for one in anchors - {""} - ids[target]}
    assert lost == set()


def test_search_leads_to_the_section_that_has_the_words(page: Page, shared_server: PushqServer) -> None:
    page.goto(f"{shared_server.url}/docs")
    page.get_by_label("Search the documentation").fill("unsupported-media-type")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name="Errors › unsupported-media-type").click()
    expect(page.locator("h2#unsupported-media-type")).to_be_in_viewport()
    expect(page.get_by_role("navigation", name="On this page")).to_be_visible()


def test_contents_stand_below_their_heading_also_where_they_are_few(page: Page, shared_server: PushqServer) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    for path in ("/docs", "/docs/tutorial/first-messages"):
        page.goto(shared_server.url + path)
        contents = page.get_by_role("navigation", name="On this page")
        heading, entries = contents.locator("h2").bounding_box(), contents.locator("ul").bounding_box()
        assert heading is not None and entries is not None
        assert entries["y"] >= heading["y"] + heading["height"], path
