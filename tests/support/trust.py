"""Whom the clients of tests trust where a test does not say: one authority that signs nothing.

A client reads all authorities of the machine when it is made, also one that never speaks TLS: forty milliseconds of a
processor for each, of which tests and the servers that they start make thousands. Nobody out there is asked by tests.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import httpcore2

AUTHORITY = Path(__file__).resolve().parents[1] / "data" / "authority.pem"


def trust_nobody() -> None:
    """From now on, for this process and those that it starts; a client that ignores the environment reads the
    machine's authorities once for all."""
    os.environ["SSL_CERT_FILE"] = str(AUTHORITY)
    os.environ.pop("SSL_CERT_DIR", None)
    httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)
