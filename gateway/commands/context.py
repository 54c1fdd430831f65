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
    """Save server connections and choose which one commands use.

    Contexts are stored in contexts.json in $XDG_CONFIG_HOME/pushq (~/.config/pushq) with mode 0600; a file that others
    can read or change is refused. Commands use the context of --context, else of PUSHQ_CONTEXT, else the one set by
    `use`.

    Options take precedence over the environment, the environment over a context, and a context over the defaults; the
    values of a context named with --context count as options. With --url, --data or, unless --context is given,
    PUSHQ_URL, no context is used at all: its key is only sent to its own server.
    """


@context.command("add")
@click.argument("name", metavar="NAME")
@click.option("--url", required=True, metavar="URL", help="The server's URL.")
@click.option("--key-file", type=_FILE, metavar="FILE", help="A file with the API key; only its path is saved.")
@click.option(
    "--key-command", metavar="COMMAND", help="A command that prints the API key, such as 'pass show pushq/prod'."
)
@click.option("--key-stdin", is_flag=True, help="Read the API key from stdin and save it.")
@click.option("--tenant", metavar="TENANT", help="Default for --tenant, in commands that have it.")
@click.option("--ca", type=_FILE, metavar="FILE", help="Trusted CA certificates for https://.")
@click.option("--cert", type=_FILE, metavar="FILE", help="Client certificate and key.")
@click.option("--use", "is_used", is_flag=True, help="Make it the current context.")
@click.option("--replace", is_flag=True, help="Replace the context of this name, if any.")
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
    """Add a context. Keys are never given on the command line, where other users could see them.

    The first context becomes the current one; later ones need --use.
    """
    from gateway.commands.contexts import Profile, checked_name, load, path, save

    checked_name(name)
    if (key_file is not None) + (key_command is not None) + key_stdin > 1:
        raise click.UsageError("--key-file, --key-command and --key-stdin are mutually exclusive")
    contexts = load()
    if name in contexts.contexts and not replace:
        raise Failure(f'context "{name}" already exists', lines=["use --replace to overwrite it"])
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
    used = (
        "; it is now the current context"
        if contexts.current == name
        else f"; switch to it with `pushq context use {name}`"
    )
    tell(f'saved context "{name}" in {path()}{used}')


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
@click.option("--none", "is_none", is_flag=True, help="Use no context.")
@json_option
def use(name: str | None, is_none: bool, as_json: bool) -> None:
    """Make NAME the current context."""
    from gateway.commands.contexts import load, save

    if (name is None) != is_none:
        raise click.UsageError("give either a context name or --none")
    contexts = load()
    if name is not None:
        contexts.get(name, "NAME")
    contexts.current = name
    save(contexts)
    if as_json:
        put_json({"name": name})
    elif name is None:
        tell("no context is in use now")
    else:
        tell(f'current context: "{name}" ({contexts.contexts[name].url})')
    for variable in ("PUSHQ_URL", "PUSHQ_CONTEXT", "PUSHQ_KEY"):
        if os.environ.get(variable) and (name is not None or variable != "PUSHQ_KEY"):
            tell(f"warning: {variable} is set and takes precedence")


@context.command("show")
@click.argument("name", shell_complete=context_names, metavar="NAME", required=False)
@json_option
def show(name: str | None, as_json: bool) -> None:
    """Show context NAME, or the current one, without secrets."""
    from gateway.commands.contexts import load

    contexts = load()
    chosen = name or os.environ.get("PUSHQ_CONTEXT") or contexts.current
    if chosen is None:
        raise Failure("no context is in use", lines=["list contexts with `pushq context list`"])
    fields = {"name": chosen, **contexts.get(chosen, "NAME" if name else "the current context").shown()}
    if as_json:
        _put(chosen, contexts)
    else:
        put_fields({field: value or "–" for field, value in fields.items()})


@context.command("remove")
@click.argument("name", shell_complete=context_names, metavar="NAME")
@yes_option
@json_option
def remove(name: str, is_sure: bool, as_json: bool) -> None:
    """Delete context NAME and the key saved with it. A key file is not deleted."""
    from gateway.commands.contexts import load, save

    contexts = load()
    profile = contexts.get(name, "NAME")
    confirm(f'Delete context "{name}", {profile.url}' + (", with its key?" if profile.key else "?"), is_sure=is_sure)
    del contexts.contexts[name]
    was_used = contexts.current == name
    if was_used:
        contexts.current = None
    save(contexts)
    if as_json:
        put_json({"name": name, "deleted": True})
        return
    tell(f'deleted context "{name}"' + ("; no context is in use now" if was_used else ""))


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
        raise click.BadParameter(
            f"{found!r} has no host; expected a URL such as https://queue.example", param_hint="--url"
        )
    if has_secret:
        raise click.BadParameter(
            "remove the user name and password from the URL: the API key identifies you", param_hint="--url"
        )
    return found


def _checked_command(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise click.BadParameter(f"cannot parse the command {command!r}: {error}", param_hint="--key-command") from None
    if not words:
        raise click.BadParameter("the command is empty: give a program that prints the key", param_hint="--key-command")
    return command


def _read_key() -> str:
    if sys.stdin.isatty():
        key = str(click.prompt("API key", hide_input=True, err=True))
    else:
        key = sys.stdin.readline()
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise click.BadParameter(
            "stdin has no valid key: a key is one word of letters, digits and punctuation", param_hint="--key-stdin"
        )
    return key


def _absolute(file: Path | None) -> str | None:
    return None if file is None else str(file.absolute())
