"""Keeps tests on this machine: a connect to any other address is refused and remembered."""

from __future__ import annotations

import ipaddress
import socket
import sys
from typing import Any

refused: list[str] = []
"""Addresses that were refused since a test began; code under test may have swallowed the error itself."""


class OutsideConnect(Exception):
    """A test reached for an address beyond this machine."""


def refuse_outside() -> None:
    """From now on, for the whole life of the process: an audit hook sees every connect, whichever library makes it."""
    sys.addaudithook(_on_event)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "socket.connect":
        return
    connecting, address = arguments
    if connecting.family not in (socket.AF_INET, socket.AF_INET6) or is_loopback(str(address[0])):
        return
    refused.append(repr(address))
    raise OutsideConnect(f"a test may connect to this machine only, not to {address!r}")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
