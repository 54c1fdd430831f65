"""Chromium, driven by Playwright, against the real server."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.patience import PATIENCE_S

CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-quic",
    "--disable-sync",
    "--disable-component-update",
]
WAIT_MS_MAX = PATIENCE_S * 1000
expect.set_options(timeout=WAIT_MS_MAX)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """One browser for a file of tests; each test has a profile of its own in it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_failed] = report.failed
    return report


@pytest.fixture
def page(browser: Browser, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A fresh page. A script error on it fails the test. The last look of one that failed is kept as `page.png` in
    `tmp_path`: without a graphics card a picture takes as long as most tests."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(WAIT_MS_MAX)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    if errors or request.node.stash.get(_failed, True):
        page.screenshot(path=tmp_path / "page.png", full_page=True)
    context.close()
    assert not errors, f"the page's scripts failed: {errors}"
