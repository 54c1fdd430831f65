"""Which rows changed lately."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backend_store.metadata import recent
from backend_store.metadata.recent import Recent, Rows


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "ROW_CHANGES_KEPT_MAX", 3)


def test_each_row_that_changed_since_is_named_once_the_last_at_the_end() -> None:
    changes: Recent[str] = Recent()
    for name in ("a", "b", "a"):
        changes.note((name,))
    assert changes.since(0) == ["b", "a"]
    assert changes.since(1) == ["b", "a"]
    assert changes.since(2) == ["a"]
    assert changes.since(changes.version) == []


def test_what_is_not_remembered_any_more_is_not_taken_for_nothing() -> None:
    changes: Recent[int] = Recent()
    for number in range(1, 6):
        changes.note((number,))
    assert changes.since(1) == [2, 3, 4, 5]
    assert changes.since(0) is None


def test_one_row_that_changes_again_and_again_drives_no_other_out() -> None:
    changes: Recent[str] = Recent()
    changes.note(("rare",))
    for _ in range(100):
        changes.note(("often",))
    assert changes.since(0) == ["rare", "often"]


def test_a_commit_of_many_rows_is_known_until_the_next_one() -> None:
    changes: Recent[int] = Recent()
    changes.note(range(10))
    assert changes.since(0) == list(range(10))
    changes.note((10,))
    assert changes.since(0) is None
    assert changes.since(1) == [10]


def test_rows_know_what_came_changed_or_went() -> None:
    rows = Rows({"a": 1, "b": 2})
    assert rows.recent.since(0) == [], "it began with these"
    rows["a"] = 3
    rows["c"] = 4
    del rows["b"]
    assert rows.recent.since(0) == ["a", "c", "b"]
    assert (rows.take("c"), rows.take("nothing")) == (4, None)
    rows.put({"d": 5, "e": 6})
    assert (dict(rows), rows.recent.since(3)) == ({"a": 3, "d": 5, "e": 6}, ["c", "d", "e"])


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.pop("a"),
        lambda rows: rows.popitem(),
        lambda rows: rows.update(a=2),
        lambda rows: rows.setdefault("b", 2),
        lambda rows: rows.clear(),
        lambda rows: rows.__ior__({"b": 2}),
    ],
)
def test_no_row_changes_unnoticed(change: Callable[[Rows[str, int]], object]) -> None:
    rows = Rows({"a": 1})
    with pytest.raises(NotImplementedError):
        change(rows)
    assert rows == {"a": 1}
