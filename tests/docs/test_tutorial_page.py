"""The page of the tutorial works in a real browser, from another origin, with the key that the tutorial makes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from playwright.sync_api import sync_playwright

from tests.browser.conftest import CHROMIUM_ARGS
from tests.conftest import StartServer
from tests.support.cli import Cli

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "first-messages.md"
SCOPES = ("--scope", "publish:orders", "--scope", "consume:orders")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Requests are nobody's news here."""


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_address[1]}"
        server.shutdown()


def test_an_order_placed_on_the_page_is_pushed_to_it(start_server: StartServer, chromium: str, tmp_path: Path) -> None:
    server = start_server(dev=True)
    pushq = Cli(server)
    pushq("queue", "create", "orders")
    key = pushq("key", "create", "page", *SCOPES).out.strip()
    [html] = re.findall(r"^```html\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text(html.replace("PASTE_KEY", key).replace("8080", str(server.port)))
    with _served(site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        page = browser.new_page()
        page.goto(address)
        page.click("button")
        line = page.text_content("li")
        browser.close()
    assert line is not None and line.startswith('{"at":"')
