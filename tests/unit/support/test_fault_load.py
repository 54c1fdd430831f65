"""The judge of the fault tests finds each kind of violation, and none where there is none."""

from __future__ import annotations

import random
import time
from itertools import islice
from typing import Any

import pytest

from tests.support.faults import FAULTS, drawn
from tests.support.keyed_history import Name
from tests.support.losses import BEHIND_S, Losses
from tests.support.queue_load import QueueLoad

A0, A1, A2 = Name("a", 0), Name("a", 1), Name("a", 2)


def load(*, losses: Losses | None = None, is_plain: bool = False) -> QueueLoad:
    """Three messages of one key, all confirmed at places 0, 1 and 2."""
    load = QueueLoad("q", losses=losses, is_plain=is_plain)
    for seq, name in enumerate(load.history.next("a") for _ in range(3)):
        load.sent_at[name] = time.monotonic()
        load.confirmed(name, (0, seq))
    return load


def give(load: QueueLoad, *names: Name, came_at: float | None = None, at: int | None = None) -> None:
    for name in names:
        message: dict[str, Any] = {
            "body": list(name),
            "partition": 0,
            "attempt": 1,
            "seq": name.number if at is None else at,
        }
        load.delivered(message, time.monotonic() if came_at is None else came_at)


def ack(load: QueueLoad, *names: Name) -> None:
    load.history.settle(names)
    for name in names:
        load.settled(name)


@pytest.mark.parametrize("losses", [None, Losses()])
def test_a_history_as_it_should_be(losses: Losses | None) -> None:
    one = load(losses=losses)
    early = time.monotonic()
    give(one, A0, A0, A1)
    ack(one, A0, A1)
    give(one, A1, came_at=early)  # it had come before its ack was confirmed
    give(one, A2)
    ack(one, A2)
    assert one.broken() == [] and one.lost() == [] and one.again == 2


@pytest.mark.parametrize("is_plain", [False, True])
def test_where_something_may_be_lost_a_confirmed_message_has_one_place_until_it_is_published_again(
    is_plain: bool,
) -> None:
    one = load(losses=Losses(), is_plain=is_plain)
    give(one, A0, at=7)
    assert len(one.broken()) == 3 and "a#0" in one.broken()[0], one.broken()
    one.is_recovering = True
    give(one, A2, A1, at=8)
    assert len(one.broken()) == 1


@pytest.mark.parametrize("is_plain", [False, True])
def test_what_was_confirmed_while_a_leader_was_lost_may_be_missing_until_it_is_published_again(is_plain: bool) -> None:
    losses = Losses()
    with losses.possible():
        one = load(losses=losses, is_plain=is_plain)
        give(one, A0)
        ack(one, A0)
    give(one, A0)
    assert one.broken() == [] and one.lost() == [A1, A2] and one.acks_lost == 1
    one.is_recovering = True
    assert one.broken() == [f"{name} was confirmed but never delivered" for name in (A1, A2)]


@pytest.mark.parametrize("is_plain", [False, True])
def test_what_was_confirmed_while_nothing_was_wrong_is_there_in_either_mode(is_plain: bool) -> None:
    losses = Losses()
    with losses.possible():
        pass
    one = load(losses=losses, is_plain=is_plain)
    later = time.monotonic() + BEHIND_S
    one.confirmed_at = dict.fromkeys(one.confirmed_at, later)
    give(one, A0)
    ack(one, A0)
    one.last_acked_at[A0] = later + 1
    give(one, A0, came_at=later + 2)
    told = ["a#0 was delivered after its ack was confirmed"]
    assert one.broken() == told + [f"{name} was confirmed but never delivered" for name in (A1, A2)]


def test_what_was_confirmed_and_never_delivered_is_lost() -> None:
    one = load()
    give(one, A0, A1)
    ack(one, A0, A1)
    assert one.lost() == [A2]
    assert "a#2 was confirmed but never delivered" in one.broken()


def test_one_id_at_two_places_is_a_duplicate() -> None:
    one = load()
    give(one, A0)
    give(one, A0, at=7)
    assert "a#0 is at (0, 0), at (0, 7)" in one.broken()[0]


def test_a_delivery_after_a_confirmed_ack_is_found() -> None:
    one = load()
    give(one, A0)
    ack(one, A0)
    give(one, A0)
    assert "a#0 was delivered after its ack was confirmed" in one.broken()


def test_a_message_that_overtakes_another_is_found() -> None:
    one = load()
    give(one, A0, A2)
    assert "a#2 was delivered before a#1" in one.broken()


def test_where_something_may_be_lost_a_gap_is_none_and_a_break_of_order_is_one() -> None:
    losses = Losses()
    with losses.possible():
        one = load(losses=losses)
    give(one, A0, A2)
    assert one.lost() == [A1] and one.broken() == []
    give(one, A1)
    assert one.lost() == [] and one.broken() == ["a#1 was delivered after a#2"]


def test_the_longest_wait_counts_what_waits_still() -> None:
    one = load()
    now = time.monotonic()
    one.waits += [(now - 50, 30.0), (now - 5, 2.0)]
    assert one.longest_wait(now - 10) == 2.0
    one.asked["p", 1] = now - 20
    assert one.longest_wait(now - 10) >= 20.0


def test_a_seed_is_a_whole_order_of_faults_and_every_fault_comes() -> None:
    first, again = (list(islice(drawn(random.Random(7)), 500)) for _ in range(2))
    assert first == again and set(first) == set(FAULTS)
