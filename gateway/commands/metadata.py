"""`pushq metadata`: starts the service that keeps definitions, keys and tenants for other processes."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.commands.base import command
from gateway.commands.exits import Exit, Failure


@command("metadata")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path("./pushq-metadata"),
    show_default=True,
    help="The data folder.",
)
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8081", show_default=True, help="Where to listen.")
def metadata(data: Path, listen: str) -> None:
    """Start a metadata service.

    It keeps queue definitions, API keys and tenants, and no messages. A server whose settings name it as `metadata.url`
    takes them from there, and shows the secret in DIR/metadata.secret. SIGTERM or Ctrl-C ends it.
    """
    from gateway.metadata_role import serve_metadata_role
    from gateway.serve import CannotStart
    from gateway.settings import parse_address

    try:
        address = parse_address(listen)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from None
    try:
        serve_metadata_role(data, address)
    except CannotStart as error:
        raise Failure(str(error), exit=Exit.CANNOT_START) from error
