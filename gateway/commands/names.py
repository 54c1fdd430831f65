"""Shell completion of names: queues and groups, which are fetched from the server, and contexts.

A shell waits at each Tab, so the server gets one second; without an answer nothing is suggested.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import click

from gateway.commands.base import WORDS
from gateway.commands.target import DATA_DEFAULT, Target

if TYPE_CHECKING:
    from push.client import Admin

ASK_S_MAX = 1.0
PAGE_ITEMS = 1_000
READ_BYTES = 64 * 1024

Ask = Callable[["Admin"], AsyncIterator[str]]


def queue_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Queues that the key may view."""
    return _from_server(ctx, _queues, incomplete)


def group_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Groups of the stream named earlier on the command line."""
    stream = ctx.params.get("queue") or _before_option(ctx).get("queue")
    if not isinstance(stream, str):
        return []

    async def groups(admin: Admin) -> AsyncIterator[str]:
        for group in await admin.list_groups(stream):
            yield group["name"]

    return _from_server(ctx, groups, incomplete)


def context_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of existing contexts."""
    from gateway.commands.contexts import load
    from gateway.commands.exits import Failure

    try:
        return [name for name in sorted(load().contexts) if name.startswith(incomplete)]
    except Failure:
        return []


def _before_option(ctx: click.Context) -> dict[str, Any]:
    """The parameters without the last word: an option that waits for its value keeps click from parsing the rest."""
    words = ctx.meta.get(WORDS, [])[:-1]
    return ctx.command.make_context(ctx.info_name, list(words), parent=ctx.parent, resilient_parsing=True).params


async def _queues(admin: Admin) -> AsyncIterator[str]:
    cursor: str | None = None
    while True:
        page = await admin.list_queues(limit=PAGE_ITEMS, cursor=cursor)
        for item in page["items"]:
            yield item["name"]
        if (cursor := page.get("next")) is None:
            return


def _from_server(ctx: click.Context, ask: Ask, incomplete: str) -> list[str]:
    import push.client.admin  # noqa: F401  # before the time begins: it is for the server

    given = {name: ctx.params.get(name) for name in ("url", "key_file", "ca", "context")}
    data = ctx.params.get("data")
    target = Target(data=data or DATA_DEFAULT, is_data_named=data is not None, **given)

    def write(out: int) -> None:
        asyncio.run(_write(target, ask, out))

    return [name for name in lines_within(ASK_S_MAX, write) if name.startswith(incomplete)]


async def _write(target: Target, ask: Ask, out: int) -> None:
    if target.profile is not None and target.profile[1].key_command is not None:
        return  # the command may ask for a passphrase, too much for a Tab
    async with target.admin() as admin:
        async for name in ask(admin):
            os.write(out, f"{name}\n".encode())


def lines_within(limit_s: float, write: Callable[[int], Any]) -> list[str]:
    """The whole lines that `write` writes to a descriptor within this time, however long it blocks and however it ends.

    `write` runs in a forked process: a resolver that hangs cannot be interrupted, and would keep this process from
    ending.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            silent = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(silent, descriptor)
            write(writing)
        finally:
            os._exit(0)
    os.close(writing)
    try:
        *lines, _ = _read(reading, time.monotonic() + limit_s).decode().split("\n")
        return lines
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _read(descriptor: int, until: float) -> bytes:
    """All data until the end of the file, or until that time."""
    read = b""
    while select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
        chunk = os.read(descriptor, READ_BYTES)
        if not chunk:
            break
        read += chunk
    return read
