"""`pushq ca`: a certificate authority for development and for connections between processes, and its certificates."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.commands.base import group, json_option
from gateway.commands.exits import Failure
from gateway.commands.figures import WholeRange
from gateway.commands.output import put_json, tell

_FOLDER = click.Path(file_okay=False, path_type=Path)
_ONLY_FOR = "For development and for nodes among each other: browsers and other people's machines do not know it."


@group("ca")
def ca() -> None:
    """A certificate authority of your own.

    For development, and for the certificates that nodes show each other. What the public reaches needs a certificate
    that its browsers know.
    """


@ca.command("create")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@json_option
def create_ca(folder: Path, as_json: bool) -> None:
    """Make an authority in DIR: ca.crt for who must trust it, ca.key to keep."""
    from gateway.dev_ca import CaError, create

    try:
        made = create(folder)
    except (CaError, OSError) as error:
        raise Failure(str(error)) from error
    if as_json:
        put_json({"certificate": str(made.certificate), "key": str(made.key)})
        return
    tell(f"made {made.certificate} and {made.key}")
    tell(_ONLY_FOR)


@ca.command("issue")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--days", type=WholeRange(1, 90), default=30, show_default=True, help="How long it is good.")
@click.option("--out", metavar="DIR", type=_FOLDER, help="Where to write it.  [default: the authority's folder]")
@json_option
def issue_certificate(folder: Path, names: tuple[str, ...], days: int, out: Path | None, as_json: bool) -> None:
    """Sign a certificate for host names and addresses, with the authority in DIR.

    It serves a server and a client alike. Files are called after the first NAME and replace those of that name: a
    server that watches them goes on with the new ones.
    """
    from gateway.dev_ca import CaError, issue

    try:
        made = issue(folder, names, days=days, out=out)
    except (CaError, OSError) as error:
        raise Failure(str(error)) from error
    if as_json:
        put_json({"certificate": str(made.certificate), "key": str(made.key), "names": list(names), "days": days})
        return
    tell(f"made {made.certificate} and {made.key}, good for {days} days")
    tell(_ONLY_FOR)
