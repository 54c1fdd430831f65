"""`pushq manager`: starts a manager of all clusters."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.commands.base import command
from gateway.commands.exits import Exit, Failure
from gateway.commands.settings import config_file_option, load


@command("manager")
@click.option("--name", metavar="NAME", help="What events call it, as manager.name.  [default: HOST:PID]")
@click.option(
    "--listen", metavar="HOST:PORT", help="For health and metrics, as manager.listen.  [default: 127.0.0.1:8089]"
)
@click.option("--provisioner", metavar="COMMAND|URL", help="Who provides servers, as manager.provisioner.")
@config_file_option
def manager(name: str | None, listen: str | None, provisioner: str | None, config_file: Path | None) -> None:
    """Start a manager of all clusters.

    It hears how full every cluster is, says which may take new queues, and asks the provisioner for servers when one
    grows or shrinks. It has the settings store.* of a gateway. Of several one acts, and another goes on when that is
    gone; none keeps anything itself. SIGTERM or Ctrl-C ends it.
    """
    flags = {"manager.name": name, "manager.listen": listen, "manager.provisioner": provisioner}
    loaded = load(flags, config_file)
    from gateway.roles.errors import CannotStart
    from gateway.roles.manager import serve_manager_role

    try:
        serve_manager_role(loaded.settings)
    except CannotStart as error:
        raise Failure(str(error), exit=Exit.CANNOT_START) from error
