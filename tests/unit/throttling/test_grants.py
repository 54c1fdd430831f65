from __future__ import annotations

from throttling.decision import Charge
from throttling.gcra import NS_PER_S
from throttling.grants import Grants
from throttling.rules import Rule

RULE = Rule("tenant", quota=1_000)
HIT = Charge(RULE, "acme", 1)


def test_nothing_is_spent_that_was_not_granted() -> None:
    assert Grants().spend([HIT], 0) is None


def test_grant_is_spent_to_its_end_and_not_beyond() -> None:
    grants = Grants()
    grants.took(HIT, took=4, remaining=900, now_ns=0)
    assert [getattr(grants.spend([HIT], 0), "remaining", None) for _ in range(4)] == [902, 901, 900, None]


def test_hit_on_two_rules_spends_both_or_neither() -> None:
    grants = Grants()
    other = Charge(Rule("queue", quota=10), "q", 1)
    grants.took(HIT, took=3, remaining=0, now_ns=0)
    assert grants.spend([HIT, other], 0) is None
    assert [grants.spend([HIT], 0) is not None for _ in range(3)] == [True, True, False]


def test_subject_asked_for_once_takes_nothing_ahead_and_a_busy_one_does() -> None:
    grants = Grants()
    assert grants.ahead(HIT, 0) == 0
    assert grants.ahead(HIT, NS_PER_S // 10) == RULE.ahead == 50
    assert grants.ahead(HIT, 2 * NS_PER_S) == 0


def test_small_quota_takes_at_most_a_twentieth_ahead() -> None:
    assert [Rule("r", quota, window_s=60).ahead for quota in (10, 40, 1_000_000)] == [0, 0, 833]
    assert [Rule("r", quota).ahead for quota in (10, 40, 1_000_000)] == [0, 2, 50_000]


def test_refusal_holds_until_its_time_for_as_much_and_more() -> None:
    grants = Grants()
    big = HIT._replace(cost=10)
    grants.refused(big, remaining=5, wait_ns=100, now_ns=0)
    outcome = grants.spend([big], 40)
    assert outcome is not None and (outcome.allowed, outcome.retry_after_ns) == (False, 60)
    assert grants.spend([HIT], 40) is None, "less may fit"
    assert grants.spend([big], 100) is None


def test_idle_grants_go_back_once() -> None:
    grants = Grants()
    grants.took(HIT, took=11, remaining=0, now_ns=0)
    assert grants.idle(NS_PER_S // 10) == []
    assert grants.idle(NS_PER_S) == [(RULE, "acme", 10)]
    assert grants.idle(2 * NS_PER_S) == [] and grants.spend([HIT], 0) is None


def test_table_is_bounded() -> None:
    grants = Grants(grants_max=10)
    for n in range(100):
        grants.took(Charge(RULE, f"t{n}", 1), took=2, remaining=0, now_ns=0)
    assert len(grants) == 10
    assert len(grants.idle(NS_PER_S)) == 10
