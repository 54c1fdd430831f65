"""The history of alerts that another gateway writes: as it is stored, and read whole once only."""

from __future__ import annotations

from typing import Any

import pytest

from backend_store.client import Document
from backend_store.remote.documents import RemoteDocuments
from gateway.alerts.record import Record
from gateway.alerts.stored import HISTORY, Transition, put_transition


def line(seq: int, tenant: str = "shop", state: str = "firing") -> Transition:
    return Transition(seq, seq, tenant, f"alert_{seq}", "rule_1", "deep", "depth", "warning", "q", state, 1.0, 0.0)


class World:
    """The rows of the backends, as this gateway hears of them."""

    def __init__(self, *lines: Transition) -> None:
        ask: Any = None
        self.documents = RemoteDocuments(ask, holder="a", are_shared=True)
        self.tell(*lines, is_first=True)
        self.record = Record(self.documents, {}, 0)  # type: ignore[arg-type]

    def tell(self, *lines: Transition, gone: tuple[int, ...] = (), is_first: bool = False) -> None:
        rows, names = [put_transition(one) for one in lines], [(HISTORY, f"{seq:016x}") for seq in gone]
        self.documents.take(rows, names, is_first=is_first)

    def read_anew(self) -> Record:
        """Of a gateway that has just begun."""
        ask: Any = None
        documents = RemoteDocuments(ask, holder="b", are_shared=True)
        documents.take([Document(HISTORY, *row) for row in self.documents.all(HISTORY)], [], is_first=True)
        return Record(documents, {}, 0)  # type: ignore[arg-type]

    def shown(self) -> dict[str, list[int]]:
        return {tenant: [one.seq for one in lines] for tenant, lines in self.record.history.items()}


def test_a_change_costs_no_look_at_the_lines_that_were_there(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(*(line(seq) for seq in range(1, 6)))
    monkeypatch.setattr(world.documents, "all", lambda kind: [] if kind != HISTORY else pytest.fail("all were read"))
    world.tell(line(6), line(7, "mail"), gone=(1, 2))
    world.record.read({})
    assert world.shown() == {"shop": [3, 4, 5, 6], "mail": [7]}
    world.tell(gone=(7,))
    world.record.read_lines()
    assert world.shown() == {"shop": [3, 4, 5, 6]}


def test_what_is_shown_is_what_is_stored_in_whatever_order_it_comes() -> None:
    world = World(line(3), line(1), line(2, "mail"))
    for come, gone in (
        ((line(5), line(4)), ()),
        ((line(2, "shop"),), (3,)),
        ((), (1, 2, 4, 5)),
        ((line(1, "mail"), line(8)), ()),
        ((line(8, state="resolved"),), ()),
    ):
        world.tell(*come, gone=gone)
        world.record.read({})
        assert world.record.history == world.read_anew().history


def test_after_a_connection_that_was_lost_it_is_what_the_backend_has() -> None:
    world = World(line(1), line(2))
    world.tell(line(2), line(3, "mail"), is_first=True)
    world.record.read({})
    assert world.shown() == {"shop": [2], "mail": [3]}


def test_a_line_that_was_never_written_down_goes_with_the_duty() -> None:
    world = World(line(1))
    world.record._put([put_transition(line(2))])
    world.record.history["shop"].append(line(2))
    world.record.forget_unwritten()
    world.tell(line(3))
    world.record.read({})
    assert world.shown() == {"shop": [1, 3]}
