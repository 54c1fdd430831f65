from __future__ import annotations

from push.client.frames import WireMessage
from push.client.transports.outstanding import Held, Outstanding


def held(*messages: tuple[str, int]) -> Outstanding:
    outstanding = Outstanding()
    outstanding.hold(WireMessage(id=receipt, receipt=receipt, partition=partition) for receipt, partition in messages)
    return outstanding


def test_messages_without_a_receipt_are_not_held() -> None:
    outstanding = Outstanding()
    outstanding.hold([WireMessage(id="a")])
    assert len(outstanding) == 0


def test_a_receipt_ends_with_its_settling_and_only_once() -> None:
    outstanding = held(("a", 0), ("b", 0))
    assert [outstanding.settle(["a"], is_ack=True) for _ in range(2)] == [1, 0]
    assert outstanding.held() == [Held("b", False)]


def test_where_acks_commit_one_covers_what_its_partition_delivered_before() -> None:
    outstanding = held(("a0", 0), ("b1", 1), ("c0", 0), ("d0", 0))
    outstanding.commits = True
    assert outstanding.settle(["c0"], is_ack=True) == 2
    assert [held.receipt for held in outstanding.held()] == ["b1", "d0"]
    assert outstanding.settle(["a0", "forged"], is_ack=True) == 0


def test_where_acks_commit_a_nack_still_is_of_one_message() -> None:
    outstanding = held(("a", 0), ("b", 0))
    outstanding.commits = True
    assert outstanding.settle(["b"], is_ack=False) == 1
    assert outstanding.held() == [Held("a", False)]


def test_what_another_subscription_holds_does_not_begin_here() -> None:
    outstanding = held(("a", 0))
    outstanding.begin(["a", "elsewhere"])
    outstanding.hold([WireMessage(id="elsewhere", receipt="elsewhere")])
    assert outstanding.held() == [Held("a", True), Held("elsewhere", False)]
