"""Listen address, advertised address and TLS of a host of the metadata service."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final, NamedTuple

from gateway.config.addresses import Address
from gateway.config.backend_rules import wrong_name
from gateway.config.settings import MetadataSettings
from gateway.listener.certificates import CertificateError, Files, OwnCertificates, load_client, load_listener
from gateway.roles.errors import CannotStart

_ANY: Final = frozenset({"0.0.0.0", "::"})


class Listening(NamedTuple):
    """How one host of the metadata service is reached."""

    address: Address
    advertised: Address | None = None
    """Announced to others instead of `address`."""
    zone: str = ""
    files: Files | None = None
    """None: without TLS."""

    def url(self, port: int) -> str:
        """The URL announced to others; `port`: the one it actually listens on."""
        address = self.advertised or self.address._replace(port=port)
        return address.url.replace("http", "ws" if self.files is None else "wss", 1)


def files_of(certificate: str, key: str, authority: str) -> Files | None:
    return Files(Path(certificate), Path(key), Path(authority), has_pages=True) if certificate else None


def check_listening(listening: Listening, *, is_told: bool) -> None:
    """Raises `CannotStart` if these settings do not work. `is_told`: the address is announced to others."""
    address, files = listening.address, listening.files
    if files is None and not address.is_loopback:
        raise CannotStart(
            f"{address.host} is reachable from other machines, which requires --tls-cert, --tls-key and --tls-ca; "
            "create them with `pushq ca`, or listen on 127.0.0.1"
        )
    if is_told and listening.advertised is None and address.host in _ANY:
        raise CannotStart(f"other hosts cannot connect to {address.host}; add --advertise HOST:PORT")
    if wrong := wrong_name(listening.zone):
        raise CannotStart(f"--zone {listening.zone!r}: {wrong}")


def wrong_files(metadata: MetadataSettings) -> tuple[str, str] | None:
    """The setting that conflicts with others, and a message; None if there is none."""
    files = {"tls_cert": metadata.tls_cert, "tls_key": metadata.tls_key, "tls_ca": metadata.tls_ca}
    given = [f"metadata.{name}" for name, file in files.items() if file]
    if 0 < len(given) < len(files):
        detail = (
            "metadata.tls_cert, metadata.tls_key and metadata.tls_ca must be set together; create them with `pushq ca`"
        )
        return given[0], detail
    if "wss:" in metadata.url and not given:
        return "metadata.url", (
            "a wss:// metadata service requires a client certificate: set metadata.tls_cert, metadata.tls_key and "
            "metadata.tls_ca; create them with `pushq ca`"
        )
    return None


def tls_of_client(files: Files | None, own: OwnCertificates) -> ssl.SSLContext | None:
    """The TLS context of the service's clients; None without TLS. Raises `CannotStart`."""
    try:
        return None if files is None else own.context(files, load_client)
    except CertificateError as error:
        raise CannotStart(f"cannot use TLS with the metadata service: {error}") from None


def tls_of_server(files: Files | None, own: OwnCertificates) -> ssl.SSLContext | None:
    """The TLS context of the service; None without TLS. Raises `CannotStart`."""
    try:
        return None if files is None else own.context(files, load_listener)
    except CertificateError as error:
        raise CannotStart(str(error)) from None
