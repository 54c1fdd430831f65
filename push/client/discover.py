"""Finds the server's URL and the key if the caller names none: in the environment, then in the data folder."""

from __future__ import annotations

import inspect
import os
import re
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from push.client.config import DEFAULT_KEY_FILE, DEFAULT_URL
from push.client.errors import Problem, Unauthenticated

Key = str | Callable[[], str | None] | Callable[[], Awaitable[str | None]] | None
"""An API key or JWT, or a function that returns one: it is called again for every connection."""


_OF_A_TRACEBACK = re.compile(r"^\[(?:Errno -?\d+|SSL(?:: \w+)?)\] | \(_ssl\.c:\d+\)$")


def find_url(url: str | None = None) -> str:
    """The server's base URL without a trailing slash: the argument, else `PUSHQ_URL`, else the local default."""
    found = (url or os.environ.get("PUSHQ_URL") or DEFAULT_URL).rstrip("/")
    if not found.startswith(("http://", "https://", "ws://", "wss://")):
        raise ValueError(f"the server's URL must start with http:// or https://, not {found!r}")
    return found.replace("ws", "http", 1) if found.startswith("ws") else found


def without_secrets(url: str) -> str:
    """A URL for an error message: without the user name and the password that it may have before its host."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def redirected(url: str, location: str | None, otherwise: str) -> str:
    """The error text for an answer that is not Pushq's, with the target if it is a redirect."""
    if not location:
        return f"{without_secrets(url)} {otherwise}"
    goal = without_secrets(urljoin(url, location)).partition("?")[0]
    return (
        f"{without_secrets(url)} redirects to {goal:.200}, which the client does not follow: use the server's own URL"
    )


def find_key(*, data: Path | None = None) -> str | None:
    """The key from `PUSHQ_KEY`, else the first line of `admin.key` in the data folder; None if there is neither."""
    if key := os.environ.get("PUSHQ_KEY"):
        return key.strip()
    file = Path(DEFAULT_KEY_FILE) if data is None else data / "admin.key"
    return file.read_text().split("\n", 1)[0].strip() if file.is_file() else None


def find_tls(tls: ssl.SSLContext | None = None, *, ca_file: Path | None = None) -> ssl.SSLContext | None:
    """The TLS context for https://: the arguments, else `PUSHQ_CA_FILE` and `PUSHQ_CERT_FILE`, else None for the
    defaults.

    `PUSHQ_CA_FILE` has the certificates of the authorities to trust, in place of the system's. `PUSHQ_CERT_FILE` has
    this client's own certificate and its key, for a server that asks for one. Raises `ValueError`.
    """
    ca, own = ca_file or os.environ.get("PUSHQ_CA_FILE"), os.environ.get("PUSHQ_CERT_FILE")
    if tls is not None or not (ca or own):
        return tls
    return tls_context(ca, own)


def tls_context(ca_file: Path | str | None = None, cert_file: Path | str | None = None) -> ssl.SSLContext:
    """A context that trusts the authorities in `ca_file`, and presents the certificate in `cert_file`.

    Raises `ValueError` with the file's name.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"{ca_file} contains no CA certificates: {_said(error)}") from None
    if cert_file is not None:
        try:
            context.load_cert_chain(cert_file, password=lambda: "")
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"{cert_file} contains no certificate with its key: {_said(error)}") from None
    return context


def _said(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)


async def resolve_key(key: Key) -> str | None:
    """The credential to use now: the value itself, what the function returns, or what `find_key` finds.

    Raises `Unauthenticated` for a credential that no request can carry.
    """
    if key is None:
        return _sendable(find_key())
    value = key() if callable(key) else key
    return _sendable(await value if inspect.isawaitable(value) else value)


def _sendable(credential: object) -> str | None:
    """Checks a credential. It stays out of the error, as the error may be logged."""
    if credential is None:
        return None
    if not isinstance(credential, str):
        raise _unusable(f"it must be a string, not {type(credential).__name__}")
    if re.fullmatch("[!-~]+", credential) is None:
        raise _unusable("it is empty, or contains a space, a line break or another invalid character")
    return credential


def _unusable(why: str) -> Unauthenticated:
    return Unauthenticated(Problem(code="unauthenticated", status=401, detail=f"the key cannot be sent: {why}"))


def reason(error: BaseException) -> str:
    """Why a connection failed, in the words of the system or of TLS, without numbers and places in a source."""
    text = str(error) or type(error).__name__
    if "[SSL: WRONG_VERSION_NUMBER]" in text:
        return "it does not speak TLS; use http://"
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and (error.errno or 0) > 0:
        return os.strerror(error.errno or 0)
    return _OF_A_TRACEBACK.sub("", text)
