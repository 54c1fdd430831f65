"""TLS between processes of Pushq: both sides show a certificate, and one authority signed them all."""

from __future__ import annotations

import ssl
from pathlib import Path


def mutual_tls(certificate: Path, key: Path, authority: Path, *, is_server: bool) -> ssl.SSLContext:
    """TLS where both sides show a certificate of one authority. Raises `OSError` (`ssl.SSLError` among them)."""
    purpose = ssl.Purpose.CLIENT_AUTH if is_server else ssl.Purpose.SERVER_AUTH
    context = ssl.create_default_context(purpose, cafile=str(authority))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    return context
