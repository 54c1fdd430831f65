"""`pushq manager`: starts a manager of all clusters."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.commands.base import command
from gateway.commands.exits import Exit, Failure
from gateway.commands.settings import config_file_option, load


@command("manager")
@click.option("--name", metavar="NAME", help="The manager's name in events (manager.name).  [default: HOST:PID]")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="The address for health and metrics (manager.listen).  [default: 127.0.0.1:8089]",
)
@click.option("--provisioner", metavar="COMMAND|URL", help="What provides servers (manager.provisioner).")
@config_file_option
def manager(name: str | None, listen: str | None, provisioner: str | None, config_file: Path | None) -> None:
    """Start a manager of all clusters.

    It monitors how full every cluster is, decides which may take new queues, and asks the provisioner for servers when
    one should grow or shrink. It uses a gateway's store.* settings. If several run, one is active and another takes
    over when it fails; managers store nothing themselves. SIGTERM or Ctrl-C stops it.
    """
    flags = {"manager.name": name, "manager.listen": listen, "manager.provisioner": provisioner}
    loaded = load(flags, config_file)
    from gateway.roles.errors import CannotStart
    from gateway.roles.manager import serve_manager_role

    try:
        serve_manager_role(loaded.settings)
    except CannotStart as error:
        raise Failure(str(error), exit=Exit.CANNOT_START) from error
