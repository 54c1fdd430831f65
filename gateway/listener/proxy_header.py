"""Parses the PROXY header, versions 1 and 2, that a load balancer writes before a client's bytes. No I/O.

Source: https://www.haproxy.org/download/2.6/doc/proxy-protocol.txt
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.limits import PROXY_HEADER_BYTES_MAX

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
"""First bytes of a version 2 header. No HTTP request begins with them."""
WORD: Final = b"PROXY "
"""First bytes of a version 1 header."""
LINE_BYTES_MAX: Final = 107
"""Size of a version 1 header, line end included."""

_FIXED: Final = struct.Struct(">12sBBH")
_TCP4: Final = struct.Struct(">4s4sHH")
_TCP6: Final = struct.Struct(">16s16sHH")
_LOCAL, _PROXY = 0, 1
_STREAM_OF_IPV4, _STREAM_OF_IPV6 = 0x11, 0x21

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ProxyRefused(Exception):
    """The bytes are not a header that is accepted; the message says why."""


class Client(NamedTuple):
    """The client whose connection the proxy forwards, in the form of an ASGI scope's `client`."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Header:
    size: int
    """Bytes of the header; the client's own bytes follow."""
    client: Client | None
    """None if the proxy connects for itself, as for a health check."""


def read_header(data: bytes) -> Header | None:
    """The header at the beginning of `data`; None while it is incomplete. Raises `ProxyRefused`."""
    if data[: len(SIGNATURE)] == SIGNATURE[: len(data)]:
        return _read_binary(data)
    if data[: len(WORD)] == WORD[: len(data)]:
        return _read_line(data)
    raise ProxyRefused("no PROXY header at the start of the connection")


def looks_like_header(data: bytes) -> bool:
    """Whether a connection begins as only a PROXY header does."""
    return data.startswith((SIGNATURE, WORD))


def _read_binary(data: bytes) -> Header | None:
    if len(data) < _FIXED.size:
        return None
    _, version_and_command, kind, length = _FIXED.unpack_from(data)
    if version_and_command >> 4 != 2:
        raise ProxyRefused(f"unsupported binary header version {version_and_command >> 4}; expected 2")
    command = version_and_command & 0xF
    if command not in (_LOCAL, _PROXY):
        raise ProxyRefused(f"unknown command {command}")
    size = _FIXED.size + length
    if size > PROXY_HEADER_BYTES_MAX:
        raise ProxyRefused(f"the header has {size} bytes; the maximum is {PROXY_HEADER_BYTES_MAX}")
    if len(data) < size:
        return None
    # Extensions (TLV) follow the addresses; none of them changes who the client is.
    return Header(size, _client(kind, data[_FIXED.size : size]) if command == _PROXY else None)


def _client(kind: int, addresses: bytes) -> Client | None:
    if kind == 0:
        return None  # the proxy does not know either
    shape = {_STREAM_OF_IPV4: _TCP4, _STREAM_OF_IPV6: _TCP6}.get(kind)
    if shape is None:
        raise ProxyRefused(f"unsupported address type {kind:#04x}; use TCP over IPv4 or IPv6")
    if len(addresses) < shape.size:
        raise ProxyRefused("the header is too short for its addresses")
    source, _, port, _ = shape.unpack_from(addresses)
    return Client(_plain(ipaddress.ip_address(source)), port)


def _read_line(data: bytes) -> Header | None:
    end = data.find(b"\r\n", 0, LINE_BYTES_MAX)
    if end < 0:
        if len(data) >= LINE_BYTES_MAX:
            raise ProxyRefused(f"the header line does not end within {LINE_BYTES_MAX} bytes")
        return None
    try:
        words = data[:end].decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise ProxyRefused("the header line is not ASCII") from None
    if words[1] == "UNKNOWN":
        return Header(end + 2, None)
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise ProxyRefused("the header line is not PROXY TCP4|TCP6 SOURCE TARGET PORT PORT")
    version = 4 if words[1] == "TCP4" else 6
    source, _ = (_address(word, version) for word in words[2:4])
    port, _ = (_port(word) for word in words[4:])
    return Header(end + 2, Client(_plain(source), port))


def _address(word: str, version: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        address = ipaddress.ip_address(word)
    except ValueError:
        raise ProxyRefused(f"{word[:45]!r} is not an IP address") from None
    if address.version != version or getattr(address, "scope_id", None):
        raise ProxyRefused(f"{word[:45]!r} is not a valid IPv{version} address")
    return address


def _port(word: str) -> int:
    if not (word.isascii() and word.isdigit()) or len(word) > 5 or int(word) > 65535:
        raise ProxyRefused(f"{word[:10]!r} is not a port")
    return int(word)


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """The address as text; an IPv4 address mapped to IPv6 is written as IPv4, so that a client has one name."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parses addresses and CIDR blocks. Raises `ValueError` with a message for people."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ValueError(f"{text!r} is not an address or network such as 10.0.0.0/24: {error}") from None
    return tuple(found)


def is_within(address: str, trusted: Iterable[Network]) -> bool:
    """Whether an address belongs to one of the networks."""
    try:
        host = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    return any(host in network for network in trusted)
