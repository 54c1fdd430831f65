"""Bulk leases at the owner."""

import pytest

from backend_store.core.host_lanes.lending import (
    LaneReceipt,
    LeaseExtended,
    LeaseId,
    LeaseMode,
    Lender,
    MessagesLent,
    MessagesSettled,
    Waiting,
    owned_ms,
)
from backend_store.core.host_lanes.limits import (
    BULK_LEASE_MESSAGES_MAX,
    BULK_LEASE_MS_MAX,
    BULK_LEASES_PER_LANE_MAX,
    SETTLED_LEASES_MAX,
)
from backend_store.model import Epoch

FOREVER_MS = 10**12
ONE = Epoch(1)
TWO = Epoch(2)


def _lender(mode: LeaseMode = "replicated", *, epoch: Epoch = ONE, is_strict: bool = False) -> Lender:
    return Lender(0, epoch, mode=mode, is_strict=is_strict)


def _lend(
    lender: Lender, *offsets: int, agent: str = "a", now_ms: int = 0, lease_ms: int = 1_000, keys: str = ""
) -> MessagesLent | None:
    waiting = [Waiting(offset, keys[place] if keys else None) for place, offset in enumerate(offsets)]
    return lender.lend(waiting, agent, count=1_000, lease_ms=lease_ms, now_ms=now_ms, session_ends_ms=FOREVER_MS)


def _lent(lender: Lender, *offsets: int, now_ms: int = 0, lease_ms: int = 1_000, keys: str = "") -> MessagesLent:
    record = _lend(lender, *offsets, now_ms=now_ms, lease_ms=lease_ms, keys=keys)
    assert record is not None
    return record


def _ack(lender: Lender, lease: LeaseId, offset: int, now_ms: int = 0) -> object:
    return lender.ack(LaneReceipt(lease, offset), key=None, is_there=True, now_ms=now_ms)


def test_a_loan_has_at_most_a_hundred_messages_for_ten_seconds() -> None:
    record = _lent(_lender(), *range(500), lease_ms=60_000)
    assert len(record.offsets) == BULK_LEASE_MESSAGES_MAX == 100
    assert record.lease_ms == BULK_LEASE_MS_MAX == 10_000


def test_a_lane_has_a_bounded_number_of_loans() -> None:
    lender = _lender()
    for offset in range(BULK_LEASES_PER_LANE_MAX):
        assert _lend(lender, offset) is not None
    assert _lend(lender, 10**6) is None
    assert _lend(lender, 10**6, now_ms=5_000) is not None


def test_two_agents_are_never_lent_the_same_message() -> None:
    lender = _lender()
    assert _lent(lender, 1, 2).offsets == (1, 2)
    assert _lent(lender, 1, 2, 3).offsets == (3,)


def test_a_message_is_lent_again_a_little_after_the_agent_has_stopped_counting() -> None:
    lender = _lender()
    _lent(lender, 1)
    assert lender.next_wakeup_ms() == owned_ms(1_000) == 1_025
    assert _lend(lender, 1, now_ms=1_024) is None
    assert _lend(lender, 1, now_ms=1_025) is not None


def test_the_first_ack_wins_and_is_answered_alike_when_it_comes_twice() -> None:
    lender = _lender()
    first = _lent(lender, 1)
    second = _lent(lender, 1, now_ms=2_000)
    assert _ack(lender, first.lease, 1, 2_000) == "stale-receipt"
    assert _ack(lender, second.lease, 1, 2_000) == MessagesSettled(second.lease, (1,))
    assert _ack(lender, second.lease, 1, 2_000) == "settled"
    assert _ack(lender, first.lease, 1, 2_000) == "already-acked"


def test_a_late_ack_counts_until_the_message_is_lent_to_somebody_else() -> None:
    lender = _lender()
    first = _lent(lender, 1)
    assert _ack(lender, first.lease, 1, 60_000) == MessagesSettled(first.lease, (1,))


def test_a_receipt_of_the_last_epoch_counts_until_the_message_is_lent_in_this_one() -> None:
    old = LeaseId(0, ONE, 7)
    lender = _lender(epoch=TWO)
    assert _ack(lender, old, 1) == MessagesSettled(old, (1,))
    _lent(lender, 2)
    assert _ack(lender, old, 2) == "stale-receipt"


def test_of_a_message_that_is_long_gone_it_is_only_known_that_it_is_settled() -> None:
    lender = _lender()
    for offset in range(SETTLED_LEASES_MAX + 1):
        _ack(lender, LeaseId(0, ONE, 1), offset)
    gone = LaneReceipt(LeaseId(0, ONE, 1), 0)
    assert lender.ack(gone, key=None, is_there=False, now_ms=0) == "already-acked"


def test_an_ack_that_is_not_committed_has_won_also_when_nobody_knows_whose_it_was() -> None:
    lender = _lender()
    for offset in range(SETTLED_LEASES_MAX + 1):
        _ack(lender, LeaseId(0, ONE, 1), offset)
    assert _ack(lender, LeaseId(0, ONE, 2), 0) == "already-acked"


def test_a_lease_that_is_extended_again_and_again_takes_no_more_room() -> None:
    lender = _lender()
    record = _lent(lender, 1)
    for now_ms in range(5_000):
        assert lender.extend(LaneReceipt(record.lease, 1), 10_000, now_ms) is not None
    assert len(lender._ends) < 2_000 and _lend(lender, 1, now_ms=15_000) is None


def test_of_a_key_one_message_is_lent_and_the_next_when_its_ack_is_committed() -> None:
    lender = _lender(is_strict=True)
    record = _lent(lender, 1, 2, 3, keys="kkl")
    assert record.offsets == (1, 3)
    settled = lender.ack(LaneReceipt(record.lease, 1), key="k", is_there=True, now_ms=0)
    assert isinstance(settled, MessagesSettled)
    assert _lend(lender, 2, keys="k") is None
    lender.committed(settled)
    assert _lent(lender, 2, keys="k").offsets == (2,)


def test_what_an_agent_gives_back_is_free_unless_it_was_lent_anew() -> None:
    lender = _lender()
    first = _lent(lender, 1, 2)
    lender.give_back(first.lease, [2])
    second = _lent(lender, 2)
    lender.give_back(first.lease, [1, 2])
    assert _lent(lender, 1, 2).offsets == (1,)
    assert _ack(lender, second.lease, 2) == MessagesSettled(second.lease, (2,))


def test_a_lease_is_extended_by_its_holder_alone_and_never_shortened() -> None:
    lender = _lender()
    record = _lent(lender, 1)
    receipt = LaneReceipt(record.lease, 1)
    assert lender.extend(receipt, 5_000, 500) == LeaseExtended(record.lease, 1, 5_000)
    lender.extend(receipt, 10, 600)
    assert _lend(lender, 1, now_ms=5_000) is None
    assert lender.extend(receipt, 5_000, 60_000) is None
    assert lender.extend(LaneReceipt(LeaseId(0, ONE, 99), 1), 5_000, 600) is None


def test_an_adopter_waits_all_of_a_replicated_lease_out_from_when_it_took_over() -> None:
    record = _lent(_lender(), 1)
    adopter = _lender(epoch=TWO)
    adopter.inherit([(ONE, record)], last_epoch=ONE, below=5, now_ms=50_000)
    assert _lend(adopter, 1, now_ms=51_000) is None
    assert _lend(adopter, 1, now_ms=51_025) is not None


def test_an_adopter_knows_the_keys_of_what_is_lent_once_it_is_told() -> None:
    record = _lent(_lender(is_strict=True), 1, keys="k")
    adopter = _lender(epoch=TWO, is_strict=True)
    adopter.inherit([(ONE, record)], last_epoch=ONE, below=5, now_ms=0)
    adopter.name_keys([(1, "k"), (4, "k")])
    assert _lend(adopter, 4, keys="k") is None


def test_an_adopter_answers_an_ack_of_the_last_epoch_that_had_won_alike() -> None:
    settled = MessagesSettled(LeaseId(0, ONE, 1), (1,))
    adopter = _lender(epoch=TWO)
    adopter.inherit([(ONE, settled)], last_epoch=ONE, below=5, now_ms=0)
    assert _ack(adopter, settled.lease, 1) == "settled"
    assert _ack(adopter, LeaseId(0, ONE, 2), 1) == "already-acked"


def test_an_adopter_with_memory_leases_lends_nothing_that_it_inherits_for_as_long_as_a_loan_may_last() -> None:
    adopter = _lender("memory", epoch=TWO)
    adopter.inherit([], last_epoch=ONE, below=5, now_ms=0)
    assert _lent(adopter, 4, 5).offsets == (5,)
    assert adopter.next_wakeup_ms() is not None
    assert _lend(adopter, 4, now_ms=owned_ms(BULK_LEASE_MS_MAX) - 1) is None
    assert _lend(adopter, 4, now_ms=owned_ms(BULK_LEASE_MS_MAX)) is not None


def test_the_first_owner_of_a_lane_waits_for_nothing() -> None:
    lender = _lender("memory")
    lender.inherit([], last_epoch=Epoch(0), below=5, now_ms=0)
    assert _lend(lender, 4) is not None


@pytest.mark.parametrize("mode", ["memory", "replicated"])
def test_a_handover_takes_along_what_is_lent_and_the_new_owner_lends_the_rest_at_once(mode: LeaseMode) -> None:
    owner = _lender(mode)
    _lent(owner, 1)
    record = owner.hand_over(400)
    assert _lend(owner, 2, now_ms=400) is None
    after = _lender(mode, epoch=TWO)
    after.inherit([(ONE, record)], last_epoch=ONE, below=5, now_ms=90_000)
    assert _lent(after, 1, 2, now_ms=90_000).offsets == (2,)
    assert _lend(after, 1, now_ms=90_000 + owned_ms(625)) is not None


def test_nothing_is_extended_after_a_handover_was_written() -> None:
    owner = _lender()
    record = _lent(owner, 1)
    owner.hand_over(400)
    assert owner.extend(LaneReceipt(record.lease, 1), 5_000, 400) is None


def test_a_handover_of_an_earlier_owner_says_nothing_of_what_the_last_one_lent() -> None:
    handover = _lender("memory").hand_over(0)
    adopter = _lender("memory", epoch=Epoch(3))
    adopter.inherit([(ONE, handover)], last_epoch=TWO, below=5, now_ms=0)
    assert _lend(adopter, 4, now_ms=1_000) is None


def test_from_memory_nothing_is_lent_when_the_session_is_over() -> None:
    for mode, is_lent in [("memory", False), ("replicated", True)]:
        lender = _lender(mode)  # type: ignore[arg-type]
        record = lender.lend([Waiting(1, None)], "a", count=1, lease_ms=10, now_ms=5, session_ends_ms=5)
        assert (record is not None) == is_lent
