"""What a gateway asks of redrives that run at a backend."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from backend_store.client.dead_letters import LetterFilter
from backend_store.model import QueueNotFound
from backend_store.remote.queues.queue import RemoteQueue
from backend_store.remote.redrives.redrives import RemoteLetters, RemoteRedrives
from backend_store.service.redrives import CancelRedrive, Job, Order, StartRedrive
from backend_store.wire.store_frames import Place, raw

pytestmark = pytest.mark.anyio


class Queue:
    """Whose backend begins each redrive."""

    place_there = Place("t", "q", 1)
    owner = "q"
    deleted = True

    def __init__(self) -> None:
        self.changes: list[type] = []

    async def ask(self, operation: Any, *, may_repeat: bool = False, is_change: bool = False) -> msgspec.Raw:
        assert may_repeat, "its id is known for as long as it runs"
        if is_change:
            self.changes.append(type(operation))
        return raw(Job("r", 1, None, 0, "running", None))

    def background(self, work: Any) -> None:
        work.close()


async def test_a_redrive_is_begun_and_cancelled_as_a_change_whose_outcome_may_be_unknown() -> None:
    queue = Queue()
    letters = RemoteLetters(Order(queue.place_there, LetterFilter(), "q", own=False), cast(RemoteQueue, queue))
    redrives = RemoteRedrives(cast(RemoteQueue, queue))
    job = await redrives.begin("r", letters, total=1, rate=None, find=_gone)
    await job.cancel()
    assert queue.changes == [StartRedrive, CancelRedrive]


def _gone(name: str) -> RemoteQueue:
    raise QueueNotFound(f"there is no queue {name!r}")
