from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from throttling.census import Caps, Census, Full, Who

ANN = Who("acme", "ann", "10.0.0.1")


@pytest.mark.parametrize(
    ("caps", "other", "per"),
    [
        (Caps(tenant=2), Who("acme", "ben", "10.0.0.2"), "tenant"),
        (Caps(principal=2), ANN._replace(address="10.0.0.2"), "principal"),
        (Caps(address=2), Who("other", "cy", "10.0.0.1"), "address"),
    ],
)
def test_one_more_than_the_cap_is_refused_by_what_it_is_per(caps: Caps, other: Who, per: str) -> None:
    census = Census(connections=caps)
    assert census.enter("connections", ANN) is None
    assert census.enter("connections", other) is None
    assert census.enter("connections", other) == Full("connections", per, getattr(other, per), 2)
    assert census.refused["connections", per] == 1
    census.leave("connections", ANN)
    assert census.enter("connections", other) is None


def test_refused_one_counts_for_nobody() -> None:
    census = Census(connections=Caps(tenant=10, address=1))
    census.enter("connections", ANN)
    for _ in range(20):
        assert census.enter("connections", ANN) is not None
    assert census.enter("connections", ANN._replace(address="10.0.0.2")) is None


def test_quota_of_a_tenant_goes_before_the_setting() -> None:
    census = Census(connections=Caps(tenant=1))
    assert [census.enter("connections", ANN, tenant_cap=3) is None for _ in range(4)] == [True] * 3 + [False]


def test_connections_and_subscriptions_are_counted_apart() -> None:
    census = Census(connections=Caps(principal=1), subscriptions=Caps(principal=1))
    assert census.enter("connections", ANN) is None and census.enter("subscriptions", ANN) is None


def test_address_counted_first_is_let_go_with_the_rest() -> None:
    """A socket is its address' from the start, and its caller's from `connect` on."""
    census = Census(connections=Caps(1, 1, 1))
    census.enter("connections", Who(address=ANN.address))
    census.enter("connections", ANN._replace(address=""))
    census.leave("connections", ANN)
    assert len(census) == 0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy")), max_size=30))
def test_nobody_is_remembered_who_has_nothing_open(who: list[tuple[str, str]]) -> None:
    census = Census(connections=Caps(principal=2))
    inside = [w for w in (Who("t", p, a) for p, a in who) if census.enter("connections", w) is None]
    for each in inside:
        census.leave("connections", each)
    assert len(census) == 0
