"""What the console shows to tests and in pictures: a server with something on every view, and the views of each role.

`python -m tests.browser.gallery FOLDER` takes the pictures: each view that there is, light and dark, wide and narrow,
and a page with all of them.
"""

from __future__ import annotations

import html
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import httpx2
from playwright.sync_api import Page, sync_playwright

from tests.browser.console import ARTEFACTS, api, sign_in
from tests.support import prerequisites
from tests.support.patience import until
from tests.support.server import PushqServer
from tests.support.usage import live_minute, live_queue, write_live
from web_console.roles import VIEWS, Role

EVIL: Final = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>'
LONG: Final = "invoices-of-a-customer-with-a-very-long-name"
QUEUE: Final = "/console/queues/orders"
WIDE, NARROW = (1280, 900), (320, 700)
PATHS: Final[dict[str, str]] = {
    "overview": "/console",
    "queues": "/console/queues",
    "queue": QUEUE,
    "messages": f"{QUEUE}/messages",
    "message": f"{QUEUE}/message?id=tried",
    "dead letters": f"{QUEUE}/dead",
    "publish": f"{QUEUE}/publish",
    "queue settings": f"{QUEUE}/settings",
    "alerts": "/console/alerts",
    "alert history": "/console/alerts/history",
    "rules": "/console/alerts/rules",
    "receivers": "/console/alerts/receivers",
    "silences": "/console/alerts/silences",
    "connections": "/console/connections",
    "dashboards": "/console/dashboards",
    "dashboard": "/console/dashboards/shop",
    "node": "/console/node",
    "tenants": "/console/tenants",
    "keys": "/console/keys",
    "usage": "/console/usage",
    "audit": "/console/audit",
    "settings": "/console/settings",
    "help": "/console/help",
}
"""View → an address of it on a server that `filled` has filled."""
Theme = Literal["light", "dark"]
THEMES: Final[tuple[Theme, ...]] = ("light", "dark")


def used(folder: Path, messages: int) -> None:
    """As the job `live_usage` leaves it."""
    minutes = [live_minute(f"2026-11-20T22:{minute:02}:00.000Z", messages) for minute in range(0, 60, 3)]
    rows = [*minutes, live_queue("orders", messages, rows=300), live_queue(EVIL, 1, rows=300)]
    an_hour_from_now_ms = (time.time_ns() // 1_000_000) + 3_600_000  # it is not taken for stopped meanwhile
    write_live(folder, {"default": rows}, last_minute="2026-11-20T22:57:00Z", at_ms=an_hour_from_now_ms)


@contextmanager
def served(folder: Path, *, is_full: bool = True) -> Iterator[PushqServer]:
    """A server with something on every view, or with queues and their messages alone. `folder` has its data, and in
    `live` what the job wrote."""
    (folder / "live").mkdir()
    used(folder / "live", 7)
    env = {"PUSHQ_USAGE__LIVE_DIR": str(folder / "live"), "PUSHQ_ALERTS__WEBHOOK_NETWORKS": "127.0.0.0/8"}
    with PushqServer(folder / "data", env=env) as running:
        fill(running)
        if not is_full:
            yield running
            return
        watch(running)
        with reading(running, "mail"):
            yield running


def fill(server: PushqServer) -> None:
    """Queues with a backlog, one with dead letters and a message that was tried; names, reasons and bodies that want to
    be code."""
    for name in ("orders", "mail", "thumbnails", LONG, "audit.log"):
        api(server, "PUT", f"/v1/queues/{name}", {"max_attempts": 1} if name == "orders" else {})
    api(server, "PUT", "/v1/queues/prices", {"kind": "stream"})
    api(server, "PUT", "/v1/queues/prices/groups/dashboards", {})
    bodies = [{"body": {"order": number}, "key": f"customer-{number % 3}"} for number in range(5)]
    api(server, "POST", "/v1/queues/orders/messages", {"messages": bodies})
    given_back(server, 5, EVIL)
    tried = {"id": "tried", "body": {"order": 7, "lines": [{"item": "lamp", "count": 2}]}, "key": "customer-1"}
    evil = {"id": "evil", "body": EVIL, "headers": {"x-note": EVIL}, "key": EVIL}
    waiting = [{"body": {"order": number}} for number in range(40)]
    server_side = {"max_attempts": 3}
    etag = httpx2.get(f"{server.url}/v1/queues/orders", headers=server.headers).headers["etag"]
    httpx2.patch(
        f"{server.url}/v1/queues/orders", json=server_side, headers=server.headers | {"If-Match": etag}
    ).raise_for_status()
    api(server, "POST", "/v1/queues/orders/messages", {"messages": [tried]})
    given_back(server, 1, "the printer is out of paper")
    api(server, "POST", "/v1/queues/orders/messages", {"messages": [evil, *waiting]})
    api(server, "POST", "/v1/queues/mail/messages", {"messages": waiting})
    api(server, "POST", "/v1/queues/prices/messages", {"messages": waiting})


def watch(server: PushqServer) -> None:
    """Rules of which two fire, a silence, a receiver, a tenant and a key."""
    told = api(server, "POST", "/v1/alert-receivers", {"name": "on call", "url": "https://hooks.example/pushq"})
    rules: Sequence[dict[str, Any]] = (
        {"name": "orders wait", "kind": "depth", "queue": "orders", "limit": 20, "receivers": [told["id"]]},
        {"name": "mail waits", "kind": "depth", "queue": "mail", "limit": 5, "severity": "critical"},
        {"name": "publishing works", "kind": "slo_availability", "objective": 99.9, "severity": "critical"},
        {"name": "a key ends soon", "kind": "key_days", "limit": 14},
    )
    for rule in rules:
        api(server, "POST", "/v1/alert-rules", rule)
    api(server, "POST", "/v1/silences", {"queue": "mail", "reason": "the month's end", "duration_ms": 3_600_000})
    api(server, "PUT", "/v1/tenants/shop", {"quotas": {"requests_per_s": 500, "queues": 20}})
    api(server, "POST", "/v1/keys", {"name": "shop's worker", "scopes": ["consume:orders*", "publish:mail"]})


def given_back(server: PushqServer, count: int, reason: str) -> None:
    leased = api(server, "POST", "/v1/queues/orders/receive", {"max": count})["messages"]
    receipts = [message["receipt"] for message in leased]
    api(server, "POST", "/v1/queues/orders/nack", {"receipts": receipts, "reason": reason})


@contextmanager
def reading(server: PushqServer, queue: str, *, messages: int = 0) -> Iterator[None]:
    """Somebody is connected, and has three messages of a queue, to which some are published before."""
    if messages:
        api(server, "POST", f"/v1/queues/{queue}/messages", {"messages": [{"body": 1}] * messages})
    with httpx2.stream("GET", f"{server.url}/v1/queues/{queue}/events?credit=3", headers=server.headers):
        until(lambda: api(server, "GET", f"/v1/queues/{queue}")["stats"]["in_flight"] == 3, "three are in flight")
        yield


# ------------------------------------------------------------------------------------------------------- pictures


class Picture(NamedTuple):
    view: str
    role: Role
    theme: Theme
    width: int
    file: Path


def seen_by(role: Role) -> list[str]:
    return [view for view, roles in VIEWS.items() if role in roles]


def picture(page: Page, view: str, role: Role, theme: Theme, width: int, folder: Path = ARTEFACTS) -> Picture:
    """As the page is now."""
    file = folder / f"{role}-{view.replace(' ', '-')}-{theme}-{width}.png"
    page.screenshot(path=file, full_page=width == WIDE[0])
    return Picture(view, role, theme, width, file)


def take(page: Page, server: PushqServer, view: str, role: Role, folder: Path = ARTEFACTS) -> Iterator[Picture]:
    """Pictures of a view for whoever is signed in: in each theme and width, the page left as it is after each."""
    page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
    page.goto(server.url + PATHS[view])
    for width, height in (WIDE, NARROW):
        page.set_viewport_size({"width": width, "height": height})
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            yield picture(page, view, role, theme, width, folder)


def save_dashboard(page: Page, server: PushqServer) -> None:
    """Dashboards are made on their page alone."""
    page.goto(f"{server.url}/console/dashboards")
    page.locator("summary", has_text="Create a dashboard").press("Enter")
    page.get_by_label("Name").fill("shop")
    page.get_by_label("Queues").fill("orders mail thumbnails")
    page.get_by_role("button", name="Save").press("Enter")
    page.get_by_role("heading", level=1, name="shop").wait_for()


def index(pictures: Sequence[Picture], folder: Path = ARTEFACTS) -> Path:
    """A page with all of them, by view."""
    parts = []
    for view in dict.fromkeys(one.view for one in pictures):
        shown = [
            f'<figure><a href="{one.file.name}"><img src="{one.file.name}" loading="lazy" alt=""></a>'
            f"<figcaption>{one.role}, {one.theme}, {one.width} px</figcaption></figure>"
            for one in pictures
            if one.view == view
        ]
        parts.append(f"<h2>{html.escape(view)}</h2><div>{''.join(shown)}</div>")
    style = (
        "body{font:1rem system-ui;margin:2rem}div{display:flex;flex-wrap:wrap;gap:1rem;align-items:start}"
        "figure{margin:0}img{width:18rem;border:1px solid #aaa}figcaption{font-size:.85rem}"
    )
    page = folder / "index.html"
    page.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>The console</title><style>{style}</style>'
        f"<h1>The console</h1>{''.join(parts)}</html>\n"
    )
    return page


def main(folder: Path) -> None:
    chromium = prerequisites.require("chromium-headless-shell")
    pictures: list[Picture] = []
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as data,
        served(Path(data)) as server,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser,
    ):
        roles: tuple[Role, ...] = ("admin", "viewer")
        for role in roles:
            with browser.new_context() as context:
                page = context.new_page()
                sign_in(page, server, role)
                if role == "admin":
                    save_dashboard(page, server)
                    server_has_fired(server)
                for view in seen_by(role):
                    pictures += take(page, server, view, role, folder)
    print(f"{len(pictures)} pictures: {index(pictures, folder)}")


def server_has_fired(server: PushqServer) -> None:
    until(lambda: len(api(server, "GET", "/v1/alerts?state=firing")["items"]) >= 2, "the rules fire")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ARTEFACTS)
