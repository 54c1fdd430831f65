"""Rows of alerts that wait to be written: what is kept, merged or given up, and in which pieces they go."""

from __future__ import annotations

import pytest

from backend_store.client import Document
from gateway.alerts import unwritten as unwritten_
from gateway.alerts.unwritten import Unwritten

LINES_MAX = 3
ALERT, LINE = "alert", "line"


class Disk:
    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], bytes] = {}

    def get(self, kind: str, name: str) -> bytes | None:
        return self.rows.get((kind, name))


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def waiting(disk: Disk) -> Unwritten:
    return Unwritten((ALERT, LINE), disk.get, rows_max={LINE: LINES_MAX})


def row(kind: str, name: str, data: bytes | None = b"data") -> Document:
    return Document(kind, name, data)


def names(rows: list[Document]) -> list[str]:
    return [one.name for one in rows]


def test_of_one_place_the_last_word_waits(waiting: Unwritten) -> None:
    waiting.put([row(ALERT, "a", b"1"), row(ALERT, "a", b"2")])
    assert waiting.piece() == [row(ALERT, "a", b"2")] and waiting.merged == 1 and waiting.dropped == 0


def test_what_begins_and_ends_meanwhile_leaves_no_row(waiting: Unwritten, disk: Disk) -> None:
    disk.rows[ALERT, "old"] = b"data"
    waiting.put([row(ALERT, "a"), row(ALERT, "a", None), row(ALERT, "old", None)])
    assert waiting.piece() == [row(ALERT, "old", None)] and waiting.merged == 1


def test_of_more_lines_than_may_wait_the_oldest_are_given_up_and_no_alert(waiting: Unwritten) -> None:
    waiting.put(row(LINE, f"{n}") for n in range(LINES_MAX + 2))
    waiting.put(row(ALERT, f"{n}") for n in range(2 * LINES_MAX))
    assert len(waiting) == 3 * LINES_MAX and (waiting.dropped, waiting.merged) == (2, 0)
    assert names(waiting.piece())[2 * LINES_MAX :] == ["2", "3", "4"]


def test_a_piece_whose_outcome_is_not_known_comes_again_before_any_other(
    waiting: Unwritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unwritten_, "WRITE_ROWS_MAX", 2)
    waiting.put(row(ALERT, name) for name in "abc")
    assert names(waiting.piece()) == ["a", "b"]
    waiting.failed(is_unsure=True)
    waiting.put([row(ALERT, "a", None)])
    assert waiting.piece() == [row(ALERT, "a", None), row(ALERT, "b")], "the disk may have it"
    waiting.failed(is_unsure=False)
    waiting.written(waiting.piece())
    assert names(waiting.piece()) == ["c"]


def test_what_was_said_while_a_piece_was_written_waits(waiting: Unwritten) -> None:
    waiting.put([row(ALERT, "a", b"1")])
    piece = waiting.piece()
    waiting.put([row(ALERT, "a", b"2")])
    waiting.written(piece)
    assert waiting.piece() == [row(ALERT, "a", b"2")]
    waiting.forget(ALERT, "a")
    assert not len(waiting) and not waiting.piece()


def test_a_piece_that_the_disk_has_after_all_does_not_come_again(waiting: Unwritten, disk: Disk) -> None:
    waiting.put(row(ALERT, name) for name in "ab")
    waiting.piece()
    waiting.failed(is_unsure=True)
    waiting.put([row(ALERT, "b", b"later")])
    disk.rows[ALERT, "a"] = b"data"
    assert not waiting.landed(), "that one was there before"
    disk.rows[ALERT, "b"] = b"data"
    waiting.written(waiting.landed())
    assert waiting.piece() == [row(ALERT, "b", b"later")]
