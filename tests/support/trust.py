"""The default trust of test clients: a single authority, which signs nothing.

A client loads all of the machine's authorities when it is created, even if it never uses TLS. That takes forty
milliseconds of CPU time, and tests and their servers create thousands of clients. No test contacts an outside server.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import httpcore2

AUTHORITY = Path(__file__).resolve().parents[1] / "data" / "authority.pem"


def trust_nobody() -> None:
    """Applies to this process and those it starts from now on; clients that ignore the environment load the machine's
    authorities only once."""
    os.environ["SSL_CERT_FILE"] = str(AUTHORITY)
    os.environ.pop("SSL_CERT_DIR", None)
    httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)
