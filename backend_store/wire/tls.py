"""TLS between processes of Pushq: both sides show a certificate, and one authority signed them all."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self


class RenewedTls(ssl.SSLContext):
    """Passes each handshake to the context that was given last; existing connections keep theirs."""

    def __new__(cls, given: ssl.SSLContext) -> Self:
        return super().__new__(cls, given.protocol)

    def __init__(self, given: ssl.SSLContext) -> None:
        self._given = given
        self._protocols: list[str] | None = None

    def give(self, context: ssl.SSLContext) -> None:
        if self._protocols is not None:
            context.set_alpn_protocols(self._protocols)
        self._given = context

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self._given.wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return self._given.wrap_socket(*args, **options)

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        self._protocols = list(alpn_protocols)
        self._given.set_alpn_protocols(self._protocols)


class BothSides(NamedTuple):
    """A node's TLS contexts for its peers: `server` for connections that it accepts, `client` for those that it
    dials."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def mutual_tls(certificate: Path, key: Path, authority: Path, *, is_server: bool) -> ssl.SSLContext:
    """TLS where both sides show a certificate of one authority. Raises `OSError` (including `ssl.SSLError`)."""
    purpose = ssl.Purpose.CLIENT_AUTH if is_server else ssl.Purpose.SERVER_AUTH
    context = ssl.create_default_context(purpose, cafile=str(authority))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # An encrypted key would make OpenSSL ask the terminal for its password.
    context.load_cert_chain(certificate, key, password=lambda: "")
    context.verify_mode = ssl.CERT_REQUIRED
    return context
