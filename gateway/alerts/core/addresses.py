"""Which addresses a webhook may go to: those of the public Internet, and networks that the settings name.

A tenant's webhook must not reach into the server's own network. So a name is resolved once, each of its addresses is
checked, and the connection goes to one that was checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAT64 = ip_network("64:ff9b::/96")


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Raises `ValueError`."""
    return tuple(ip_network(text) for text in texts)


def refused(address: str, allowed: Sequence[Network]) -> str | None:
    """Why a connection may not go to the address; None where it may."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return f"{address!r} is not an IP address"
    for one in _meant(found):
        if any(one.version == network.version and one in network for network in allowed):
            continue
        is_odd = one.is_multicast or one.is_reserved or one.is_unspecified
        if not one.is_global or is_odd or (isinstance(one, IPv6Address) and one.is_site_local):
            return f"{found} is not a public address; add its network to alerts.webhook_networks to allow it"
    return None


def _meant(address: Address) -> list[Address]:
    """The address, or the IPv4 address that an IPv6 address embeds: there are several such notations."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return [inner]
    return [address]
