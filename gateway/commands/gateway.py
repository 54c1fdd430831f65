"""`pushq gateway`: starts one gateway of a cluster, which keeps no messages itself."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.commands.base import command
from gateway.commands.exits import Exit, Failure
from gateway.commands.settings import config_file_option, load


@command("gateway")
@click.option("--data", metavar="DIR", help="The data folder.  [default: ./pushq-data]")
@click.option("--listen", metavar="HOST:PORT", help="Listen address.  [default: 127.0.0.1:8080]")
@click.option(
    "--backends",
    metavar="HOST:PORT",
    multiple=True,
    help="Backend addresses (store.backends); repeatable or comma-separated.",
)
@config_file_option
def gateway(data: str | None, listen: str | None, backends: tuple[str, ...], config_file: Path | None) -> None:
    """Start a gateway of a cluster.

    It works like `pushq serve`, but the messages are stored by backends, and it does not start without any. The store.*
    settings configure them; one reachable address is enough. SIGTERM or Ctrl-C drains; a second one exits immediately.
    """
    named = [address.strip() for part in backends for address in part.split(",") if address.strip()]
    loaded = load({"data": data, "http.listen": listen, "store.backends": named or None}, config_file)
    if not loaded.settings.store.backends:
        raise Failure(
            "store.backends is empty, and a gateway stores no messages itself",
            exit=Exit.CANNOT_START,
            lines=["set --backends or PUSHQ_STORE__BACKENDS; `pushq serve` needs none"],
        )
    from gateway.roles.errors import CannotStart
    from gateway.serve import serve as run_server

    try:
        run_server(loaded)
    except CannotStart as error:
        raise Failure(str(error), exit=Exit.CANNOT_START) from error
