"""When a mirror may say that it is up to date."""

from __future__ import annotations

from backend_store.cluster.core.image import Image
from backend_store.cluster.core.values import Changes, Event, Page, Record, Revision


def record(key: bytes, revision: int, value: bytes = b"") -> Record:
    return Record(key, value, Revision(revision), Revision(revision), 1)


def page(revision: int, count: int, *records: Record) -> Page:
    return Page(records, Revision(revision), count, has_more=False)


def filled() -> Image:
    image = Image()
    image.replace([record(b"a", 3), record(b"b", 4)], Revision(5), sent_at=10.0)
    return image


def test_the_first_list_is_all_new_and_the_next_only_what_is_different() -> None:
    image = Image()
    assert image.as_of is None
    assert image.replace([record(b"a", 3)], Revision(5), sent_at=10.0) == (Event(b"a", record(b"a", 3)),)
    changed = image.replace([record(b"b", 6)], Revision(6), sent_at=11.0)
    assert changed == (Event(b"a", None), Event(b"b", record(b"b", 6)))
    assert image.replace([record(b"b", 6)], Revision(7), sent_at=12.0) == ()
    assert (image.revision, image.as_of) == (7, 12.0)


def test_what_is_known_already_is_not_told_again() -> None:
    image = filled()
    deleted = Changes(Revision(6), (Event(b"a", None),))
    assert image.apply(deleted) == deleted.events
    assert image.apply(deleted) == () and image.apply(Changes(Revision(5), (Event(b"b", None),))) == ()
    assert list(image.records) == [b"b"]


def test_nothing_newer_and_as_many_records_is_a_proof() -> None:
    image = filled()
    assert image.confirm(page(9, 2), sent_at=20.0)
    assert (image.revision, image.as_of) == (9, 20.0)


def test_something_newer_or_fewer_records_is_none() -> None:
    for answer in (page(9, 3, record(b"c", 8)), page(9, 1), page(9, 2, record(b"a", 8))):
        image = filled()
        assert not image.confirm(answer, sent_at=20.0)
        assert (image.revision, image.as_of) == (5, 10.0)


def test_a_watch_that_reaches_the_revision_of_the_answer_makes_it_one() -> None:
    image = filled()
    assert not image.confirm(page(9, 3, record(b"c", 8)), sent_at=20.0)
    assert not image.confirm(page(12, 3, record(b"c", 8)), sent_at=21.0)
    image.apply(Changes(Revision(8), (Event(b"c", record(b"c", 8)),)))
    assert image.as_of == 10.0
    image.apply(Changes(Revision(9)))
    assert image.as_of == 20.0


def test_an_answer_older_than_the_watch_proves_it_for_the_time_of_its_question() -> None:
    image = filled()
    image.apply(Changes(Revision(8), (Event(b"c", record(b"c", 8)),)))
    assert image.confirm(page(7, 2), sent_at=20.0) and image.as_of == 20.0
    assert image.confirm(page(8, 3), sent_at=15.0) and image.as_of == 20.0, "time does not go back"
