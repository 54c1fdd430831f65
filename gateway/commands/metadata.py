"""`pushq metadata`: starts the metadata service, which stores definitions, keys and tenants for other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import click

from gateway.commands.base import command
from gateway.commands.exits import Exit, Failure
from gateway.commands.settings import load

Form = Literal["replicated", "sharded", "ring"]
FORMS: Final = ("replicated", "sharded", "ring")


@command("metadata")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path("./pushq-metadata"),
    show_default=True,
    help="The data folder.",
)
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8081", show_default=True, help="Listen address.")
@click.option("--tls-cert", metavar="FILE", default="", envvar="PUSHQ_METADATA__TLS_CERT", help="TLS certificate file.")
@click.option(
    "--tls-key",
    metavar="FILE",
    default="",
    envvar="PUSHQ_METADATA__TLS_KEY",
    help="Private key file of the certificate.",
)
@click.option(
    "--tls-ca",
    metavar="FILE",
    default="",
    envvar="PUSHQ_METADATA__TLS_CA",
    help="CA file that client certificates must be signed by.",
)
@click.option("--etcd", metavar="URL", multiple=True, help="etcd endpoint that stores the records; repeatable.")
@click.option(
    "--form",
    type=click.Choice(FORMS),
    default="replicated",
    show_default=True,
    envvar="PUSHQ_METADATA__FORM",
    help="With --etcd: each host holds everything, holds its arcs of the ring, or asks the host that holds a record.",
)
@click.option("--host", metavar="NAME", default="", help="With --etcd: this host's name, unique among the hosts.")
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    default="",
    help="With --etcd: the address other hosts use, if not the listen address.",
)
@click.option(
    "--zone",
    metavar="NAME",
    default="",
    envvar="PUSHQ_NODE__ZONE",
    help="With --etcd: this host's zone; servers in the same zone prefer it.",
)
@click.option(
    "--secret-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="With --etcd: file with the secret that all hosts share.  [default: DIR/metadata.secret]",
)
@click.option("--etcd-tls-ca", metavar="FILE", default="", help="CA file for an https etcd.")
@click.option("--etcd-tls-cert", metavar="FILE", default="", help="Client certificate for etcd.")
@click.option("--etcd-tls-key", metavar="FILE", default="", help="Private key file of that certificate.")
@click.option("--etcd-user", metavar="NAME", default="", help="etcd user name.")
@click.option("--etcd-password-file", metavar="FILE", default="", help="File with the etcd password.")
def metadata(
    data: Path,
    listen: str,
    tls_cert: str,
    tls_key: str,
    tls_ca: str,
    etcd: tuple[str, ...],
    form: Form,
    host: str,
    advertise: str,
    zone: str,
    secret_file: Path | None,
    **access: str,
) -> None:
    """Start a metadata service.

    It stores queue definitions, API keys and tenants, but no messages. A server whose `metadata.url` points to it reads
    them from there, and authenticates with the secret in DIR/metadata.secret. SIGTERM or Ctrl-C stops it.

    To serve other machines it needs --tls-cert, --tls-key and --tls-ca. Clients must also show a certificate of that
    authority. Changed files are reloaded automatically, or immediately after SIGHUP.

    GET /metrics, /health and /lbz at the same address report its status without a secret or certificate. It uses the
    settings logs.* and tracing.*.

    With --etcd, the records are stored in etcd and served by any number of hosts; each needs its own name, and all
    share one secret.
    """
    from gateway.clusters.etcd_access import EtcdAccess
    from gateway.config.addresses import parse_address, wrong_service
    from gateway.roles.errors import CannotStart
    from gateway.roles.metadata import serve_metadata_role
    from gateway.roles.metadata_directory import serve_directory_role
    from gateway.roles.metadata_listener import Listening, files_of

    try:
        address = parse_address(listen)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--listen") from None
    if advertise and (wrong := wrong_service(advertise)):
        raise click.BadParameter(wrong, param_hint="--advertise")
    if any(shown := (tls_cert, tls_key, tls_ca)) and not all(shown):
        raise click.UsageError("--tls-cert, --tls-key and --tls-ca must be set together; create them with `pushq ca`")
    advertised = parse_address(advertise) if advertise else None
    listening = Listening(address, advertised, zone, files_of(tls_cert, tls_key, tls_ca))
    settings = load({}, None).settings
    known = EtcdAccess(**{name.removeprefix("etcd_"): value for name, value in access.items()})
    try:
        if etcd:
            serve_directory_role(
                data, listening, settings, endpoints=etcd, form=form, host=host, secret_file=secret_file, access=known
            )
        elif host or advertise or secret_file is not None or form != "replicated" or any(access.values()):
            raise click.UsageError("--form, --host, --advertise, --secret-file and the etcd options require --etcd")
        else:
            serve_metadata_role(data, listening, settings)
    except CannotStart as error:
        raise Failure(str(error), exit=Exit.CANNOT_START) from error
