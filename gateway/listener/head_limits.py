"""Checks a request's head before its caller is authenticated. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gateway.limits import HEADERS_BYTES_MAX, HEADERS_MAX

Reason = Literal["malformed", "size", "host", "upgrade", "late"]

REASONS: Final[tuple[Reason, ...]] = ("malformed", "size", "host", "upgrade", "late")
"""What is wrong with a head; `late`: it did not arrive in time."""


@dataclass(frozen=True, slots=True)
class Fault:
    reason: Reason
    detail: str
    """The message for the client."""


MALFORMED: Final = Fault("malformed", "malformed request: expected HTTP/1.1")
TOO_LARGE: Final = Fault("size", f"the request head exceeds {HEADERS_BYTES_MAX} bytes or {HEADERS_MAX} headers")
NO_HOST: Final = Fault("host", "the Host header is missing")
TWO_HOSTS: Final = Fault("host", "the request has more than one Host header")
BODY_BEHIND_UPGRADE: Final = Fault(
    "upgrade", "a WebSocket upgrade has no body: remove Content-Length and Transfer-Encoding"
)


def fault_of(headers: Sequence[tuple[bytes, bytes]], version: str, *, is_upgrade: bool) -> Fault | None:
    """Why a head is refused; None accepts it. Names are in lower case, `version` as in `1.1`.

    Source: RFC 9112, section 3.2 (Host), and RFC 6455, section 4.1 (the handshake).
    """
    names = [name for name, _ in headers]
    hosts = names.count(b"host")
    if hosts != 1:
        if hosts:
            return TWO_HOSTS
        if version != "1.0":
            return NO_HOST
    if is_upgrade and announces_body(headers):
        return BODY_BEHIND_UPGRADE
    return None


def announces_body(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a body follows the head."""
    return any(frames_body(name, value) for name, value in headers)


def frames_body(name: bytes, value: bytes) -> bool:
    """Whether this header determines where a body ends."""
    return name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
