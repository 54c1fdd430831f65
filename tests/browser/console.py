"""The console as people of each role use it: signed in by keyboard, looked at in each width and theme, read by axe."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import httpx2
from playwright.sync_api import Page, expect

from tests.support.server import PushqServer
from web_console.roles import Role

ROOT = Path(__file__).resolve().parents[2]
ARTEFACTS = ROOT / "artefacts" / "console"
AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
SCOPES: dict[Role, list[str]] = {
    "viewer": ["view:*"],
    "operator": ["view:*", "consume:*", "publish:*", "manage:*"],
    "customer": ["admin"],
    "admin": ["admin", "operator"],
}


def api(server: PushqServer, method: str, path: str, body: object = None) -> Any:
    answer = httpx2.request(method, server.url + path, json=body, headers=server.headers)
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


def sign_in(page: Page, server: PushqServer, role: str) -> None:
    """By keyboard: the field has the focus."""
    scopes = SCOPES[role]  # type: ignore[index]
    key = api(server, "POST", "/v1/keys", {"name": f"{role}'s key", "scopes": scopes})["key"]
    page.goto(f"{server.url}/console")
    expect(page.get_by_label("API key or JWT")).to_be_focused()
    page.keyboard.insert_text(key)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


def check_look(page: Page, name: str, theme: Literal["light", "dark"]) -> None:
    """Asks axe, and whether it fits into a small screen."""
    page.emulate_media(color_scheme=theme)
    assert serious(page) == [], (name, theme)
    page.set_viewport_size({"width": 320, "height": 700})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 320, name
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light")


def serious(page: Page) -> list[str]:
    """What axe finds of serious and critical, WCAG 2.2 AA and best practices."""
    if not page.evaluate("() => Boolean(window.axe)"):
        page.evaluate(AXE)
    found = page.evaluate(
        "async () => (await axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'],"
        " resultTypes: ['violations']})).violations"
        ".filter((one) => ['serious', 'critical'].includes(one.impact))"
        ".map((one) => `${one.id}: ${one.nodes.map((node) => node.html).slice(0, 3).join(' ')}`)"
    )
    return list(found)
