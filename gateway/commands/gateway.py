"""`pushq gateway`: starts one gateway of a cluster, which keeps no messages itself."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.commands.base import command
from gateway.commands.exits import Exit, Failure
from gateway.commands.settings import config_file_option, load


@command("gateway")
@click.option("--data", metavar="DIR", help="The data folder.  [default: ./pushq-data]")
@click.option("--listen", metavar="HOST:PORT", help="Where to listen.  [default: 127.0.0.1:8080]")
@click.option("--backends", metavar="HOST:PORT", multiple=True, help="As store.backends; repeats, or with commas.")
@config_file_option
def gateway(data: str | None, listen: str | None, backends: tuple[str, ...], config_file: Path | None) -> None:
    """Start a gateway of a cluster.

    It is `pushq serve` in front of backends, which keep the messages; without backends it does not start. It has the
    settings store.* for them, and one address that answers is enough. SIGTERM or Ctrl-C drains; a second one leaves at
    once.
    """
    named = [address.strip() for part in backends for address in part.split(",") if address.strip()]
    loaded = load({"data": data, "http.listen": listen, "store.backends": named or None}, config_file)
    if not loaded.settings.store.backends:
        raise Failure(
            "store.backends names no backend, and a gateway keeps no messages itself",
            exit=Exit.CANNOT_START,
            lines=["name one with --backends or PUSHQ_STORE__BACKENDS; `pushq serve` needs none"],
        )
    from gateway.roles.errors import CannotStart
    from gateway.serve import serve as run_server

    try:
        run_server(loaded)
    except CannotStart as error:
        raise Failure(str(error), exit=Exit.CANNOT_START) from error
