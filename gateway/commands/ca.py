"""`pushq ca`: a certificate authority for development and for connections between processes, and its certificates."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.commands.base import group, json_option
from gateway.commands.exits import Failure
from gateway.commands.figures import WholeRange
from gateway.commands.output import put_json, tell

_FOLDER = click.Path(file_okay=False, path_type=Path)
_ONLY_FOR = "For development and node-to-node TLS only: browsers and other machines do not trust this authority."


@group("ca")
def ca() -> None:
    """Run your own certificate authority.

    Use it for development and for TLS between nodes. Public endpoints need a certificate from an authority that
    browsers trust.
    """


@ca.command("create")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@json_option
def create_ca(folder: Path, as_json: bool) -> None:
    """Create an authority in DIR: ca.crt to distribute, ca.key to keep secret."""
    from gateway.dev_ca import CaError, create

    try:
        made = create(folder)
    except (CaError, OSError) as error:
        raise Failure(str(error)) from error
    if as_json:
        put_json({"certificate": str(made.certificate), "key": str(made.key)})
        return
    tell(f"created {made.certificate} and {made.key}")
    tell(_ONLY_FOR)


@ca.command("issue")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--days", type=WholeRange(1, 90), default=30, show_default=True, help="How long the certificate is valid, in days."
)
@click.option("--out", metavar="DIR", type=_FOLDER, help="Output folder.  [default: the authority's folder]")
@json_option
def issue_certificate(folder: Path, names: tuple[str, ...], days: int, out: Path | None, as_json: bool) -> None:
    """Issue a certificate for host names and addresses, signed by the authority in DIR.

    It works for both servers and clients. Files are named after the first NAME and overwrite existing ones; a server
    that watches them reloads automatically.
    """
    from gateway.dev_ca import CaError, issue

    try:
        made = issue(folder, names, days=days, out=out)
    except (CaError, OSError) as error:
        raise Failure(str(error)) from error
    if as_json:
        put_json({"certificate": str(made.certificate), "key": str(made.key), "names": list(names), "days": days})
        return
    tell(f"created {made.certificate} and {made.key}, valid for {days} days")
    tell(_ONLY_FOR)
