"""Access to etcd: without TLS on one machine, else by TLS with a certificate or a password."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from backend_store.cluster.etcd.driver import EtcdConfig
from gateway.config.addresses import EtcdAt, is_loopback_host
from gateway.config.settings import ClusterSettings
from gateway.listener.certificates import CertificateError, Files, Loaded, OwnCertificates, check_readable, expires_s
from gateway.roles.errors import CannotStart


class EtcdAccess(NamedTuple):
    """The files and the user name for etcd; each may be empty."""

    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    user: str = ""
    password_file: str = ""


def access_of(cluster: ClusterSettings) -> EtcdAccess:
    return EtcdAccess(
        cluster.etcd_tls_ca,
        cluster.etcd_tls_cert,
        cluster.etcd_tls_key,
        cluster.etcd_user,
        cluster.etcd_password_file,
    )


def wrong_access(endpoints: Sequence[str], access: EtcdAccess, name_of: Callable[[str], str]) -> tuple[str, str] | None:
    """The field that is wrong, "" for the addresses, and a message; None if there is none.

    `name_of`: the name of a field as the operator sets it.
    """
    for one, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert"), ("user", "password_file")):
        if getattr(access, one) and not getattr(access, other):
            return other, f"{name_of(other)} is missing: {name_of(one)} requires it"
    if access.password_file and not access.user:
        return "user", f"{name_of('user')} is missing: {name_of('password_file')} requires it"
    if access.tls_cert and not access.tls_ca:
        return "tls_ca", f"{name_of('tls_ca')} is missing: without it, the connection to etcd is not encrypted"
    for url in endpoints:
        if url.startswith("http://") and not is_loopback_host(urlsplit(url).hostname or ""):
            return "", (
                f"the connection to etcd at {url} is not encrypted, so others could change its records and cause "
                f"message loss; set {name_of('tls_ca')} to the CA of its certificate"
            )
    return None


def etcd_config(at: EtcdAt, access: EtcdAccess, own: OwnCertificates) -> EtcdConfig:
    """The config of the etcd client; reads the files. Raises `CannotStart`."""
    password = ""
    if access.password_file:
        try:
            password = Path(access.password_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CannotStart(f"cannot read the etcd password: {error}") from None
        if not password:
            raise CannotStart(f"the etcd password in {access.password_file} is empty")
    namespace = f"{at.namespace}/".encode()
    return EtcdConfig(at.members, tls=_context(access, own), user=access.user, password=password, namespace=namespace)


def _context(access: EtcdAccess, own: OwnCertificates) -> ssl.SSLContext | None:
    if not access.tls_ca:
        return None
    try:
        if not access.tls_cert:
            return ssl.create_default_context(cafile=access.tls_ca)
        return own.context(Files(Path(access.tls_cert), Path(access.tls_key), Path(access.tls_ca)), _load)
    except (OSError, CertificateError) as error:
        files = ", ".join(file for file in (access.tls_ca, access.tls_cert, access.tls_key) if file)
        raise CannotStart(f"cannot use the etcd certificates ({files}): {error}") from None


def _load(files: Files) -> Loaded:
    check_readable(files)
    try:
        context = ssl.create_default_context(cafile=files.client_ca)
        # An encrypted key would make OpenSSL ask the terminal for its password.
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise CertificateError(str(error)) from None
    return Loaded(context, expires_s(files.certificate))
