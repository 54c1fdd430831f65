"""Who is told of what happens to one queue: who reads it, and nobody else is looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from push.delivery.hub import Hub
from push.delivery.readers import Readers

ONE: Any = SimpleNamespace
OTHER: Any = object


def test_a_reader_stays_until_it_has_left_as_often_as_it_came() -> None:
    readers: Readers[str] = Readers()
    for reader, queue in (("b", ONE), ("a", ONE), ("b", ONE), ("b", OTHER)):
        readers.enter(reader, queue)
    readers.leave("b", ONE)
    assert readers.of(ONE) == ["b", "a"] and readers.of(OTHER) == ["b"]
    for reader, queue in (("b", ONE), ("b", OTHER), ("a", ONE)):
        readers.leave(reader, queue)
    assert readers.of(ONE) == readers.of(OTHER) == [] and not len(readers)


class Bystander:
    """A session that reads something else."""

    closed = False

    @property
    def subs(self) -> Any:
        raise AssertionError("it was looked at")


class Reading:
    """A session that reads these."""

    def __init__(self, queues: list[Any], told: list[object]) -> None:
        self.subs = {number: SimpleNamespace(number=number, queue=queue) for number, queue in enumerate(queues)}
        self._told = told

    def tell_gap(self, number: int, gap: object) -> None:
        self._told.append((number, gap))

    def end(self, sub: Any, error: object) -> None:
        self._told.append((sub.number, error))


class Listed:
    """A queue that misses something, and is deleted."""

    gone = "gone"

    def take_gaps(self) -> list[str]:
        return ["gap"]


@pytest.mark.anyio
async def test_news_of_a_queue_cost_no_look_at_those_who_read_others() -> None:
    """Whoever has a stream drop messages all the time, or makes and deletes queues, would slow everybody down."""
    store: Any = SimpleNamespace(take_kept=lambda: ([], {}))
    desk: Any = None
    hub = Hub(store, desk, clock_ms=lambda: 1_000_000)
    queue: Any = Listed()
    told: list[object] = []
    reader: Any = Reading([queue, OTHER], told)
    bystander: Any = Bystander()
    hub.sessions = {"reader": reader, "bystander": bystander}
    for one in (queue, OTHER):
        hub.readers.enter(reader, one)
    hub._tell_gap(queue)
    hub.queue_deleted(queue)
    assert told == [(0, "gap"), (0, "gone")]
    hub.sessions.clear()
    await hub.close()
