"""Loads the certificates that a process presents, watches their files, and replaces them without closing connections.

A handshake uses the current TLS context, and open connections keep theirs. A pair that does not load is refused as a
whole, and the one before it stays.
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509

from backend_store.wire.tls import BothSides, RenewedTls, mutual_tls
from gateway.config.settings import Http
from gateway.limits import CERTIFICATE_LOOK_SECONDS, CERTIFICATE_WARN_SECONDS

log = structlog.get_logger("pushq.tls")

CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: forward secrecy and authenticated encryption only, as TLS 1.3 has by itself."""
WARN_AGAIN_SECONDS: Final = 24 * 3600.0

Stamp = tuple[tuple[int, int, int], ...]


class CertificateError(Exception):
    """The files cannot be used for TLS: which, and what is wrong with them."""


@dataclass(frozen=True, slots=True)
class Files:
    certificate: Path
    """The certificate and its intermediates, PEM."""
    key: Path
    client_ca: Path | None
    """The authority that must have signed the peer's certificate; None asks clients for none."""
    has_pages: bool = False
    """Whether clients without a certificate may connect, for the pages that the listener shows to everybody."""

    @property
    def all(self) -> tuple[Path, ...]:
        return (self.certificate, self.key, *([self.client_ca] if self.client_ca is not None else []))


@dataclass(frozen=True, slots=True)
class Loaded:
    context: ssl.SSLContext
    expires_s: float
    """When the certificate expires, Unix time in seconds."""


Load = Callable[[Files], Loaded]
"""Makes a context from files; raises `CertificateError`."""


class Certificates:
    """Owns the TLS context for new handshakes, made from one set of files."""

    def __init__(self, files: Files, load: Load | None = None) -> None:
        """`load`: None means `load_listener`. Raises `CertificateError`."""
        self._files = files
        self._load = load or load_listener
        self._stamp = _stamp(files)
        self._loaded = self._load(files)
        self._wake = asyncio.Event()
        self._warned_s: float | None = None
        self.reloads = 0
        self.refusals = 0
        """Changed files that could not be loaded."""
        self._why_refused = ""
        """The last error that was logged; "" if the current files were loaded."""
        self.context = RenewedTls(self._loaded.context)

    @property
    def expires_s(self) -> float:
        return self._loaded.expires_s

    def reload_soon(self) -> None:
        """Makes `watch` read the files again, changed or not, as for SIGHUP."""
        self._wake.set()

    async def watch(self) -> None:
        """Checks the files every few seconds, and warns before the certificate expires. Runs until cancelled."""
        self._warn_of_expiry()
        while True:
            try:
                async with asyncio.timeout(CERTIFICATE_LOOK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            asked = self._wake.is_set()
            self._wake.clear()
            stamp = _stamp(self._files)
            if asked or stamp != self._stamp:
                self._stamp, self._why_refused = stamp, ""
                self._reload()
            elif self._why_refused:
                self._reload()  # the cause may lie outside the files; the same error is logged once only
            self._warn_of_expiry()

    def _reload(self) -> None:
        try:
            loaded = self._load(self._files)
            if loaded.expires_s <= time.time():
                raise CertificateError(f"{self._files.certificate} has expired")
            self._loaded = loaded
        except CertificateError as error:
            if str(error) != self._why_refused:
                self._why_refused = str(error)
                self.refusals += 1
                log.error("new certificate rejected, the old one stays in use", error=str(error))
            return
        self._why_refused = ""
        self.context.give(self._loaded.context)
        self.reloads += 1
        self._warned_s = None
        log.info("certificate loaded", file=str(self._files.certificate), expires_s=int(self.expires_s))

    def _warn_of_expiry(self) -> None:
        left_s = self.expires_s - time.time()
        now_s = time.monotonic()
        if left_s > CERTIFICATE_WARN_SECONDS or (
            self._warned_s is not None and now_s - self._warned_s < WARN_AGAIN_SECONDS
        ):
            return
        self._warned_s = now_s
        log.warning(
            "the certificate expires soon", file=str(self._files.certificate), days_left=int(left_s // (24 * 3600))
        )


class OwnCertificates:
    """All certificates that one process presents, as a server and as a client. Users of the same files share one
    context."""

    def __init__(self) -> None:
        self._each: dict[tuple[Files, Load], Certificates] = {}
        self._more: list[Certificates] = []

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def _all(self) -> list[Certificates]:
        return [*self._each.values(), *self._more]

    def take(self, certificates: Certificates) -> None:
        """Adds certificates to be watched."""
        self._more.append(certificates)

    def context(self, files: Files, load: Load) -> ssl.SSLContext:
        """The context for these files, loaded on first use. Raises `CertificateError`."""
        known = self._each.get((files, load))
        if known is None:
            known = self._each[files, load] = Certificates(files, load)
        return known.context

    def both_sides(self, files: Files) -> BothSides:
        """The contexts for serving and for dialling. Raises `CertificateError`."""
        return BothSides(self.context(files, load_server), self.context(files, load_client))

    def reload_soon(self) -> None:
        """Makes all be read again, changed or not, as for SIGHUP."""
        for each in self._all:
            each.reload_soon()

    async def watch(self) -> None:
        """See `Certificates.watch`."""
        async with asyncio.TaskGroup() as tasks:
            for each in self._all:
                tasks.create_task(each.watch(), name="certificate")


@asynccontextmanager
async def watched(own: OwnCertificates) -> AsyncIterator[None]:
    """While entered, reloads changed files, and all at once on SIGHUP. Without certificates SIGHUP keeps its effect."""
    if not own:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, own.reload_soon)
    watching = loop.create_task(own.watch(), name="certificates")
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def files_of(http: Http) -> Files | None:
    """The files that the settings name; None if the listener speaks plain HTTP."""
    if not http.tls_cert:
        return None
    return Files(Path(http.tls_cert), Path(http.tls_key), Path(http.tls_client_ca) if http.tls_client_ca else None)


def load_client(files: Files) -> Loaded:
    """The context for dialling another Pushq process, by mutual TLS. Raises `CertificateError`."""
    return _mutual(files, is_server=False)


def load_server(files: Files) -> Loaded:
    """The context for serving other Pushq processes, by mutual TLS. Raises `CertificateError`."""
    return _mutual(files, is_server=True)


def _mutual(files: Files, *, is_server: bool) -> Loaded:
    assert files.client_ca is not None, "both sides show a certificate"
    check_readable(files)
    try:
        context = mutual_tls(files.certificate, files.key, files.client_ca, is_server=is_server)
    except (OSError, ValueError) as error:
        raise CertificateError(f"{', '.join(map(str, files.all))} do not match: {_said(error)}") from None
    return Loaded(context, expires_s(files.certificate))


def load_listener(files: Files) -> Loaded:
    """The context for serving clients. Raises `CertificateError`."""
    check_readable(files)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    try:
        # An encrypted key would make OpenSSL ask the terminal for its password.
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise CertificateError(f"{files.certificate} and {files.key} do not match: {_said(error)}") from None
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL if files.has_pages else ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(files.client_ca)
        except (ssl.SSLError, OSError) as error:
            raise CertificateError(f"{files.client_ca} contains no CA certificate: {_said(error)}") from None
    return Loaded(context, expires_s(files.certificate))


def check_readable(files: Files) -> None:
    """Raises `CertificateError`."""
    for file in files.all:
        try:
            with file.open("rb"):
                pass
        except OSError as error:
            raise CertificateError(f"cannot read {file}: {error.strerror}") from None


def expires_s(file: Path) -> float:
    """When the certificate in a file expires, Unix time in seconds. Raises `CertificateError`."""
    try:
        return x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError, x509.InvalidVersion) as error:
        raise CertificateError(f"{file} contains no certificate: {error}") from None


def _said(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).replace("_", " ").lower()


def _stamp(files: Files) -> Stamp:
    """A value that changes when a file does; zeros for a missing file."""
    found = []
    for file in files.all:
        try:
            stat = os.stat(file)
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError:
            found.append((0, 0, 0))
    return tuple(found)
