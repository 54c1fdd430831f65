"""Publishes that wait while a queue moves: who is asked, in which order they go on, and that each is answered once."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from backend_store.core.chunk import KIND_JSON, Columns, column_blocks
from backend_store.core.slots import ALL_SLOTS, EVERY_SLOT, Routing, packed
from backend_store.model import Block, FormerPlace, Offset, OnTheMove, Original, Published, PushqError, Whereabouts
from backend_store.remote.turnover import Turnover

pytestmark = pytest.mark.anyio

US, EU = FormerPlace("", 0, 0, 0), FormerPlace("eu", 0, 8 << 32, 0)
Said = list[Published | PushqError]


class Part:
    """A place that answers when a test says so."""

    slot_table = None

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def publish(self, blocks: list[Block], reply: Any, claim: Any = None, *, until_ms: int = 0) -> None:
        self.calls.append(reply)

    def recall(self, blocks: list[Block], claim: Any, reply: Any) -> None:
        self.calls.append(reply)


class Queue:
    name, deleted, seal = "q", False, None
    config = SimpleNamespace(dedupe="id", ordering="best_effort")
    slot_table, routing, is_apart = None, Routing(), False

    def __init__(self, *former: FormerPlace) -> None:
        self.now_ms = 1_000
        self.current = Part()
        self.former = {one.place: Part() for one in (US, EU)}
        self.definition = SimpleNamespace(former=former)

    def steady_ms(self) -> int:
        return self.now_ms

    def part_at(self, place: Whereabouts) -> Part:
        return self.former[place]

    def bring(self, blocks: list[Block], reply: Any, claim: Any, until_ms: int, *, number: int) -> None:
        self.current.publish(blocks, reply, claim, until_ms=until_ms)

    def refused_here(self) -> None: ...


def publish(turnover: Turnover, body: bytes, *, has_id: bool = False, until_ms: int = 9_000) -> Said:
    said: Said = []
    hashes: Sequence[bytes] | None = [body.ljust(16, b"\0")] if has_id else None
    blocks = column_blocks(Columns(KIND_JSON, [body], {}, hashes=hashes), None).blocks
    turnover.publish(list(blocks), said.append, None, until_ms)
    return said


async def test_of_calls_whose_time_is_over_together_each_is_answered_once_and_none_is_sent() -> None:
    queue = Queue(US)
    turnover = Turnover(queue)  # type: ignore[arg-type]
    first = publish(turnover, b"1", has_id=True, until_ms=2_000)  # the former place does not answer
    second = publish(turnover, b"2", until_ms=2_000)
    third = publish(turnover, b"3")
    queue.now_ms = 2_001
    turnover._give_up()
    assert len(first) == len(second) == 1 and not third
    [reply] = queue.current.calls
    reply(Published(0, Offset(5), 1))
    assert len(third) == 1 and all(isinstance(one[0], PushqError) for one in (first, second))


async def test_a_call_that_was_ready_asks_the_place_that_was_left_meanwhile() -> None:
    queue = Queue(US)
    turnover = Turnover(queue)  # type: ignore[arg-type]
    publish(turnover, b"x")  # under way to eu
    publish(turnover, b"h", has_id=True, until_ms=1_500)  # us does not answer
    publish(turnover, b"b", has_id=True)
    queue.former[US.place].calls[1](OnTheMove("us does not know it"))
    queue.current.calls[0](OnTheMove("eu is left, too"))
    queue.now_ms = 1_501
    turnover._give_up()
    queue.current, queue.definition = Part(), SimpleNamespace(former=(EU, US))
    turnover.turn()
    assert len(queue.current.calls) == 1 and len(queue.former[EU.place].calls) == 1
    queue.former[EU.place].calls[0](OnTheMove("eu does not know it"))
    assert len(queue.current.calls) == 1, "us may know of it by now"
    queue.former[US.place].calls[2](OnTheMove("us does not know it"))
    assert len(queue.current.calls) == 2


async def test_a_place_that_took_publishes_again_is_asked_again() -> None:
    us, eu = (msgspec.structs.replace(one, slots=packed(ALL_SLOTS)) for one in (US, EU))
    queue = Queue(us)
    turnover = Turnover(queue)  # type: ignore[arg-type]
    publish(turnover, b"h", has_id=True)
    said = publish(turnover, b"b", has_id=True)
    asked = queue.former[US.place].calls
    asked[1](OnTheMove("us does not know it"))  # b waits behind h
    queue.current, queue.definition = Part(), SimpleNamespace(former=(eu,))  # us has it again: others publish b there
    turnover.hold(EVERY_SLOT)
    turnover.turn()
    queue.current, queue.definition = Part(), SimpleNamespace(former=(us,))  # and eu
    turnover.hold(EVERY_SLOT)
    turnover.turn()
    asked[0](OnTheMove("us does not know h"))
    for reply in queue.former[EU.place].calls:
        reply(OnTheMove("eu does not know it"))
    assert len(asked) == 4 and not queue.current.calls
    asked[3](Published(0, Offset(-1), 1, others={0: Original(Offset(7), 0)}))
    asked[2](OnTheMove("us does not know h"))
    assert len(queue.current.calls) == 1
    [answer] = said
    assert isinstance(answer, Published) and answer.others == {0: Original(7, 0)}
