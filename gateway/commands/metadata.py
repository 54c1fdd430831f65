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
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8081", show_default=True, help="Where to listen.")
@click.option("--tls-cert", metavar="FILE", default="", envvar="PUSHQ_METADATA__TLS_CERT", help="Its certificate.")
@click.option("--tls-key", metavar="FILE", default="", envvar="PUSHQ_METADATA__TLS_KEY", help="That certificate's key.")
@click.option(
    "--tls-ca",
    metavar="FILE",
    default="",
    envvar="PUSHQ_METADATA__TLS_CA",
    help="The authority of the certificates that servers and other hosts must show.",
)
@click.option("--etcd", metavar="URL", multiple=True, help="A member of etcd that keeps the records; may be repeated.")
@click.option(
    "--form",
    type=click.Choice(FORMS),
    default="replicated",
    show_default=True,
    envvar="PUSHQ_METADATA__FORM",
    help="With --etcd: every host has everything, has its arcs of the ring, or asks the host that has them.",
)
@click.option("--host", metavar="NAME", default="", help="With --etcd: the host's name, another one for each.")
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    default="",
    help="With --etcd: where others reach it, if not where it listens.",
)
@click.option(
    "--zone",
    metavar="NAME",
    default="",
    envvar="PUSHQ_NODE__ZONE",
    help="With --etcd: where it stands; servers in the same zone ask it first.",
)
@click.option(
    "--secret-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="With --etcd: the secret that all hosts share.  [default: DIR/metadata.secret]",
)
@click.option("--etcd-tls-ca", metavar="FILE", default="", help="With https: the authority of etcd's certificate.")
@click.option("--etcd-tls-cert", metavar="FILE", default="", help="The certificate that is shown to etcd.")
@click.option("--etcd-tls-key", metavar="FILE", default="", help="That certificate's key.")
@click.option("--etcd-user", metavar="NAME", default="", help="The user that etcd knows.")
@click.option("--etcd-password-file", metavar="FILE", default="", help="The file with that user's password.")
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

    It keeps queue definitions, API keys and tenants, and no messages. A server whose settings name it as `metadata.url`
    takes them from there, and shows the secret in DIR/metadata.secret. SIGTERM or Ctrl-C ends it.

    To serve other machines it needs --tls-cert, --tls-key and --tls-ca. Who asks must show a certificate of that
    authority, too. Changed files are read anew, and at once after SIGHUP.

    GET /metrics, /health and /lbz at the same address say how it is; they need neither secret nor certificate. Its
    settings are logs.* and tracing.*.

    With --etcd the records are in etcd and any number of hosts serves them; each is started with a name of its own and
    all with one secret.
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
        raise click.UsageError("--tls-cert, --tls-key and --tls-ca go together; make them with `pushq ca`")
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
            raise click.UsageError("--form, --host, --advertise, --secret-file and the options of etcd need --etcd")
        else:
            serve_metadata_role(data, listening, settings)
    except CannotStart as error:
        raise Failure(str(error), exit=Exit.CANNOT_START) from error
