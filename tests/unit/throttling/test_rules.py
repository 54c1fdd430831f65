from __future__ import annotations

import pytest

from throttling.decision import Decision
from throttling.rules import PER_PRINCIPAL, Rule


def _left(remaining: int) -> Decision:
    return Decision(allowed=remaining > 0, remaining=remaining, retry_after=0, new_tat=0)


def test_default_rule_names_fifty_thousand_requests_a_second_per_principal() -> None:
    policy, state = PER_PRINCIPAL.headers(_left(49_999))
    assert policy == (b"ratelimit-policy", b'"principal";q=50000;w=1')
    assert state == (b"ratelimit", b'"principal";r=49999;t=1')


def test_headers_count_whole_seconds_up_until_everything_is_left_again() -> None:
    rule = Rule("address", quota=100, window_s=10)
    assert rule.headers(_left(100))[1] == (b"ratelimit", b'"address";r=100;t=0')
    assert rule.headers(_left(99))[1] == (b"ratelimit", b'"address";r=99;t=1')
    assert rule.headers(_left(89))[1] == (b"ratelimit", b'"address";r=89;t=2')
    assert rule.headers(_left(0))[1] == (b"ratelimit", b'"address";r=0;t=10')


def test_rule_below_one_request_a_second_is_refused() -> None:
    with pytest.raises(ValueError, match="less than one request a second"):
        Rule("slow", quota=1, window_s=2)
