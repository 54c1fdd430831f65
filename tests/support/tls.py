"""Certificates for tests: an authority, and servers and clients that trust it."""

from __future__ import annotations

import ssl
from pathlib import Path

from gateway.dev_ca import CA_CERTIFICATE, Pair, create, issue


class Authority:
    """An authority in a folder, which issues certificates for this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        create(folder)

    @property
    def certificate(self) -> Path:
        return self.folder / CA_CERTIFICATE

    def issue(self, name: str = "localhost", *, days: int = 30) -> Pair:
        return issue(self.folder, [name, "localhost", "127.0.0.1", "::1"], days=days)

    def context(self, own: Pair | None = None) -> ssl.SSLContext:
        """The context of a client that trusts only this authority."""
        context = ssl.create_default_context(cafile=self.certificate)
        if own is not None:
            context.load_cert_chain(own.certificate, own.key)
        return context


def settings(pair: Pair, *, client_ca: Path | None = None) -> dict[str, str]:
    """The environment of a server with this certificate."""
    asked = {} if client_ca is None else {"PUSHQ_HTTP__TLS_CLIENT_CA": str(client_ca)}
    return {"PUSHQ_HTTP__TLS_CERT": str(pair.certificate), "PUSHQ_HTTP__TLS_KEY": str(pair.key), **asked}
