"""`pushq context …`: named servers with their keys, so that a command line needs one word for both."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from gateway.commands.base import group, json_option, yes_option
from gateway.commands.exits import Failure
from gateway.commands.names import context_names
from gateway.commands.output import confirm, put_fields, put_items, put_json, put_table, tell

if TYPE_CHECKING:
    from gateway.commands.contexts import Contexts

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@group("context")
def context() -> None:
    """Name servers, and say which one commands talk to.

    Contexts are in contexts.json in $XDG_CONFIG_HOME/pushq (~/.config/pushq), with mode 0600: a file that others may
    read or change is refused. Commands take the context of --context, else of PUSHQ_CONTEXT, else the one of `use`.

    Options come before the environment, the environment before a context, a context before the defaults; and what a
    --context names is an option. With --url, --data or, unless --context is given, PUSHQ_URL no context is used at all:
    its key goes to its own server only.
    """


@context.command("add")
@click.argument("name", metavar="NAME")
@click.option("--url", required=True, metavar="URL", help="The server.")
@click.option("--key-file", type=_FILE, metavar="FILE", help="A file with the API key; it stays where it is.")
@click.option("--key-command", metavar="COMMAND", help="Prints the API key, such as 'pass show pushq/prod'.")
@click.option("--key-stdin", is_flag=True, help="Read the API key from stdin, and keep it.")
@click.option("--tenant", metavar="TENANT", help="For --tenant where a command has that.")
@click.option("--ca", type=_FILE, metavar="FILE", help="Authorities to trust for https://.")
@click.option("--cert", type=_FILE, metavar="FILE", help="A certificate of your own with its key.")
@click.option("--use", "is_used", is_flag=True, help="Commands talk to it from now on.")
@click.option("--replace", is_flag=True, help="In place of one of this name.")
@json_option
def add(
    name: str,
    url: str,
    key_file: Path | None,
    key_command: str | None,
    key_stdin: bool,
    tenant: str | None,
    ca: Path | None,
    cert: Path | None,
    is_used: bool,
    replace: bool,
    as_json: bool,
) -> None:
    """Add a context. A key never stands on the command line, where others may see it.

    The first one is used from now on, others with --use.
    """
    from gateway.commands.contexts import Profile, checked_name, load, path, save

    checked_name(name)
    if (key_file is not None) + (key_command is not None) + key_stdin > 1:
        raise click.UsageError("--key-file, --key-command and --key-stdin each say where the key is: name one of them")
    contexts = load()
    if name in contexts.contexts and not replace:
        raise Failure(f'there is a context "{name}" already', lines=["--replace puts this one in its place"])
    contexts.contexts[name] = Profile(
        url=_checked_url(url),
        key=_read_key() if key_stdin else None,
        key_file=_absolute(key_file),
        key_command=None if key_command is None else _checked_command(key_command),
        tenant=tenant,
        ca_file=_absolute(ca),
        cert_file=_absolute(cert),
    )
    if is_used or len(contexts.contexts) == 1:
        contexts.current = name
    save(contexts)
    if as_json:
        _put(name, contexts)
        return
    used = "; commands use it from now on" if contexts.current == name else f"; `pushq context use {name}` uses it"
    tell(f'context "{name}" is in {path()}{used}')


@context.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List contexts, without secrets."""
    from gateway.commands.contexts import load

    contexts = load()
    rows = [(name, contexts.contexts[name]) for name in sorted(contexts.contexts)]
    if as_json:
        put_items([{"name": name, "current": name == contexts.current, **each.shown()} for name, each in rows])
        return
    header = ["", "name", "url", "key", "tenant"]
    marks = {True: "*", False: ""}
    put_table(
        header,
        [
            [marks[name == contexts.current], name, each.url, each.shown_key(), each.tenant or "–"]
            for name, each in rows
        ],
    )


@context.command("use")
@click.argument("name", shell_complete=context_names, metavar="NAME", required=False)
@click.option("--none", "is_none", is_flag=True, help="No context.")
@json_option
def use(name: str | None, is_none: bool, as_json: bool) -> None:
    """Have commands talk to the server of NAME from now on."""
    from gateway.commands.contexts import load, save

    if (name is None) != is_none:
        raise click.UsageError("name a context, or --none, one of the two")
    contexts = load()
    if name is not None:
        contexts.get(name, "NAME")
    contexts.current = name
    save(contexts)
    if as_json:
        put_json({"name": name})
    elif name is None:
        tell("commands use no context now")
    else:
        tell(f'commands use "{name}" now: {contexts.contexts[name].url}')
    for variable in ("PUSHQ_URL", "PUSHQ_CONTEXT", "PUSHQ_KEY"):
        if os.environ.get(variable) and (name is not None or variable != "PUSHQ_KEY"):
            tell(f"warning: {variable} is set, and comes before it")


@context.command("show")
@click.argument("name", shell_complete=context_names, metavar="NAME", required=False)
@json_option
def show(name: str | None, as_json: bool) -> None:
    """Show context NAME, else the one in use, without secrets."""
    from gateway.commands.contexts import load

    contexts = load()
    chosen = name or os.environ.get("PUSHQ_CONTEXT") or contexts.current
    if chosen is None:
        raise Failure("no context is in use", lines=["`pushq context list` shows those there are"])
    fields = {"name": chosen, **contexts.get(chosen, "NAME" if name else "the context in use").shown()}
    if as_json:
        _put(chosen, contexts)
    else:
        put_fields({field: value or "–" for field, value in fields.items()})


@context.command("remove")
@click.argument("name", shell_complete=context_names, metavar="NAME")
@yes_option
@json_option
def remove(name: str, is_sure: bool, as_json: bool) -> None:
    """Remove context NAME, and the key if it is kept here. A key file stays."""
    from gateway.commands.contexts import load, save

    contexts = load()
    profile = contexts.get(name, "NAME")
    confirm(f'Remove context "{name}", {profile.url}' + (", with its key?" if profile.key else "?"), is_sure=is_sure)
    del contexts.contexts[name]
    was_used = contexts.current == name
    if was_used:
        contexts.current = None
    save(contexts)
    if as_json:
        put_json({"name": name, "deleted": True})
        return
    tell(f'context "{name}" is removed' + ("; commands use none now" if was_used else ""))


def _put(name: str, contexts: Contexts) -> None:
    put_json({"name": name, **contexts.contexts[name].shown(), "current": name == contexts.current})


def _checked_url(url: str) -> str:
    from push.client.discover import find_url

    try:
        found = find_url(url)
        parts = urlsplit(found)
        is_whole = bool(parts.hostname) and parts.port != 0 and " " not in found
        has_secret = parts.username is not None or parts.password is not None
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--url") from None
    if not is_whole:
        raise click.BadParameter(f"{found!r} must name a host, as https://queue.example does", param_hint="--url")
    if has_secret:
        raise click.BadParameter("leave name and password out of it: the key says who you are", param_hint="--url")
    return found


def _checked_command(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise click.BadParameter(
            f"{command!r} cannot be split into words: {error}", param_hint="--key-command"
        ) from None
    if not words:
        raise click.BadParameter("it is empty: name a program that prints the key", param_hint="--key-command")
    return command


def _read_key() -> str:
    if sys.stdin.isatty():
        key = str(click.prompt("API key", hide_input=True, err=True))
    else:
        key = sys.stdin.readline()
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise click.BadParameter(
            "stdin holds no key: a key is one word of plain letters, digits and signs", param_hint="--key-stdin"
        )
    return key


def _absolute(file: Path | None) -> str | None:
    return None if file is None else str(file.absolute())
