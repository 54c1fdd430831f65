"""Where the server is and which key opens it, when the caller does not say: environment first, then the data folder."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from push.client.config import DEFAULT_KEY_FILE, DEFAULT_URL

Key = str | Callable[[], str | None] | Callable[[], Awaitable[str | None]] | None
"""An API key or JWT, or a function that fetches one: it is called again for every connection."""


def find_url(url: str | None = None) -> str:
    """The server's base URL without a trailing slash: the argument, else `PUSHQ_URL`, else the local default."""
    found = (url or os.environ.get("PUSHQ_URL") or DEFAULT_URL).rstrip("/")
    if not found.startswith(("http://", "https://", "ws://", "wss://")):
        raise ValueError(f"the server's URL must begin with http:// or https://, not {found!r}")
    return found.replace("ws", "http", 1) if found.startswith("ws") else found


def find_key(*, data: Path | None = None) -> str | None:
    """The key from `PUSHQ_KEY`, else from `admin.key` in the data folder; None when there is neither."""
    if key := os.environ.get("PUSHQ_KEY"):
        return key.strip()
    file = Path(DEFAULT_KEY_FILE) if data is None else data / "admin.key"
    return file.read_text().strip() if file.is_file() else None


async def resolve_key(key: Key) -> str | None:
    """The credential to use now: the value itself, what the function returns, or what `find_key` finds."""
    if key is None:
        return find_key()
    if isinstance(key, str):
        return key
    value = key()
    return await value if inspect.isawaitable(value) else value
