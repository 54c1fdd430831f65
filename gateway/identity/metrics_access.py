"""Decides whether a request for `/metrics`, which names the queues of all tenants, needs an operator's key.

Pure rules on the settings and one request's address and headers. By default a process on the same machine needs no key,
unless it may act for another client: the server must listen on loopback only, the address and the `Host` must be of
this machine, and no proxy may have added a header.
"""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

from gateway.config.addresses import is_loopback_host
from gateway.config.settings import Settings

OPEN: Final = "pushq.open"
"""Key in the ASGI scope of requests that came over `metrics.listen`, where `/metrics` needs no key."""
_OF_PROXIES: Final = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"})


def needs_key(settings: Settings, scope: Scope) -> bool:
    """Whether the caller must present an operator's credential."""
    if OPEN in scope or settings.metrics.open_to == "everybody":
        return False
    client = scope.get("client")
    if client is None:
        return False  # a socket in the data folder: its owner, or another process of this server
    return settings.metrics.open_to == "nobody" or not _is_of_this_machine(settings, client[0], scope)


def _is_of_this_machine(settings: Settings, address: str, scope: Scope) -> bool:
    if not settings.address.is_loopback or not is_loopback_host(address):
        return False
    headers: dict[bytes, bytes] = dict(scope["headers"])
    return not _OF_PROXIES & headers.keys() and is_loopback_host(_host(headers.get(b"host", b"").decode("latin-1")))


def _host(text: str) -> str:
    """The host of a `Host` header, without port and without the brackets of an IPv6 address."""
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0].lower()
