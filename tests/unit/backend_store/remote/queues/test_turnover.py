"""Publishes that wait while a queue moves: who is asked, in which order they go on, and that each is answered once."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from backend_store.core.log.chunk import KIND_JSON, Columns, column_blocks
from backend_store.core.partitions.slots import ALL_SLOTS, EVERY_SLOT, Routing, packed
from backend_store.model import (
    Block,
    Claim,
    ClusterAway,
    FormerPlace,
    Offset,
    OnTheMove,
    Original,
    Published,
    PushqError,
    QueueNotFound,
    Whereabouts,
)
from backend_store.remote.queues.turnover import Turnover

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
        self.keys: Part | PushqError | None = None
        """Where idempotency keys are bound, if that is apart from the messages."""
        self.refusals = 0
        self.former = {one.place: Part() for one in (US, EU)}
        self.definition = SimpleNamespace(former=former)

    def own_ms(self) -> int:
        return self.now_ms

    def part_at(self, place: Whereabouts) -> Part:
        return self.former[place]

    def bring(self, blocks: list[Block], reply: Any, claim: Any, until_ms: int, *, number: int) -> None:
        self.current.publish(blocks, reply, claim, until_ms=until_ms)

    def key_apart(self, claim: Claim, bits: int) -> Part | PushqError | None:
        return self.keys

    def refused_here(self) -> None:
        self.refusals += 1


def publish(
    turnover: Turnover, body: bytes, *, has_id: bool = False, claim: bytes | None = None, until_ms: int = 9_000
) -> Said:
    said: Said = []
    hashes: Sequence[bytes] | None = [body.ljust(16, b"\0")] if has_id else None
    blocks = column_blocks(Columns(KIND_JSON, [body], {}, hashes=hashes), None).blocks
    claimed = None if claim is None else Claim(claim.ljust(16, b"k"), body.ljust(16, b"p"))
    turnover.publish(list(blocks), said.append, claimed, until_ms)
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


def failing(turnover: Turnover, body: bytes, *, has_id: bool = False, until_ms: int = 9_000) -> None:
    """A call of somebody who fails on its answer."""

    def reply(result: Published | PushqError) -> None:
        raise AssertionError("a fault of ours")

    hashes: Sequence[bytes] | None = [body.ljust(16, b"\0")] if has_id else None
    blocks = column_blocks(Columns(KIND_JSON, [body], {}, hashes=hashes), None).blocks
    turnover.publish(list(blocks), reply, None, until_ms)


async def test_who_fails_on_its_answer_keeps_nobody_from_going_on_after_a_turn() -> None:
    """All publishes to the queue waited until the gateway was started again."""
    queue = Queue()
    turnover = Turnover(queue)  # type: ignore[arg-type]
    failing(turnover, b"1")
    turnover.hold(EVERY_SLOT)
    later = publish(turnover, b"2")
    turnover.turn()
    queue.current.calls[0](Published(0, Offset(4), 1))
    queue.current.calls[1](Published(0, Offset(5), 1))
    assert len(later) == 1


async def test_who_fails_on_its_answer_ends_no_deadlines_and_takes_nobodys_answer_along() -> None:
    queue = Queue(US)
    turnover = Turnover(queue)  # type: ignore[arg-type]
    failing(turnover, b"1", has_id=True, until_ms=2_000)
    second = publish(turnover, b"2", has_id=True, until_ms=2_000)
    third = publish(turnover, b"3", has_id=True, until_ms=3_000)
    queue.now_ms = 2_001
    turnover._give_up()
    assert len(second) == 1 and not third and turnover._sweep is not None
    failing(turnover, b"4", has_id=True)
    turnover.end(QueueNotFound("it was deleted"))
    assert len(third) == 1


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


async def test_what_follows_a_call_whose_key_is_bound_elsewhere_waits_for_it() -> None:
    queue = Queue()
    turnover = Turnover(queue)  # type: ignore[arg-type]
    queue.keys = keys = Part()
    publish(turnover, b"1", claim=b"a")
    publish(turnover, b"2")
    publish(turnover, b"3", claim=b"b")
    assert (len(keys.calls), len(queue.current.calls)) == (2, 0), "keys are bound side by side"
    keys.calls[1](Published(0, Offset(-1), 0))
    assert not queue.current.calls, "the first one's is not"
    keys.calls[0](Published(0, Offset(-1), 0))
    assert len(queue.current.calls) == 3
    assert not turnover.waiting


@pytest.mark.parametrize("said", [Published(0, Offset(7), 0, is_repeat=True), ClusterAway("it is away")])
async def test_a_key_that_is_known_or_cannot_be_bound_is_the_answer_and_holds_nobody_up(
    said: Published | PushqError,
) -> None:
    queue = Queue()
    turnover = Turnover(queue)  # type: ignore[arg-type]
    queue.keys = keys = Part()
    first = publish(turnover, b"1", claim=b"a")
    publish(turnover, b"2")
    keys.calls[0](said)
    [answer] = first
    assert answer is said if isinstance(said, PushqError) else isinstance(answer, Published) and answer.count == 1
    assert len(queue.current.calls) == 1
    queue.keys = ClusterAway("nobody here reaches it")
    assert publish(turnover, b"3", claim=b"b") == [queue.keys]


async def test_a_key_whose_slot_goes_elsewhere_is_bound_where_it_went() -> None:
    queue = Queue()
    turnover = Turnover(queue)  # type: ignore[arg-type]
    queue.keys = before = Part()
    said = publish(turnover, b"1", claim=b"a")
    publish(turnover, b"2", claim=b"b")
    before.calls[0](OnTheMove("its slot has gone"))
    assert queue.refusals == 1 and not said
    before.calls[1](Published(0, Offset(-1), 0))  # b is bound where b's slot lay until now
    queue.keys = after = Part()
    turnover.turn()
    assert len(after.calls) == 2 and not queue.current.calls
    for reply in after.calls:
        reply(Published(0, Offset(-1), 0))
    assert len(queue.current.calls) == 2


async def test_a_key_that_is_being_bound_when_places_change_is_bound_again() -> None:
    queue = Queue()
    turnover = Turnover(queue)  # type: ignore[arg-type]
    queue.keys = before = Part()
    publish(turnover, b"1", claim=b"a")
    turnover.turn()
    queue.keys = after = Part()
    before.calls[0](Published(0, Offset(-1), 0))
    assert len(after.calls) == 1 and not queue.current.calls
    after.calls[0](Published(0, Offset(-1), 0))
    assert len(queue.current.calls) == 1


async def test_a_key_that_is_not_bound_in_time_is_answered_once() -> None:
    queue = Queue()
    turnover = Turnover(queue)  # type: ignore[arg-type]
    queue.keys = keys = Part()
    said = publish(turnover, b"1", claim=b"a", until_ms=2_000)
    queue.now_ms = 2_001
    turnover._give_up()
    keys.calls[0](Published(0, Offset(-1), 0))
    assert len(said) == 1 and not queue.current.calls
