"""The ledger's rows: ranges without a hole, and sums that anybody can do again."""

from __future__ import annotations

from backend_store.core.ledger import DAY_MS, KINDS, LedgerCut, Title, begin, cut, doom, flowed, is_owed
from backend_store.core.log.records import EpochStart, Ledger, PartitionState, Tally
from backend_store.model import Epoch, Offset

TITLE = Title("node", "default", "orders", 7, 0)
NOW_MS = 1_700_000_000_000


def state(**values: object) -> PartitionState:
    made = PartitionState([EpochStart(Epoch(1), Offset(0))])
    for name, value in values.items():
        setattr(made, name, value)
    return made


def cut_of(one: PartitionState) -> LedgerCut:
    made = cut(one, TITLE, NOW_MS)
    assert made is not None
    return made


def test_a_row_begins_where_the_one_before_ended() -> None:
    one = state(end=3, live=3, ledger=Ledger(published=3, published_bytes=30))
    first = cut_of(one)
    one.end, one.live = 5, 2
    one.ledger.settled = 1
    second = cut_of(one)
    assert (first.start, first.end, second.start, second.end) == (0, 3, 3, 5)
    assert (first.held, second.held) == (3, 2)
    assert first.counts == {"published": 3} and second.counts == {"settled": 1}


def test_nothing_counted_is_no_row() -> None:
    one = state(end=3)
    assert cut(one, TITLE, NOW_MS) is None and not is_owed(one)


def test_what_leaves_no_record_still_has_a_range_of_its_own() -> None:
    one = state(end=9, live=4, ledger=Ledger(start=9, held=6, retired=2))
    assert (cut_of(one).start, one.end) == (9, 10)


def test_what_companions_hold_is_there() -> None:
    one = state(end=5, live=1, views={1: Tally(live=2), 3: Tally(live=1)}, ledger=Ledger(published=4, dead_lettered=2))
    assert cut_of(one).held == 4 and "unexplained" not in one.views


def test_what_does_not_add_up_is_said() -> None:
    assert cut_of(state(end=5, live=3, ledger=Ledger(published=5))).counts == {"published": 5, "unexplained": -2}


def test_every_kind_counts_once() -> None:
    one = state(end=50)
    for number, kind in enumerate(KINDS, 1):
        setattr(one.ledger, kind, number)
    flows = {"in": 1, "out": -1, "told": 0}
    assert flowed(one.ledger) == sum(flows[flow] * number for number, flow in enumerate(KINDS.values(), 1))


def test_a_partition_from_before_the_ledger_begins_with_what_is_there() -> None:
    one = state(end=40, live=12, views={1: Tally(live=3)})
    begin(one)
    made = cut_of(one)
    assert (made.start, made.counts, made.held) == (40, {"opening": 15}, 15)


def test_a_ledger_that_goes_on_does_not_begin_again() -> None:
    one = state(end=40, live=12, ledger=Ledger(start=40, held=12))
    begin(one)
    assert one.ledger == Ledger(start=40, held=12)


def test_a_restored_partition_begins_anew_with_what_is_there() -> None:
    one = state(end=40, live=12, ledger=Ledger(start=30, held=9, published=3))
    begin(one, anew=True)
    assert one.ledger == Ledger(start=40, opening=12)


def test_a_deleted_queue_takes_along_what_is_left() -> None:
    one = state(end=10, live=6, ledger=Ledger(published=10, settled=4))
    doom(one)
    made = cut_of(one)
    assert made.counts == {"published": 10, "settled": 4, "deleted": 6} and made.held == 0


def test_what_comes_and_is_acked_while_a_queue_is_deleted_went_with_it() -> None:
    one = state(end=10, live=6, ledger=Ledger(published=10, settled=4))
    doom(one)
    cut_of(one)
    one.end, one.ledger.published, one.ledger.settled = 14, 3, 5
    doom(one)
    made = cut_of(one)
    assert made.counts == {"published": 3, "deleted": 3} and made.held == 0


def test_a_row_is_of_the_day_on_which_the_latest_was_counted() -> None:
    one = state(end=3, live=3, ledger=Ledger(published=3, at_ms=NOW_MS - DAY_MS))
    assert cut_of(one).at_ms == NOW_MS - DAY_MS


def test_rows_of_a_log_stay_in_order_whichever_clock_its_leader_has() -> None:
    one = state(end=3, live=3, ledger=Ledger(published=3))
    ahead = cut(one, TITLE, NOW_MS + 5_000)
    one.ledger.settled = 1
    one.live = 2
    assert ahead is not None and cut_of(one).at_ms == ahead.at_ms
