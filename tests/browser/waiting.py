"""Waiting for a page. Playwright's own `wait_for_function` needs `eval`, which the pages' security policy forbids."""

from __future__ import annotations

import time

from playwright.sync_api import Page

from tests.support.patience import PATIENCE_S

WAIT_S_MAX = PATIENCE_S
LOOK_MS, LOOK_MS_MAX = 10, 160
"""Between two looks; they grow apart, since each costs the page a turn."""


def wait_until(page: Page, expression: str, *, seconds_max: float = WAIT_S_MAX) -> None:
    """Returns as soon as a JavaScript expression is true on the page; fails with the expression when it stays false."""
    deadline, pause_ms = time.monotonic() + seconds_max, LOOK_MS
    while not page.evaluate(f"() => Boolean({expression})"):
        assert time.monotonic() < deadline, f"not true within {seconds_max:g} s: {expression}"
        page.wait_for_timeout(pause_ms)
        pause_ms = min(pause_ms * 2, LOOK_MS_MAX)
