from __future__ import annotations

import pytest

from throttling.config import RATE_PER_S_MAX, WINDOW_S_MAX
from throttling.rules import PER_PRINCIPAL, Rule, headers


def test_default_rule_names_fifty_thousand_requests_a_second_per_principal() -> None:
    policy, state = headers([PER_PRINCIPAL], PER_PRINCIPAL, 49_999)
    assert policy == (b"ratelimit-policy", b'"principal";q=50000;w=1')
    assert state == (b"ratelimit", b'"principal";r=49999;t=1')


@pytest.mark.parametrize(("left", "state"), [(100, "r=100;t=0"), (99, "r=99;t=1"), (89, "r=89;t=2"), (0, "r=0;t=10")])
def test_headers_count_whole_seconds_up_until_everything_is_left_again(left: int, state: str) -> None:
    assert Rule("address", quota=100, window_s=10).state(left) == f'"address";{state}'


def test_headers_list_each_policy_once_and_the_state_of_the_one_that_matters() -> None:
    daily = Rule("daily-bytes", quota=1_000_000, window_s=86_400, unit="bytes")
    policy, state = headers([PER_PRINCIPAL, daily, PER_PRINCIPAL], daily, 0)
    assert policy[1] == b'"principal";q=50000;w=1, "daily-bytes";q=1000000;qu="content-bytes";w=86400'
    assert state[1] == b'"daily-bytes";r=0;t=86400'


def test_rule_of_less_than_one_request_a_second_has_a_longer_window() -> None:
    assert Rule("slow", quota=1, window_s=60).state(0) == '"slow";r=0;t=60'


@pytest.mark.parametrize(
    ("quota", "window_s", "wrong"),
    [
        (0, 1, "quota must be .*, not 0"),
        (RATE_PER_S_MAX + 1, 1, "quota must be"),
        (1, 0, "window_s"),
        (1, WINDOW_S_MAX + 1, "window_s"),
    ],
)
def test_rule_out_of_range_is_refused_by_the_field(quota: int, window_s: int, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        Rule("r", quota, window_s)
