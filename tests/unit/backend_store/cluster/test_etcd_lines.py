"""Lines and revisions come out whole, however the bytes of a watch were cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.cluster.core.values import Changes, Revision
from backend_store.cluster.etcd.codec import Header, KeyValue, WatchEvent, WatchResult
from backend_store.cluster.etcd.lines import Assembler, Lines
from backend_store.model import Unavailable


@given(st.lists(st.binary(min_size=1, max_size=5).map(lambda line: line.replace(b"\n", b".") + b"x")), st.data())
def test_lines_come_out_as_they_went_in(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    reader = Lines()
    out: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        out += reader.feed(stream[start:end])
    assert out == lines


def test_blank_lines_are_none() -> None:
    assert Lines().feed(b"\n{}\n \n") == [b"{}"]


def test_a_line_without_an_end_is_given_up() -> None:
    lines = Lines(bytes_max=10)
    assert lines.feed(b"12345\n123456") == [b"12345"]
    assert lines.feed(b"7890") == []
    with pytest.raises(Unavailable, match="more than 10 bytes"):
        lines.feed(b"1")


def event(revision: int, key: bytes = b"ns/k") -> WatchEvent:
    return WatchEvent(KeyValue(key, b"v", create_revision=revision, mod_revision=revision, version=1))


def result(*revisions: int, fragment: bool = False) -> WatchResult:
    return WatchResult(Header(revision=99), fragment=fragment, events=[event(revision) for revision in revisions])


def shape(changes: list[Changes]) -> list[tuple[int, int]]:
    return [(one.revision, len(one.events)) for one in changes]


def test_a_revision_in_fragments_is_told_when_it_is_whole() -> None:
    assembler = Assembler(b"ns/", Revision(1))
    assert shape(assembler.take(result(2, 3, 3, fragment=True))) == [(2, 1)]
    assert shape(assembler.take(result(3, 3, fragment=True))) == []
    assert shape(assembler.take(result(3, 4))) == [(3, 5), (4, 1)]


def test_a_new_connection_tells_a_half_revision_whole_and_nothing_twice() -> None:
    assembler = Assembler(b"ns/", Revision(1))
    assert shape(assembler.take(result(2, 3, fragment=True))) == [(2, 1)]
    assembler.restart()
    assert assembler.seen == 2
    assert shape(assembler.take(result(2, 3, 3))) == [(3, 2)]


def test_a_notice_counts_when_nothing_is_under_way() -> None:
    assembler = Assembler(b"ns/", Revision(1))
    assert assembler.take(WatchResult(Header(revision=7), created=True)) == []
    assert assembler.seen == 1, "that a watch was made says nothing about what happened before"
    assert assembler.take(WatchResult(Header(revision=7))) == [Changes(Revision(7))]
    assert assembler.take(WatchResult(Header(revision=7))) == []
    assert assembler.take(WatchResult(Header(), canceled=True)) == []


def test_keys_lose_the_namespace_and_deletions_their_record() -> None:
    gone = WatchEvent(KeyValue(b"ns/k", mod_revision=5), type="DELETE")
    [changes] = Assembler(b"ns/", Revision(1)).take(WatchResult(events=[gone]))
    assert [(one.key, one.record) for one in changes.events] == [(b"k", None)]
