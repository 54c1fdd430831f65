"""Webhooks go to public addresses only, however these are written, and to networks that the settings name."""

from __future__ import annotations

import pytest

from gateway.alerts.core.addresses import parse_networks, refused

PRIVATE = [
    "127.0.0.1", "127.8.9.10", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1",
    "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::",
    "240.0.0.1", "fec0::1", "nonsense",
]  # fmt: skip
PUBLIC = ["93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34", "64:ff9b::5db8:d822"]


@pytest.mark.parametrize("address", PRIVATE)
def test_neighbours_are_not_asked(address: str) -> None:
    assert refused(address, ()) is not None


@pytest.mark.parametrize("address", PUBLIC)
def test_the_internet_is(address: str) -> None:
    assert refused(address, ()) is None


def test_a_network_of_the_settings_is_allowed_and_no_other() -> None:
    networks = parse_networks(["10.1.0.0/16", "::1/128"])
    assert refused("10.1.2.3", networks) is None and refused("::1", networks) is None
    assert refused("::ffff:10.1.2.3", networks) is None
    assert refused("10.2.0.1", networks) is not None and refused("127.0.0.1", networks) is not None
