"""The judge of keys finds each kind of violation, and none where there is none."""

from __future__ import annotations

import pytest

from tests.support.keyed_history import KeyedHistory, Name

A0, A1, A2, B0 = Name("a", 0), Name("a", 1), Name("a", 2), Name("b", 0)


@pytest.fixture
def history() -> KeyedHistory:
    """Three messages of one key and one of another, all confirmed."""
    history = KeyedHistory()
    sent = [history.next(key) for key in "aaab"]
    assert sent == [A0, A1, A2, B0]
    for offset, name in enumerate(sent):
        history.confirm(name, (0, offset))
    return history


def test_a_history_as_it_should_be(history: KeyedHistory) -> None:
    for name in (B0, A0, A0, A1):  # one came again
        history.deliver(name)
    history.settle([B0, A0])
    history.ack([B0])
    history.confirm(A0, (0, 0))
    assert history.violations([A1, A2]) == []
    assert history.violations([A0, A1, A2]) == []  # its ack was sent, and not answered


def test_a_message_that_overtakes_another(history: KeyedHistory) -> None:
    history.deliver(A0)
    history.deliver(A2)
    assert history.violations([A0, A1, A2, B0]) == ["a#2 was delivered before a#1"]


def test_a_message_that_is_gone(history: KeyedHistory) -> None:
    history.deliver(B0)
    assert history.violations([A0, A1, A2]) == ["b#0 was confirmed and never acked, but is missing"]


def test_a_message_that_is_there_twice(history: KeyedHistory) -> None:
    assert history.violations([A0, A1, A2, B0, A1]) == ["a#1 is stored 2 times"]


def test_a_message_that_was_confirmed_at_two_places(history: KeyedHistory) -> None:
    history.confirm(A1, (3, 1))
    assert history.violations([A0, A1, A2, B0]) == ["a#1 was confirmed at (0, 1) and at (3, 1)"]


def test_a_message_that_comes_back(history: KeyedHistory) -> None:
    history.settle([B0])
    history.ack([B0])
    history.deliver(B0)
    assert history.violations([A0, A1, A2, B0]) == [
        "b#0 was delivered after its ack was confirmed",
        "b#0 is present after its ack was confirmed",
    ]


def test_a_message_that_nobody_sent(history: KeyedHistory) -> None:
    history.deliver(Name("c", 0))
    assert history.violations([A0, A1, A2, B0, Name("b", 1)]) == [
        "c#0 was delivered, but nobody sent it",
        "b#1 is present, but nobody sent it",
    ]
