"""A host that hands out what it was lent."""

from backend_store.core.host_lanes.agent import Agent, AskId, LoanAsked, LoanGranted, UnsentReturned
from backend_store.core.host_lanes.lending import LeaseId
from backend_store.core.host_lanes.limits import ASK_AGAIN_MS, ASKS_FORGOTTEN_MAX
from backend_store.model import Epoch


def _agent() -> Agent:
    return Agent(1, lease_ms=2_000, messages_max=10)


def _grant(ask: LoanAsked, *offsets: int, number: int = 1) -> LoanGranted:
    return LoanGranted(ask.request, LeaseId(ask.lane, Epoch(1), number), tuple((o, f"m{o}") for o in offsets))


def test_a_host_hands_each_message_out_once_in_the_order_of_the_lane() -> None:
    agent = _agent()
    [ask] = agent.ask([0], 0)
    assert (ask.messages_max, ask.lease_ms) == (10, 2_000)
    assert agent.take(_grant(ask, 3, 5), 10) is None
    handed = [agent.hand_out(20) for _ in range(3)]
    assert [one.message for one in handed if one is not None] == ["m3", "m5"]


def test_a_lease_counts_from_when_it_was_asked_for() -> None:
    agent = _agent()
    [ask] = agent.ask([0], 100)
    agent.take(_grant(ask, 3), 1_900)
    handed = agent.hand_out(2_099)
    assert handed is not None and handed.until_ms == 2_100


def test_what_is_over_is_not_handed_out() -> None:
    agent = _agent()
    [ask] = agent.ask([0], 100)
    agent.take(_grant(ask, 3), 200)
    assert agent.hand_out(2_100) is None and not agent.unsent


def test_nothing_is_asked_for_while_something_is_left_or_an_answer_is_awaited() -> None:
    agent = _agent()
    [ask] = agent.ask([0], 0)
    assert agent.ask([0], 10) == []
    agent.take(_grant(ask, 3), 20)
    assert agent.ask([0, 1], 30) == []
    agent.hand_out(40)
    assert [again.lane for again in agent.ask([0, 1], 50)] == [0, 1]


def test_an_owner_with_nothing_to_lend_may_be_asked_again() -> None:
    agent = _agent()
    [ask] = agent.ask([0], 0)
    agent.nothing_granted(ask.request)
    assert len(agent.ask([0], 1)) == 1


def test_a_grant_that_nobody_waits_for_any_more_is_given_back() -> None:
    agent = _agent()
    [late] = agent.ask([0], 0)
    [ask] = agent.ask([0], ASK_AGAIN_MS)
    grant = _grant(late, 3)
    assert agent.take(grant, ASK_AGAIN_MS + 1) == UnsentReturned(grant.lease, (3,))
    assert agent.take(_grant(ask, 4, number=2), ASK_AGAIN_MS + 2) is None and len(agent.unsent) == 1


def test_a_second_copy_of_a_grant_is_not_given_back_for_its_messages_are_with_consumers() -> None:
    agent = _agent()
    [ask] = agent.ask([0], 0)
    agent.take(_grant(ask, 3), 10)
    assert agent.hand_out(20) is not None
    assert agent.take(_grant(ask, 3), 30) is None
    assert agent.hand_out(40) is None


def test_a_grant_to_the_hosts_last_life_is_not_given_back() -> None:
    [old] = _agent().ask([0], 0)
    agent = Agent(2)
    [ask] = agent.ask([0], 0)
    assert old.request == AskId(1, 1) != ask.request
    assert agent.take(_grant(old, 3), 10) is None and agent.hand_out(20) is None


def test_a_grant_that_comes_when_its_time_is_over_is_given_back() -> None:
    agent = _agent()
    [ask] = agent.ask([0], 0)
    grant = _grant(ask, 3)
    assert agent.take(grant, 2_000) == UnsentReturned(grant.lease, (3,))


def test_so_many_asks_are_remembered_and_no_more() -> None:
    agent = _agent()
    asks = [agent.ask([0], number * ASK_AGAIN_MS)[0] for number in range(ASKS_FORGOTTEN_MAX + 2)]
    assert agent.take(_grant(asks[0], 3), 0) is None
    assert agent.take(_grant(asks[1], 3), 0) is not None


def test_a_host_that_drains_gives_back_what_it_has_not_handed_out() -> None:
    agent = _agent()
    [ask] = agent.ask([0], 0)
    agent.take(_grant(ask, 3, 4, 5), 10)
    agent.hand_out(20)
    assert agent.return_unsent() == [UnsentReturned(LeaseId(0, Epoch(1), 1), (4, 5))]
    assert agent.hand_out(30) is None
