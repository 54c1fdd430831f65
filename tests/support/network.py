"""Keeps tests on this machine: connecting to any other address is refused and recorded."""

from __future__ import annotations

import ipaddress
import socket
import sys
from typing import Any

refused: list[str] = []
"""Addresses refused since the start of a test; the code under test may have swallowed the error itself."""


class OutsideConnect(Exception):
    """A test tried to connect to an address beyond this machine."""


def refuse_outside() -> None:
    """Refuses such connections for the rest of the process: an audit hook sees every connect of any library."""
    sys.addaudithook(_on_event)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "socket.connect":
        return
    connecting, address = arguments
    if connecting.family not in (socket.AF_INET, socket.AF_INET6) or is_loopback(str(address[0])):
        return
    refused.append(repr(address))
    raise OutsideConnect(f"tests may connect only to this machine, not to {address!r}")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
