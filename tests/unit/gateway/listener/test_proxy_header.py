"""PROXY headers: whom a balancer speaks for, and all that is refused."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits import PROXY_HEADER_BYTES_MAX
from gateway.listener.proxy_header import (
    SIGNATURE,
    Client,
    ProxyRefused,
    is_within,
    looks_like_header,
    networks,
    read_header,
)

TCP4 = socket.inet_aton("192.0.2.7") + socket.inet_aton("10.0.0.1") + struct.pack(">HH", 51000, 443)
TCP6 = socket.inet_pton(socket.AF_INET6, "2001:db8::7") + bytes(16) + struct.pack(">HH", 51000, 443)
MAPPED = socket.inet_pton(socket.AF_INET6, "::ffff:192.0.2.7") + bytes(16) + struct.pack(">HH", 5, 443)


def binary(body: bytes, *, kind: int = 0x11, first: int = 0x21, length: int | None = None) -> bytes:
    return SIGNATURE + struct.pack(">BBH", first, kind, len(body) if length is None else length) + body


@pytest.mark.parametrize(
    ("header", "client"),
    [
        (binary(TCP4), Client("192.0.2.7", 51000)),
        (binary(TCP6, kind=0x21), Client("2001:db8::7", 51000)),
        (binary(MAPPED, kind=0x21), Client("192.0.2.7", 5)),
        (binary(TCP4 + b"\x04\x00\x03abc"), Client("192.0.2.7", 51000)),
        (binary(TCP4, first=0x20), None),
        (binary(b"", kind=0, first=0x20), None),
        (binary(b"whatever", kind=0), None),
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 51000 443\r\n", Client("192.0.2.7", 51000)),
        (b"PROXY TCP6 2001:DB8::7 ::1 51000 443\r\n", Client("2001:db8::7", 51000)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None),
    ],
)
def test_a_header_says_who_the_client_is_and_where_its_own_bytes_begin(header: bytes, client: Client | None) -> None:
    read = read_header(header + b"GET / HTTP/1.1\r\n")
    assert read is not None
    assert (read.client, read.size) == (client, len(header))
    assert [read_header(header[:cut]) for cut in range(len(header))] == [None] * len(header)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1\r\n", "no PROXY header at the start of the connection"),
        (b"\x16\x03\x01", "no PROXY header at the start of the connection"),
        (binary(TCP4, first=0x11), "version 1"),
        (binary(TCP4, first=0x2F), "unknown command 15"),
        (binary(TCP4, kind=0x12), "address type 0x12"),
        (binary(bytes(216), kind=0x31), "address type 0x31"),
        (binary(TCP4[:-1]), "too short"),
        (binary(TCP4, kind=0x21), "too short"),
        (binary(b"", length=PROXY_HEADER_BYTES_MAX), f"the maximum is {PROXY_HEADER_BYTES_MAX}"),
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 51000\r\n", "the header line is not"),
        (b"PROXY TCP9 192.0.2.7 10.0.0.1 51000 443\r\n", "the header line is not"),
        (b"PROXY TCP4  192.0.2.7 10.0.0.1 51000 443\r\n", "the header line is not"),
        (b"PROXY TCP4 192.0.2.300 10.0.0.1 51000 443\r\n", "is not an IP address"),
        (b"PROXY TCP4 192.0.2.07 10.0.0.1 51000 443\r\n", "is not an IP address"),
        (b"PROXY TCP4 2001:db8::7 ::1 51000 443\r\n", "not a valid IPv4 address"),
        (b"PROXY TCP6 fe80::1%eth0 ::1 51000 443\r\n", "not a valid IPv6 address"),
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 65536 443\r\n", "is not a port"),
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 +1 443\r\n", "is not a port"),
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 51000 \xb2\r\n", "not ASCII"),
        (b"PROXY " + b"x" * 200, "does not end within 107 bytes"),
    ],
)
def test_what_is_no_header_is_refused_with_the_reason(data: bytes, says: str) -> None:
    with pytest.raises(ProxyRefused, match=says):
        read_header(data)


@given(st.one_of(st.binary(), st.binary().map(lambda rest: SIGNATURE + rest), st.binary().map(lambda r: b"PROXY " + r)))
def test_any_bytes_are_a_header_or_incomplete_or_refused(data: bytes) -> None:
    try:
        read = read_header(data)
    except ProxyRefused:
        return
    assert read is None or read.size <= len(data)
    assert read is not None or len(data) < PROXY_HEADER_BYTES_MAX


def test_only_a_header_looks_like_one() -> None:
    assert looks_like_header(binary(TCP4)) and looks_like_header(b"PROXY TCP4")
    assert not looks_like_header(b"PROPFIND / HTTP/1.1") and not looks_like_header(b"\r\n\r\nGET /")


def test_a_network_has_its_addresses_and_no_others() -> None:
    trusted = networks(["10.0.0.0/24", "2001:db8::/64", "192.0.2.1"])
    assert all(is_within(one, trusted) for one in ("10.0.0.9", "::ffff:10.0.0.9", "2001:db8::1", "192.0.2.1"))
    assert not any(is_within(one, trusted) for one in ("10.0.1.9", "2001:db9::1", "192.0.2.2", "", "localhost"))


@pytest.mark.parametrize("text", ["10.0.0.1/24", "10.0.0", "localhost", "*", "10.0.0.0/33"])
def test_a_network_that_is_none_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address or network"):
        networks([text])
