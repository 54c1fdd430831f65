"""Parses addresses in settings: of servers, of backends, and of etcd with the namespace that one cluster uses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

ETCD: Final = "etcd://"
NAMESPACE: Final = "pushq"
"""Default namespace of a cluster's records in etcd."""
_NAMESPACE: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")


class Address(NamedTuple):
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return is_loopback_host(self.host)

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


class EtcdAt(NamedTuple):
    """Where a cluster's records are stored."""

    members: list[str]
    """URLs of the etcd members."""
    namespace: str = NAMESPACE
    """Clusters with different ones may share an etcd."""


def is_loopback_host(host: str) -> bool:
    return host in ("localhost", "::1") or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def parse_address(text: str) -> Address:
    """Parses `HOST:PORT` or `[IPV6]:PORT`. Raises `ValueError` with a message for people."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:8080")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address must be in brackets, such as [::1]:8080")
    return Address(host, int(port))


def parse_etcd(text: str, *, tls: bool = False) -> EtcdAt:
    """Parses `etcd://HOST:PORT[,HOST:PORT][/NAMESPACE]`. Raises `ValueError` with a message for people."""
    if not text.startswith(ETCD):
        raise ValueError("must be etcd://HOST:PORT[,HOST:PORT][/NAMESPACE]")
    hosts, _, namespace = text.removeprefix(ETCD).rstrip("/").partition("/")
    if namespace and _NAMESPACE.fullmatch(namespace) is None:
        raise ValueError("the namespace after the slash must be 1 to 63 characters from a-z, 0-9, dot and hyphen")
    try:
        urls = [parse_address(part).url for part in hosts.split(",")]
    except ValueError as error:
        raise ValueError(f"invalid etcd address: {error}") from None
    return EtcdAt([url.replace("http", "https", 1) for url in urls] if tls else urls, namespace or NAMESPACE)


def wrong_address(text: str) -> str:
    """What is wrong with an address; "" if it is valid."""
    try:
        parse_address(text)
    except ValueError as error:
        return str(error)
    return ""


def wrong_service(text: str) -> str:
    """What is wrong with an address that is announced to others; "" if it is valid."""
    wrong = wrong_address(text)
    return wrong or ("" if parse_address(text).port else "the port must be above 0, because gateways must know it")


def named_twice(texts: Sequence[str]) -> str:
    """A message if one of these addresses occurs twice, however its host is written; "" if none does."""
    first: dict[Address, str] = {}
    for text in texts:
        backend = one_backend(text)
        if (before := first.get(backend)) is not None:
            again = f"duplicate {text!r}" if text == before else f"{text!r} is the same as {before!r}"
            return f"{again}; remove one of them"
        first[backend] = text
    return ""


def one_backend(text: str) -> Address:
    """The address in a normal form, equal for each spelling of a host. Raises `ValueError` for an invalid one."""
    host, port = parse_address(text)
    return Address(host.lower(), port)


def wrong_etcd(text: str) -> str:
    try:
        parse_etcd(text)
    except ValueError as error:
        return str(error)
    return ""
