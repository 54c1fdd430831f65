"""What a host holds: lists and the watch tell of the same records at different revisions, and the newer one counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backend_store.cluster.core.values import Event, Page, Record, Revision
from backend_store.metadata.directory.core.holding import Holding
from backend_store.metadata.directory.core.names import arc_of, queue_key

ARC = arc_of("q", "t", "a")
KEY = queue_key("t", "a")


def record(at: int, key: bytes = KEY) -> Record:
    return Record(key, b"%d" % at, Revision(at), Revision(at), 1)


def page(at: int, *records: Record) -> list[Page]:
    return [Page(records, Revision(at), len(records), False)]


def wished() -> Holding:
    holding = Holding()
    holding.wish([ARC])
    return holding


def test_what_was_deleted_while_it_was_read_does_not_come_back() -> None:
    holding = wished()
    begun = holding.reading(ARC)
    holding.apply(Revision(7), [Event(KEY, None)])
    holding.read(ARC, page(6, record(3)), begun)
    assert holding.is_whole(ARC) and holding.get(ARC, KEY) is None


def test_an_old_deletion_does_not_take_what_was_made_again() -> None:
    holding = wished()
    holding.read(ARC, page(9, record(8)), holding.reading(ARC))
    holding.apply(Revision(5), [Event(KEY, record(5))])
    holding.apply(Revision(6), [Event(KEY, None)])
    assert holding.get(ARC, KEY) == record(8)


def test_pages_of_before_a_doubt_are_not_taken() -> None:
    holding = wished()
    begun = holding.reading(ARC)
    holding.doubt()
    holding.read(ARC, page(6, record(3)), begun)
    assert not holding.is_whole(ARC) and holding.count == 0


def test_an_arc_that_is_given_up_takes_its_records_with_it() -> None:
    holding = wished()
    holding.read(ARC, page(6, record(3)), holding.reading(ARC))
    assert holding.count == 1
    holding.wish([])
    assert holding.count == 0 and not holding.is_whole(ARC)


@given(st.data())
def test_whenever_it_is_read_it_ends_with_what_is_there(data: st.DataObject) -> None:
    """A history of puts and deletes; the list is of any revision, and comes at any time of the watch after it began."""
    ops = data.draw(st.lists(st.booleans(), min_size=1, max_size=12))
    begins = data.draw(st.integers(0, len(ops)))
    listed_at = data.draw(st.integers(begins, len(ops)))
    comes = data.draw(st.integers(begins, len(ops)))
    states: list[Record | None] = [None]
    for number, is_put in enumerate(ops, 1):
        states.append(record(number) if is_put else None)
    holding = Holding()
    begun: object = None
    for at in range(len(ops) + 1):
        if at:
            holding.apply(Revision(at), [Event(KEY, states[at])])
        if at == begins:
            holding.wish([ARC])
            begun = holding.reading(ARC)
        if at == comes:
            found = states[listed_at]
            holding.read(ARC, page(listed_at, *([] if found is None else [found])), begun)
    assert holding.is_whole(ARC) and holding.get(ARC, KEY) == states[-1]
