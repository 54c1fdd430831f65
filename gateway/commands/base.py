"""Building blocks of all commands: lazily imported groups, translation of errors, and running a coroutine."""

from __future__ import annotations

import asyncio
import importlib
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, cast

import click

from gateway.commands.exits import Failure, translate

KEY_ORIGIN = "pushq.key_origin"
"""Where `Target` records in the click context which key it used, for the message of a 401."""

SERVER_ASKED = "pushq.server_asked"
"""Where `Target` records which server it asked, for messages to users who may have meant another one."""

URL_ORIGIN = "pushq.url_origin"
"""Where `Target` records which variable or context its URL came from, for the same messages; not for `--url`."""

WORDS = "pushq.words"
"""Where the words of the command line are kept while a shell completes them."""

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Command(click.Command):
    """A command whose errors become sentences and exit codes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; while a shell completes, also keeps the words of the line, see `names.group_names`."""
        if ctx.resilient_parsing:
            ctx.meta[WORDS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Failure as failure:
            failure.is_json = bool(ctx.params.get("as_json"))
            raise
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            translated = translate(
                error,
                key_origin=ctx.meta.get(KEY_ORIGIN),
                asked=ctx.meta.get(SERVER_ASKED),
                url_origin=ctx.meta.get(URL_ORIGIN),
            )
            if translated is None:
                raise
            translated.is_json = bool(ctx.params.get("as_json"))
            raise translated from error


class Group(click.Group):
    """Commands under one noun."""

    command_class = Command

    def __init__(self, *args: Any, lazy: Mapping[str, str] | None = None, **attrs: Any) -> None:
        """`lazy` maps names of subcommands to `module:attribute`; they are imported on first access."""
        super().__init__(*args, **attrs)
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which a reader meets them."""
        return [*self._lazy, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (place := self._lazy.get(cmd_name)) is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = place.partition(":")
        return cast(click.Command, getattr(importlib.import_module(module), attribute))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but suggests commands that are not imported yet, too."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise click.exceptions.NoSuchCommand(error.command_name, possibilities=self.list_commands(ctx), ctx=ctx)


def command(name: str, **attrs: Any) -> Callable[[Callable[..., Any]], Command]:
    """`click.command` for a command that stands alone under `pushq`."""
    return click.command(name, cls=Command, **attrs)


def group(name: str, **attrs: Any) -> Callable[[Callable[..., Any]], Group]:
    """`click.group` for a noun."""
    return click.group(name, cls=Group, **attrs)


class CommonOption(click.Option):
    """An option that means the same on every command that has it; the reference page lists it once."""


def json_option(function: F) -> F:
    """`--json`, as the parameter `as_json`."""
    return click.option("--json", "as_json", cls=CommonOption, is_flag=True, help="Print JSON to stdout.")(function)


def yes_option(function: F) -> F:
    """`--yes`, for commands that destroy something."""
    return click.option("--yes", "-y", "is_sure", cls=CommonOption, is_flag=True, help="Skip the confirmation prompt.")(
        function
    )


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine. SIGTERM cancels it as Ctrl-C does, so that the command cleans up."""

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        raise SystemExit(128 + signal.SIGTERM) from None


def stop_signal() -> asyncio.Event:
    """An event that Ctrl-C and SIGTERM set instead of cancelling: for commands that first finish what is under way."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop
