"""`pushq backend`: starts one backend of a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.commands.base import command
from gateway.commands.exits import Exit, Failure
from gateway.commands.settings import config_file_option, load


@command("backend")
@click.option("--data", metavar="DIR", help="The data folder.  [default: ./pushq-data]")
@click.option("--name", metavar="NAME", help="The node's name in the cluster (node.name).")
@click.option("--zone", metavar="ZONE", help="The node's zone (node.zone).")
@click.option("--coordinator", metavar="URL", help="`embedded` or etcd://HOST:PORT (cluster.coordinator).")
@click.option(
    "--listen", metavar="HOST:PORT", help="The address for other backends (node.listen).  [default: 127.0.0.1:8090]"
)
@click.option(
    "--service", metavar="HOST:PORT", help="The address for gateways (node.service).  [default: 127.0.0.1:8092]"
)
@click.option(
    "--http", metavar="HOST:PORT", help="The address for health checks (node.http).  [default: 127.0.0.1:8091]"
)
@config_file_option
def backend(
    data: str | None,
    name: str | None,
    zone: str | None,
    coordinator: str | None,
    listen: str | None,
    service: str | None,
    http: str | None,
    config_file: Path | None,
) -> None:
    """Start a backend of a cluster.

    Backends store replicated shards and use etcd to elect a leader for each one. Gateways list the node.service
    addresses of backends in store.backends. SIGTERM or Ctrl-C hands over leadership and stops the backend.
    """
    flags = {
        "data": data,
        "node.name": name,
        "node.zone": zone,
        "cluster.coordinator": coordinator,
        "node.listen": listen,
        "node.service": service,
        "node.http": http,
    }
    loaded = load(flags, config_file)
    from gateway.roles.backend import serve_backend_role
    from gateway.roles.errors import CannotStart

    try:
        serve_backend_role(loaded.settings)
    except CannotStart as error:
        raise Failure(str(error), exit=Exit.CANNOT_START) from error
