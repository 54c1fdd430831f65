"""A move, step by step: what each side may do when, and what it makes of messages that are late or come twice."""

from __future__ import annotations

import msgspec
import pytest

from backend_store.core.partitions.slot_history import (
    Barrier,
    RoleTaken,
    SlotBook,
    SlotsForgotten,
    SlotsOpened,
    SlotsReleased,
    SlotsSealed,
    Tenure,
    first_book,
    may_read,
)
from backend_store.core.partitions.slot_moves import Fetch, KnownId, Page, Question, SlotKeeper, SlotState
from backend_store.core.partitions.slots import (
    UNKEYED,
    Move,
    SlotTable,
    first_table,
    moved,
    resized,
    with_opened,
    with_retired,
)

SLOT = 6
BIT = 1 << SLOT


def nothing_left(slot: int, tenure: Tenure) -> bool:
    return False


def something_left(slot: int, tenure: Tenure) -> bool:
    return True


class Queue:
    """Two partitions of a strict queue, and their table; each step is durable at once unless a test says otherwise."""

    def __init__(self, *, waits: bool = True) -> None:
        self.waits = waits
        self.table = first_table(2)
        self.keepers = [SlotKeeper(n, first_book(self.table, n), waits=waits) for n in range(2)]
        self.ends = [10, 10]

    def plan(self, table: SlotTable) -> Move:
        self.table = table
        self.tell()
        return table.moves[0]

    def tell(self) -> None:
        for keeper in self.keepers:
            keeper.heed(self.table)

    def seal(self, move: Move) -> SlotsSealed | None:
        source = self.keepers[move.source]
        record = source.seal(move, end=self.ends[move.source], now_ms=1000)
        source.committed()
        self.ends[move.source] += 10
        return record

    def page(self, move: Move) -> Page:
        tenure = self.keepers[move.source].hands_over(move)
        assert tenure is not None
        return Page(Fetch(move), tenure.sealed_at, tenure.sealed_ms, (), ())

    def open(self, move: Move) -> None:
        target = self.keepers[move.target]
        assert target.fetch() == Fetch(move)
        assert target.take(self.page(move), end=self.ends[move.target])
        target.committed()
        self.ends[move.target] += 10

    def move_to(self, target: int) -> Move:
        """Plans, seals, opens and reports; does not drain."""
        move = self.plan(moved(self.table, [SLOT], target))
        self.seal(move)
        self.open(move)
        self.plan_is_over(move)
        return move

    def plan_is_over(self, move: Move) -> None:
        self.table = with_opened(self.table, move)
        self.tell()

    def release(self, target: int, *, unsettled: bool = False) -> None:
        keeper = self.keepers[target]
        for question in keeper.questions():
            asked = something_left if unsettled else nothing_left
            keeper.release(question.version, self.keepers[question.source].drained(question, asked))
        keeper.committed()

    def states(self) -> list[SlotState]:
        return [keeper.state(SLOT) for keeper in self.keepers]


# -------------------------------------------------------------------------------------------------- publishing


def test_the_source_takes_messages_until_its_seal_and_the_target_from_its_opening_on() -> None:
    queue = Queue()
    source, target = queue.keepers
    move = queue.plan(moved(queue.table, [SLOT], 1))
    assert (source.refused(BIT, version=1), target.refused(BIT, version=1)) == (0, BIT)
    queue.seal(move)
    assert (source.refused(BIT, version=2), target.refused(BIT, version=2)) == (BIT, BIT)
    queue.open(move)
    assert (source.refused(BIT, version=2), target.refused(BIT, version=2)) == (BIT, 0)


def test_a_seal_refuses_what_is_decided_behind_it_in_the_same_commit() -> None:
    queue = Queue()
    move = queue.plan(moved(queue.table, [SLOT], 1))
    queue.keepers[0].seal(move, end=10, now_ms=0)
    assert queue.keepers[0].refused(BIT, version=1) == BIT


def test_only_the_slots_that_are_not_here_are_refused() -> None:
    keeper = Queue().keepers[0]  # it has the even ones
    assert keeper.refused(0b1111, version=1) == 0b1010
    assert keeper.refused(1 << UNKEYED, version=1) == 0


def test_a_caller_with_the_table_of_an_earlier_stay_is_refused() -> None:
    """The slot has gone and come back. What he sent before this call was refused meanwhile, and comes after it."""
    queue = Queue()
    queue.move_to(1)
    queue.release(1)
    back = queue.move_to(0)
    assert queue.keepers[0].refused(BIT, version=back.version - 1) == BIT
    assert queue.keepers[0].refused(BIT, version=back.version) == 0
    assert queue.keepers[0].refused(1 << 8, version=1) == 0


# ---------------------------------------------------------------------------------------------------- handover


def test_nothing_is_handed_over_before_the_seal_is_durable() -> None:
    """A crash would take the seal back, and two partitions would take the slot's messages."""
    queue = Queue()
    source = queue.keepers[0]
    move = queue.plan(moved(queue.table, [SLOT], 1))
    source.seal(move, end=10, now_ms=0)
    assert source.hands_over(move) is None
    source.committed()
    assert source.hands_over(move) is not None


def test_slots_open_with_the_last_page_and_not_before() -> None:
    queue = Queue()
    target = queue.keepers[1]
    move = queue.plan(moved(queue.table, [SLOT], 1))
    queue.seal(move)
    assert target.fetch() == Fetch(move) and target.state(SLOT) is SlotState.IMPORTING
    first = queue.page(move)._replace(ids=(KnownId(SLOT, b"i", 0, 3, 0),), next=b"i")
    assert target.wants(first) and target.take(first, end=10) is None
    assert target.fetch() == Fetch(move, b"i") and target.refused(BIT, version=2) == BIT
    last = first._replace(fetch=Fetch(move, b"i"), next=None)
    assert target.wants(last) and target.take(last, end=10) is not None
    assert target.fetch() is None


def test_a_page_that_was_not_asked_for_is_not_wanted() -> None:
    """One that comes twice, or from a handover that a crash broke off, would leave out what lies between."""
    queue = Queue()
    target = queue.keepers[1]
    move = queue.plan(moved(queue.table, [SLOT], 1))
    queue.seal(move)
    page = queue.page(move)
    assert not target.wants(page)
    target.fetch()
    target.take(page._replace(next=b"i"), end=10)
    assert not target.wants(page)
    assert not target.wants(page._replace(fetch=Fetch(move, b"j")))


def test_a_target_that_crashed_fetches_from_the_start() -> None:
    queue = Queue()
    target = queue.keepers[1]
    move = queue.plan(moved(queue.table, [SLOT], 1))
    queue.seal(move)
    target.fetch()
    target.take(queue.page(move)._replace(next=b"i"), end=10)
    reborn = SlotKeeper(1, target.book, waits=True)
    reborn.heed(queue.table)
    assert reborn.fetch() == Fetch(move)


def test_a_move_is_reported_when_its_opening_is_durable() -> None:
    """Reported too early, a crash would leave the slot with nobody, and the table without the move."""
    queue = Queue()
    target = queue.keepers[1]
    move = queue.plan(moved(queue.table, [SLOT], 1))
    queue.seal(move)
    target.fetch()
    target.take(queue.page(move), end=10)
    assert target.opened_moves() == []
    target.committed()
    assert target.opened_moves() == [move]


def test_a_late_fetch_seals_nothing_when_the_slot_has_come_back() -> None:
    queue = Queue()
    first = queue.move_to(1)
    queue.release(1)
    queue.move_to(0)
    assert queue.seal(first) is None
    assert queue.keepers[0].refused(BIT, version=queue.table.version) == 0


def test_a_fetch_that_comes_twice_is_answered_twice_and_sealed_once() -> None:
    queue = Queue()
    move = queue.plan(moved(queue.table, [SLOT], 1))
    assert queue.seal(move) is not None
    assert queue.seal(move) is None
    assert queue.page(move).sealed_at == 10


# ----------------------------------------------------------------------------------------------------- waiting


def test_messages_of_a_moved_slot_wait_until_the_older_ones_are_settled() -> None:
    queue = Queue()
    queue.move_to(1)
    source, target = queue.keepers
    assert queue.states() == [SlotState.SEALED, SlotState.WAITING]
    assert target.holds and target.handling(SLOT, 15) == "hold"
    assert source.handling(SLOT, 5) == "deliver"
    queue.release(1, unsettled=True)
    assert target.handling(SLOT, 15) == "hold"
    queue.release(1)
    assert not target.holds and target.handling(SLOT, 15) == "deliver"


def test_where_order_is_best_effort_nothing_waits() -> None:
    queue = Queue(waits=False)
    queue.move_to(1)
    assert queue.states() == [SlotState.SEALED, SlotState.OPEN] and not queue.keepers[1].questions()


def test_a_tenure_that_waits_itself_is_not_drained() -> None:
    """The slot has moved on before the first partition was done: the third waits for the second, and so for both."""
    queue = Queue()
    queue.move_to(1)
    queue.move_to(0)
    (question,) = queue.keepers[0].questions()
    assert queue.keepers[1].drained(question, nothing_left) == ()
    queue.release(1)
    assert queue.keepers[1].drained(question, nothing_left) == (SLOT,)


def test_messages_of_an_earlier_stay_are_delivered_while_those_of_the_new_one_wait() -> None:
    queue = Queue()
    queue.move_to(1)
    queue.move_to(0)
    keeper = queue.keepers[0]
    opened_at = keeper.book.tenures[SLOT][1].opened_at
    assert keeper.handling(SLOT, 5) == "deliver"
    assert keeper.handling(SLOT, opened_at + 1) == "hold"


def test_acks_that_are_not_durable_do_not_count_so_the_shell_asks_its_committed_state() -> None:
    queue = Queue()
    queue.move_to(1)
    asked: list[tuple[int, int, int]] = []

    def unsettled(slot: int, tenure: Tenure) -> bool:
        asked.append((slot, tenure.opened_at, tenure.sealed_at))
        return True

    queue.keepers[0].drained(Question(2, 0, (SLOT,)), unsettled)
    assert asked == [(SLOT, 0, 10)]


def test_what_was_scheduled_beyond_the_seal_goes_after_its_slot() -> None:
    queue = Queue()
    queue.move_to(1)
    source = queue.keepers[0]
    assert source.handling(SLOT, 5, due_ms=1000) == "deliver"
    assert source.handling(SLOT, 5, due_ms=1001) == "forward"


def test_what_was_scheduled_is_forwarded_also_after_the_slot_has_come_back() -> None:
    """Its tenure is forgotten; the slot's next one begins above it."""
    queue = Queue()
    queue.move_to(1)
    source = queue.keepers[0]
    source.forget(nothing_left)
    source.committed()
    assert source.handling(SLOT, 5, due_ms=9999) == "forward"
    queue.release(1)
    queue.move_to(0)
    assert source.handling(SLOT, 5, due_ms=9999) == "forward"


def test_an_answer_to_a_question_of_an_earlier_stay_releases_nothing() -> None:
    queue = Queue()
    first = queue.move_to(1)
    queue.release(1)
    queue.move_to(0)
    queue.move_to(1)
    assert queue.keepers[1].release(first.version, [SLOT]) is None
    assert queue.keepers[1].holds


# -------------------------------------------------------------------------------------------------- forgetting


def test_a_tenure_is_forgotten_when_it_is_drained_and_its_move_has_arrived() -> None:
    queue = Queue()
    source = queue.keepers[0]
    move = queue.plan(moved(queue.table, [SLOT], 1))
    queue.seal(move)
    assert source.drains and source.forget(nothing_left) == []  # its ids are still to be fetched
    queue.open(move)
    queue.plan_is_over(move)
    assert source.forget(something_left) == []
    assert source.forget(nothing_left) == [SlotsForgotten(move.version, (SLOT,))]
    assert source.state(SLOT) is SlotState.ABSENT


def test_a_table_from_before_the_move_does_not_say_that_it_has_arrived() -> None:
    queue = Queue()
    source = queue.keepers[0]
    source.heed(queue.table)
    source.seal(moved(queue.table, [SLOT], 1).moves[0], end=10, now_ms=0)
    source.committed()
    assert source.forget(nothing_left) == []


def test_what_is_forgotten_is_drained() -> None:
    queue = Queue()
    queue.move_to(1)
    queue.keepers[0].forget(nothing_left)
    queue.keepers[0].committed()
    queue.release(1)
    assert not queue.keepers[1].holds


def test_a_source_that_has_retired_is_not_asked() -> None:
    queue = Queue()
    table = resized(queue.table, 1)
    target = queue.keepers[0]
    move = queue.plan(table)
    queue.seal(move)
    queue.open(move)
    while queue.table.moves:
        queue.table = with_opened(queue.table, queue.table.moves[0])
    (question,) = target.questions()
    queue.tell()
    assert not target.answers_itself(question)
    queue.table = with_retired(queue.table, 1, queue.table.members[1].since)
    queue.tell()
    assert target.answers_itself(question)


# ------------------------------------------------------------------------------------------------ tables, roles


def test_a_table_older_than_the_log_is_passed_over_also_after_a_crash() -> None:
    """Restarted, a partition may hear of a move that it made long ago, and must not make it again."""
    queue = Queue(waits=False)
    old = moved(queue.table, [SLOT], 1)
    queue.move_to(1)
    queue.move_to(0)
    keeper = queue.keepers[1]
    keeper.forget(nothing_left)
    keeper.committed()
    reborn = SlotKeeper(1, keeper.book, waits=False)
    reborn.heed(old)
    assert reborn.fetch() is None
    reborn.heed(queue.table)
    assert reborn.table == queue.table


def test_a_draining_partition_takes_no_unkeyed_messages_and_retires_when_nothing_is_in_it() -> None:
    queue = Queue(waits=False)
    keeper = queue.keepers[1]
    move = queue.plan(resized(queue.table, 1))
    assert keeper.take_role() == RoleTaken(move.version, "draining")
    assert keeper.refused(1 << UNKEYED, version=9) == 1 << UNKEYED
    assert keeper.may_retire(0) is None  # not durable yet
    keeper.committed()
    assert keeper.may_retire(0) is None  # slots are left
    book = msgspec.structs.replace(keeper.book, tenures={})
    assert SlotKeeper(1, book, waits=False).may_retire(0) == move.version
    assert SlotKeeper(1, book, waits=False).may_retire(1) is None


def test_a_role_is_taken_once_and_given_back_when_the_partition_is_opened_again() -> None:
    queue = Queue(waits=False)
    keeper = queue.keepers[1]
    queue.plan(resized(queue.table, 1))
    assert keeper.take_role() is not None
    assert keeper.take_role() is None
    while queue.table.moves:
        queue.table = with_opened(queue.table, queue.table.moves[0])
    queue.plan(resized(queue.table, 2))
    assert keeper.take_role() == RoleTaken(queue.table.members[1].since, "open")


# -------------------------------------------------------------------------------------------------------- book


def test_a_record_applied_twice_changes_nothing() -> None:
    book = first_book(first_table(2), 0)
    for record in (
        SlotsSealed(2, (SLOT,), 10, 5),
        SlotsOpened(4, (SLOT,), 20, 1, 7, False),
        SlotsReleased(4, (SLOT,)),
        SlotsForgotten(2, (SLOT,)),
        RoleTaken(5, "draining"),
    ):
        book = book.apply(record)
        assert book.apply(record) == book


def test_a_book_is_stored_and_read_back_as_it_was() -> None:
    book = first_book(first_table(2), 0).apply(SlotsSealed(2, (SLOT,), 10, 5))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(book), type=SlotBook) == book


def test_a_slot_is_not_opened_where_it_is_open() -> None:
    with pytest.raises(AssertionError, match="while another was open"):
        first_book(first_table(2), 0).apply(SlotsOpened(4, (SLOT,), 20, 1, 7, True))


def test_a_seal_of_what_is_not_here_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="sealed what is not here"):
        SlotBook().apply(SlotsSealed(2, (SLOT,), 10, 5))


def test_a_readers_way_into_a_moved_slot_leads_past_its_seal() -> None:
    queue = Queue(waits=False)
    queue.move_to(1)
    barriers = queue.keepers[1].book.barriers()
    assert barriers == [Barrier(opened_at=10, source=0, sealed_at=10)]
    assert may_read(barriers, 9, {0: 0})
    assert not may_read(barriers, 10, {0: 9})
    assert may_read(barriers, 10, {0: 10})
    assert may_read(barriers, 10, {}), "the source has retired: it was read to its end"
