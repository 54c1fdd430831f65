"""Pages for people: the index, the demo of `--dev`, the console, and their files.

The gateway makes a `ConsoleContext` and adds `routes(context)` to its API. Pages talk to the server as any other client
does: over its HTTP API and `pushq.js`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.routing import BaseRoute, Route

from web_console.console import Console
from web_console.pages.assets import asset_routes
from web_console.pages.demo import demo_routes, kill_this_process
from web_console.pages.index import index_endpoint
from web_console.server import Server


@dataclass(frozen=True, slots=True)
class ConsoleContext:
    """What the pages need from the gateway that serves them."""

    dev: bool
    """Whether `--dev` is on: without it there is no demo, and nothing here hands out credentials or kills."""
    demo_token: Callable[[], Awaitable[str]]
    """Makes the short-lived credential that the demo page connects with."""
    version: str
    crash: Callable[[], None] = kill_this_process
    """Ends this process as a power cut would."""
    server: Server | None = None
    """What the console needs from the server; None if there is no console, as in tests of other pages."""


def routes(context: ConsoleContext) -> list[BaseRoute]:
    """The pages' routes, for the gateway to put beside its own."""
    index = Route("/", index_endpoint(dev=context.dev, version=context.version), name="index")
    demo = demo_routes(context.demo_token, context.crash, version=context.version) if context.dev else []
    console = Console(context.server, context.version).routes() if context.server is not None else []
    return [index, *demo, *console, *asset_routes()]
