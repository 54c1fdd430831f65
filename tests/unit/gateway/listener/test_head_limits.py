"""What a request's head is refused for, before anybody is asked who sent it."""

from __future__ import annotations

import pytest

from gateway.listener.head_limits import BODY_BEHIND_UPGRADE, NO_HOST, TWO_HOSTS, Fault, fault_of

HOST = (b"host", b"a")


@pytest.mark.parametrize(
    ("headers", "version", "fault"),
    [
        ([HOST], "1.1", None),
        ([(b"host", b"")], "1.1", None),
        ([], "1.1", NO_HOST),
        ([], "1.0", None),
        ([HOST, HOST], "1.1", TWO_HOSTS),
        ([HOST, (b"host", b"b")], "1.0", TWO_HOSTS),
        ([HOST, (b"content-length", b"5")], "1.1", None),
    ],
)
def test_a_request_of_http_1_1_has_one_host(headers: list[tuple[bytes, bytes]], version: str, fault: Fault) -> None:
    assert fault_of(headers, version, is_upgrade=False) == fault


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        ((b"content-length", b"5"), BODY_BEHIND_UPGRADE),
        ((b"content-length", b"00"), BODY_BEHIND_UPGRADE),
        ((b"transfer-encoding", b"chunked"), BODY_BEHIND_UPGRADE),
        ((b"content-length", b"0"), None),
        ((b"x-length", b"5"), None),
    ],
)
def test_an_upgrade_announces_no_body(header: tuple[bytes, bytes], fault: Fault) -> None:
    assert fault_of([HOST, header], "1.1", is_upgrade=True) == fault
