"""`pushq serve`: reads the settings and starts a server."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.commands.base import command
from gateway.commands.exits import Exit, Failure
from gateway.commands.figures import Whole
from gateway.commands.settings import config_file_option, load


@command("serve")
@click.option("--data", metavar="DIR", help="The data folder.  [default: ./pushq-data]")
@click.option("--listen", metavar="HOST:PORT", help="Listen address.  [default: 127.0.0.1:8080]")
@click.option(
    "--gateways",
    type=Whole(),
    metavar="N",
    help="Number of gateway processes in front of a storage process.  [default: 1, a single process]",
)
@click.option(
    "--dev", is_flag=True, help="Development mode: any localhost origin is allowed, and the demo page is at /demo."
)
@config_file_option
def serve(data: str | None, listen: str | None, gateways: int | None, dev: bool, config_file: Path | None) -> None:
    """Start a server.

    Everything runs in one process with one data folder; no other service is needed. With --gateways N, several
    processes serve clients from the same folder. The first start creates an admin key in DIR/admin.key. SIGTERM or
    Ctrl-C drains; a second one exits immediately.
    """
    flags = {"data": data, "http.listen": listen, "gateways": gateways, "dev": dev or None}
    loaded = load(flags, config_file)
    from gateway.roles.errors import CannotStart
    from gateway.serve import serve as run_server

    try:
        run_server(loaded)
    except CannotStart as error:
        raise Failure(str(error), exit=Exit.CANNOT_START) from error
