"""Calls in strict order that wait for idempotency keys before them."""

from __future__ import annotations

import time
from functools import partial

from backend_store.core.log.chunk import KIND_JSON, Columns, column_blocks
from backend_store.model import Block, Overloaded
from backend_store.node.publishing.ordered_claims import Follower, OrderedClaims

A, B, C = 1, 2, 4


class Line:
    def __init__(self) -> None:
        self.following = OrderedClaims()
        self.gone: list[str] = []

        self.refused: list[str] = []

    def enter(self, name: str, bits: int, *, is_ready: bool = False, until_ms: int = 0) -> Follower:
        def refused(answer: object) -> None:
            self.refused.append(name)

        go = partial(self.gone.append, name)
        return self.following.enter(bits, blocks(name), go, is_ready=is_ready, reply=refused, until_ms=until_ms)

    def kept(self) -> set[Follower]:
        """Calls whose messages are in memory because of this line."""
        here = {one for line in self.following._lines.values() for one in line}
        timed = {one for _, _, one in self.following._alarms._heap}
        return here | {one for one in timed if isinstance(one.go, partial)}

    def give_up(self, now_ms: int) -> None:
        self.following.give_up(now_ms, lambda reply: reply(Overloaded("too late")))


def blocks(*bodies: str) -> list[Block]:
    return column_blocks(Columns(KIND_JSON, [body.encode() for body in bodies], {}), None).blocks


def test_what_comes_behind_with_the_same_slots_waits() -> None:
    line = Line()
    first = line.enter("first", A | B)
    line.enter("second", B, is_ready=True)
    assert line.following.holds_up(A) and line.following.holds_up(B | C) and not line.following.holds_up(C)
    assert line.gone == []
    line.following.ready(first)
    assert line.gone == ["first", "second"]
    assert not line.following and line.following.messages == line.following.size == 0


def test_keys_that_are_bound_out_of_order_go_in_order() -> None:
    line = Line()
    first, second, third = (line.enter(name, bits) for name, bits in (("1", A), ("2", A | B), ("3", C)))
    line.following.ready(second)
    assert line.gone == []
    line.following.ready(third)
    assert line.gone == ["3"], "nothing before it has its slots"
    line.following.ready(first)
    assert line.gone == ["3", "1", "2"]


def test_what_waits_only_behind_something_that_waits_does_not_overtake_it() -> None:
    line = Line()
    first = line.enter("1", A)
    line.enter("2", A | B, is_ready=True)
    assert line.following.holds_up(B)
    line.enter("3", B, is_ready=True)
    line.following.ready(first)
    assert line.gone == ["1", "2", "3"]


def test_a_call_that_is_refused_stores_nothing_and_lets_others_go() -> None:
    line = Line()
    first = line.enter("1", A)
    line.enter("2", A, is_ready=True)
    line.following.over(first)
    assert line.gone == ["2"]


def test_what_comes_while_others_go_waits_its_turn() -> None:
    """An answer makes its producer send the next call."""
    following, gone = OrderedClaims(), []

    def answered() -> None:
        gone.append("1")
        assert following.holds_up(B)
        following.enter(B, blocks("3"), lambda: gone.append("3"), is_ready=True)

    first = following.enter(A, blocks("1"), answered, is_ready=False)
    second = following.enter(B, blocks("2"), lambda: gone.append("2"), is_ready=False)
    following.ready(first)
    assert gone == ["1"]
    following.ready(second)
    assert gone == ["1", "2", "3"]


def test_a_call_that_fails_as_it_goes_is_not_in_the_way() -> None:
    def fail() -> None:
        raise RuntimeError("it cannot go")

    following, gone = OrderedClaims(), []
    first = following.enter(A, blocks("1"), fail, is_ready=False)
    following.enter(A, blocks("2"), lambda: gone.append("2"), is_ready=True)
    following.ready(first)
    assert gone == ["2"]


def test_it_knows_how_much_waits() -> None:
    following = OrderedClaims()
    one = following.enter(A, blocks("abc", "def"), list, is_ready=False)
    assert (len(following), following.messages) == (1, 2) and following.size > 6
    following.over(one)
    assert (len(following), following.messages, following.size) == (0, 0, 0)


def test_what_a_call_costs_is_no_matter_of_how_many_wait() -> None:
    """Ten thousand may: with a look of each at all of them the node stood still for many seconds."""
    line, began = Line(), time.process_time()
    some = [line.enter(str(number), 1 << number % 200) for number in range(10_000)]
    assert not any(line.following.holds_up(1 << 200) for _ in some)
    for one in some:
        line.following.ready(one)
    assert line.gone == [str(number) for number in range(10_000)]
    assert time.process_time() - began < 2


def test_what_left_the_middle_of_a_line_is_passed_over() -> None:
    line = Line()
    first, second = line.enter("1", A), line.enter("2", A | B)
    line.enter("3", A | B, is_ready=True)
    line.enter("4", B, is_ready=True)
    line.following.over(second)
    assert line.gone == [] and line.following.holds_up(B)
    line.following.ready(first)
    assert line.gone == ["1", "3", "4"]
    assert not line.following and not line.following.holds_up(A | B | C)


def test_what_may_go_but_for_those_before_it_is_refused_when_its_time_is_over() -> None:
    line = Line()
    first = line.enter("1", A)
    line.enter("2", A | B, is_ready=True, until_ms=50)
    line.enter("3", B, is_ready=True, until_ms=60)
    assert line.following.until_ms == 50
    line.give_up(49)
    assert line.refused == []
    line.give_up(50)
    assert line.refused == ["2"] and line.gone == ["3"], "nothing is before it any more"
    assert line.following.until_ms is None
    line.following.ready(first)
    assert line.gone == ["3", "1"] and line.refused == ["2"]
    assert not line.following and line.following.messages == line.following.size == 0


def test_what_is_behind_one_that_is_refused_waits_for_what_is_before_it() -> None:
    line = Line()
    first, second = line.enter("1", A), line.enter("2", B)
    line.enter("3", A | B, is_ready=True, until_ms=50)
    line.enter("4", A | B, is_ready=True)
    line.enter("5", A, is_ready=True)
    line.give_up(50)
    assert line.refused == ["3"] and line.gone == []
    line.following.ready(second)
    assert line.gone == ["2"]
    line.following.ready(first)
    assert line.gone == ["2", "1", "4", "5"]
    assert not line.following and not line.following.holds_up(A | B | C)


def test_one_whose_key_is_not_bound_yet_is_not_refused_before_that_is_known() -> None:
    """The key may be on its way to the disk: its own answer says what became of it."""
    line = Line()
    first, second = line.enter("1", A, until_ms=50), line.enter("2", A, until_ms=50)
    assert line.following.until_ms is None
    line.following.ready(second)
    assert line.following.until_ms == 50
    line.give_up(50)
    assert line.refused == ["2"]
    line.following.ready(first)
    assert line.gone == ["1"] and line.refused == ["2"]


def test_none_of_those_whose_time_is_over_together_goes_because_another_is_refused() -> None:
    line = Line()
    line.enter("1", A)
    line.enter("2", A | B, is_ready=True, until_ms=50)
    line.enter("3", B, is_ready=True, until_ms=50)
    line.give_up(50)
    assert sorted(line.refused) == ["2", "3"] and line.gone == []


def test_what_has_gone_is_not_refused_and_leaves_nothing_behind() -> None:
    line = Line()
    first = line.enter("0", A | B)
    for number in range(1_000):
        one = line.enter(f"{number}", C, until_ms=50)
        line.enter(f"{number}, too", C, is_ready=True, until_ms=60_000)
        line.following.ready(one)
    assert len(line.gone) == 2_000
    assert len(line.following._alarms._heap) < 200, "what has gone is not kept until its time"
    assert line.kept() == {first}, "nor are its messages"
    assert line.following.until_ms is None
    line.following.ready(first)
    line.give_up(100_000)
    assert line.refused == []


def test_what_a_refused_call_costs_is_no_matter_of_how_many_wait() -> None:
    line, began = Line(), time.process_time()
    first = line.enter("first", A | B)
    for number in range(10_000):
        line.enter(f"{number}", A if number % 2 else A | B, is_ready=True, until_ms=number)
    for now_ms in range(9_999):
        line.give_up(now_ms)
    assert len(line.refused) == 9_999 - 1 and line.gone == [], "that without a time is there still"
    line.following.ready(first)
    assert line.gone == ["first", "0", "9999"]
    assert time.process_time() - began < 2
