"""When the client replaces its token."""

from __future__ import annotations

import pytest

from push.client.config import Limits
from push.client.core.credential import refresh_in_s
from tests.support.issuers import raw_token

NOW_S = 1_700_000_000.0


def token(**claims: object) -> str:
    return raw_token({"alg": "ES256"}, claims, b"signature")


@pytest.mark.parametrize(
    ("lives_s", "wait_s"), [(3600, 3540), (600, 540), (121, 61), (120, 60), (60, 30), (10, 5), (0, 0), (-100, 0)]
)
def test_a_token_is_replaced_a_minute_before_it_ends_or_at_half_its_life(lives_s: float, wait_s: float) -> None:
    assert refresh_in_s(token(exp=NOW_S + lives_s), NOW_S, Limits()) == pytest.approx(wait_s)


@pytest.mark.parametrize(
    "lasting",
    [None, "", "pushq_0123_secret", token(sub="alice"), "a.b.c", "..", token(exp="soon"), token(exp=None), "a.é.c"],
)
def test_what_has_no_end_that_can_be_read_is_not_replaced(lasting: str | None) -> None:
    assert refresh_in_s(lasting, NOW_S, Limits()) is None
