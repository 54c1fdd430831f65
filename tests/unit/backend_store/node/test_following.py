"""Calls in strict order that wait for idempotency keys before them."""

from __future__ import annotations

import time

from backend_store.core.chunk import KIND_JSON, Columns, column_blocks
from backend_store.model import Block
from backend_store.node.following import Follower, Following

A, B, C = 1, 2, 4


class Line:
    def __init__(self) -> None:
        self.following = Following()
        self.gone: list[str] = []

    def enter(self, name: str, bits: int, *, is_ready: bool = False) -> Follower:
        return self.following.enter(bits, blocks(name), lambda: self.gone.append(name), is_ready=is_ready)


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
    following, gone = Following(), []

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

    following, gone = Following(), []
    first = following.enter(A, blocks("1"), fail, is_ready=False)
    following.enter(A, blocks("2"), lambda: gone.append("2"), is_ready=True)
    following.ready(first)
    assert gone == ["2"]


def test_it_knows_how_much_waits() -> None:
    following = Following()
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
