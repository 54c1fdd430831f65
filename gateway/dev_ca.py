"""A certificate authority for development and for TLS between Pushq processes: two files, and the certificates they
sign.

It is as safe as the folder that contains it. It has no revocation, so its certificates are short-lived.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_CERTIFICATE: Final = "ca.crt"
CA_KEY: Final = "ca.key"
CA_DAYS: Final = 365
CERTIFICATE_DAYS_DEFAULT: Final = 30
CERTIFICATE_DAYS_MAX: Final = 90
CLOCK_AHEAD_MAX: Final = timedelta(minutes=5)
"""Certificates are valid from this long ago: another machine's clock may be behind."""

_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]{0,250}[A-Za-z0-9])?")


class CaError(Exception):
    """A certificate or authority cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Pair:
    certificate: Path
    key: Path


def create(folder: Path, *, now: datetime | None = None) -> Pair:
    """Makes a new authority in `folder`. Raises `CaError` if there is one."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = Pair(folder / CA_CERTIFICATE, folder / CA_KEY)
    for file in (made.certificate, made.key):
        if file.exists():
            raise CaError(f"{file} already exists; create the authority in a folder of its own")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Pushq development authority")])
    builder = (
        _builder(subject, subject, key, now or datetime.now(UTC), timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    _write(made, key, [builder.sign(key, hashes.SHA256())])
    return made


def issue(
    folder: Path,
    names: Sequence[str],
    *,
    days: int = CERTIFICATE_DAYS_DEFAULT,
    out: Path | None = None,
    now: datetime | None = None,
) -> Pair:
    """Makes a certificate for host names and addresses, valid for servers and for clients. Raises `CaError`."""
    now = now or datetime.now(UTC)
    authority, authority_key = _authority(folder)
    if not names:
        raise CaError("give at least one host name or address")
    if authority.not_valid_after_utc <= now:
        raise CaError(f"{folder / CA_CERTIFICATE} has expired; create a new authority in another folder")
    alternatives = [_alternative(name) for name in names]
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    life = min(timedelta(days=days), authority.not_valid_after_utc - now)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = (
        _builder(subject, authority.subject, key, now, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(signer, critical=False)
    )
    stem = re.sub(r"[^A-Za-z0-9.-]", "_", names[0])
    target = folder if out is None else out
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = Pair(target / f"{stem}.crt", target / f"{stem}.key")
    _write(made, key, [builder.sign(authority_key, hashes.SHA256()), authority])
    return made


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_AHEAD_MAX)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        if _HOST.fullmatch(name) is None or ".." in name:
            raise CaError(f"{name!r} is not a valid host name or address") from None
        return x509.DNSName(name.lower())


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / CA_CERTIFICATE).read_bytes())
        key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), password=None)
    except FileNotFoundError as error:
        raise CaError(f"{error.filename} does not exist; create an authority with `pushq ca create {folder}`") from None
    except (OSError, ValueError, TypeError) as error:
        raise CaError(f"cannot read the authority in {folder}: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CaError(f"{folder / CA_KEY} is not an authority key created by this command")
    return certificate, key


def _write(pair: Pair, key: ec.EllipticCurvePrivateKey, certificates: Sequence[x509.Certificate]) -> None:
    """Writes the key first, so that a process that sees the certificate finds its key."""
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain = b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates)
    for file, content in ((pair.key, secret), (pair.certificate, chain)):
        # Written under another name and renamed in one step: a server that watches the files never reads half of one.
        fresh = file.with_name(f".{file.name}.new")
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(content)
        fresh.replace(file)
