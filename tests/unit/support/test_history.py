"""The judge of the crash tests is judged: each kind of violation, forged, is reported, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.history import Kind, QueueHistory, StreamHistory


def history() -> QueueHistory:
    """Ten confirmed messages: 0 was acked, 1 was delivered, 2 came twice because it was given back, 3 over a crash."""
    found = QueueHistory()
    found.sent |= {f"m{n}" for n in range(12)}
    found.confirmed |= {f"m{n}" for n in range(10)}
    found.deliver("m0", 1)
    found.settling.add("m0")
    found.acked.add("m0")
    found.deliver("m1", 1)
    found.deliver("m2", 1)
    found.give_back("m2")
    found.deliver("m2", 2)
    found.deliver("m3", 1)
    found.life = 1
    found.deliver("m3", 1)
    return found


PRESENT = [f"m{n}" for n in range(1, 11)]
"""m10 was sent and never answered: it may be there; m11 may not be."""


def test_a_true_history_has_no_violations() -> None:
    assert history().violations(PRESENT) == []


def _lost(found: QueueHistory, present: list[str]) -> None:
    present.remove("m5")


def _vanished(found: QueueHistory, present: list[str]) -> None:
    present.remove("m1")


def _resurrected_in_the_queue(found: QueueHistory, present: list[str]) -> None:
    present.append("m0")


def _resurrected_by_delivery(found: QueueHistory, present: list[str]) -> None:
    found.deliver("m0", 2)


def _invented(found: QueueHistory, present: list[str]) -> None:
    present.append("never sent")


def _refused_but_there(found: QueueHistory, present: list[str]) -> None:
    found.refused.add("m10")


def _double(found: QueueHistory, present: list[str]) -> None:
    found.deliver("m3", 2)


def _same_attempt_twice(found: QueueHistory, present: list[str]) -> None:
    found.give_back("m3")
    found.deliver("m3", 1)


def _attempt_fell(found: QueueHistory, present: list[str]) -> None:
    found.life = 2
    found.deliver("m2", 1)


@pytest.mark.parametrize(
    ("forge", "kind", "message"),
    [
        (_lost, Kind.LOST, "m5"),
        (_vanished, Kind.VANISHED, "m1"),
        (_resurrected_in_the_queue, Kind.RESURRECTED, "m0"),
        (_resurrected_by_delivery, Kind.RESURRECTED, "m0"),
        (_invented, Kind.INVENTED, "never sent"),
        (_refused_but_there, Kind.REFUSED_BUT_THERE, "m10"),
        (_double, Kind.DOUBLE, "m3"),
        (_same_attempt_twice, Kind.DOUBLE, "m3"),
        (_attempt_fell, Kind.ATTEMPT_FELL, "m2"),
    ],
)
def test_each_violation_of_a_queue_is_reported(
    forge: Callable[[QueueHistory, list[str]], None], kind: Kind, message: str
) -> None:
    found, present = history(), list(PRESENT)
    forge(found, present)
    violations = found.violations(present)
    assert (kind, message) in [(v.kind, v.message) for v in violations]
    assert {v.message for v in violations} == {message}
    assert kind.value in str(violations[0]) or len(violations) > 1


def test_an_ack_without_an_answer_may_have_settled_or_not() -> None:
    found = history()
    found.settling.add("m1")
    without = [m for m in PRESENT if m != "m1"]
    assert found.violations(PRESENT) == found.violations(without) == []


def stream() -> StreamHistory:
    """Positions have holes, where decisions stand; the message at 4 was stored and never confirmed."""
    found = StreamHistory()
    found.sent |= set("abcdef")
    found.confirmed |= {0: "a", 1: "b", 3: "c", 5: "e"}
    for seq, message in [(0, "a"), (1, "b"), (3, "c"), (4, "d"), (5, "e")]:
        found.read("whole", seq, message)
    for seq, message in [(3, "c"), (4, "d")]:
        found.read("part", seq, message)
    return found


def test_a_true_stream_has_no_violations() -> None:
    assert stream().violations(whole=["whole"]) == []


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ([(0, "a"), (3, "c"), (4, "d"), (5, "e")], Kind.STREAM_HOLE, "b"),
        ([(0, "a"), (1, "b"), (3, "c"), (4, "d")], Kind.STREAM_HOLE, "e"),
        ([(1, "b"), (3, "c"), (5, "e")], Kind.STREAM_HOLE, "a"),
        ([(0, "a"), (1, "b"), (1, "b"), (3, "c"), (5, "e")], Kind.STREAM_REPEAT, "b"),
        ([(0, "a"), (3, "c"), (1, "b"), (5, "e")], Kind.STREAM_REPEAT, "b"),
        ([(0, "a"), (1, "f"), (3, "c"), (5, "e")], Kind.STREAM_OTHER, "f"),
        ([(0, "a"), (1, "b"), (3, "c"), (5, "e"), (6, "x")], Kind.INVENTED, "x"),
    ],
)
def test_each_violation_of_a_stream_is_reported(given: list[tuple[int, str]], kind: Kind, message: str) -> None:
    found = stream()
    found.readers["whole"] = given
    assert [(v.kind, v.message) for v in found.violations(whole=["whole"])] == [(kind, message)]


def test_a_reader_that_began_late_or_is_behind_misses_nothing() -> None:
    found = stream()
    found.readers["whole"] = [(1, "b"), (3, "c")]
    assert found.violations() == []
