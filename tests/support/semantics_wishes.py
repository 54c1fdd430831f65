"""Strategies of the model of a queue's settings: valid combinations of settings, and messages that use them."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from backend_store.core.log.chunk import KIND_JSON, Draft
from backend_store.model import Block, Published, PushqError, QueueConfig, Stamp
from gateway.queues.rules import broken_rules
from tests.support.semantics_facts import Message


@st.composite
def configs(draw: st.DrawFn) -> QueueConfig:
    """Any valid combination of settings."""
    given: dict[str, Any] = {"sequencing": draw(st.sampled_from(["arrival", "arrival", "producer", "clock"]))}
    given["ordering"] = draw(st.sampled_from(["best_effort", "best_effort", "strict"]))
    if given["sequencing"] != "arrival":
        given["sort_window_ms"] = draw(st.sampled_from([50, 300]))
        given["late_messages"] = draw(st.sampled_from(["late_queue", "head"]))
    elif given["ordering"] == "best_effort":
        given["priorities"] = draw(st.integers(1, 3))
    if given["sequencing"] == "arrival":
        given["delay_ms"] = draw(st.sampled_from([0, 0, 0, 50]))
    given["message_ttl_ms"] = draw(st.sampled_from([None, None, None, 600]))
    if draw(st.booleans()):
        given["dead_letter_queue"] = None
    if given["ordering"] == "best_effort" and draw(st.integers(0, 4)) == 0:
        given["delivery"] = "at_most_once"
    else:
        given["lease_mode"] = draw(st.sampled_from(["memory", "replicated"]))
        if "dead_letter_queue" not in given:
            given["max_attempts"] = draw(st.integers(1, 3))
        if draw(st.booleans()):
            given["retry_backoff_ms"] = draw(st.sampled_from([10, 150]))
            given["retry_backoff_ms_max"] = draw(st.sampled_from([None, 200]))
    if draw(st.booleans()):
        given["dedupe"] = "id"
        given["dedupe_window_ms"] = draw(st.sampled_from([100, 1000]))
    if draw(st.integers(0, 2)) == 0:
        given["max_messages"] = draw(st.integers(1, 12))
        dead_letters = [] if "dead_letter_queue" in given else ["dead_letter_oldest", "dead_letter_newest"]
        given["overflow"] = draw(st.sampled_from(["reject", "drop_oldest", *dead_letters]))
    config = QueueConfig(**given)
    assert not list(broken_rules(config, ()))
    return config


class Wish(NamedTuple):
    """A producer's wishes for a message, as far as the queue's config supports them."""

    priority: int
    key: str | None
    delay_ms: int
    ttl_ms: int | None
    id: bytes | None
    producer: str
    step: int
    """Distance of its number from the next one."""
    skew_ms: int
    size: int


wishes = st.builds(
    Wish,
    priority=st.integers(0, 2),
    key=st.sampled_from([None, "a", "b", "c"]),
    delay_ms=st.sampled_from([0, 0, 0, 0, 20, 100, 700]),
    ttl_ms=st.sampled_from([None, None, None, None, 30, 300, 900]),
    id=st.sampled_from([None, None, b"a" * 16, b"b" * 16, b"c" * 16]),
    producer=st.sampled_from(["", "p", "p", "q"]),
    step=st.sampled_from([0, 0, 0, 0, 1, 2, -1, -2]),
    skew_ms=st.sampled_from([0, 0, 0, -5, -50, -400, -2000, 50, 400, 700]),
    size=st.sampled_from([0, 0, 0, 3, 200, 17_000]),
)


class Author:
    """Creates messages from wishes, and numbers them if the queue requires that."""

    def __init__(self, config: QueueConfig):
        self._config = config
        self._published = 0
        self._numbers: dict[str, int] = {}
        """The next number of each producer."""

    def message(self, wish: Wish, now_ms: int) -> Message:
        config = self._config
        m = Message(self._published + 1, priority=wish.priority % config.priorities)
        self._published += 1
        m.key = wish.key
        m.id = wish.id if config.dedupe == "id" else None
        if config.sequencing == "arrival" and (delay_ms := wish.delay_ms or config.delay_ms):
            m.scheduled_ms = now_ms + delay_ms
        lives_ms = wish.ttl_ms if wish.ttl_ms is not None else config.message_ttl_ms
        m.expires_ms = now_ms + lives_ms if lives_ms else 0
        if config.sequencing == "producer" and wish.producer:
            number = self._numbers.get(wish.producer, 1)
            m.stamp = Stamp(0, wish.producer, max(1, number + wish.step))
            self._numbers[wish.producer] = max(number, m.stamp.number + 1)
        elif config.sequencing == "clock" and wish.producer:
            m.stamp = Stamp((now_ms + wish.skew_ms) * 1000, wish.producer, 0)
        return m


def draft_of(m: Message, size: int) -> Draft:
    columns: dict[str, Any] = {"key": m.key} if m.key is not None else {}
    body = b"%d" % m.number + b" " * size
    id_ = f"m{m.number}"
    return Draft(KIND_JSON, body, {**columns, "id": id_}, m.priority, m.scheduled_ms, m.expires_ms, m.stamp, m.id)


class Call(NamedTuple):
    """A pending publish, with its messages in block order."""

    messages: list[Message]
    blocks: list[Block]
    answers: list[Any]


def offsets(call: Call) -> list[Any]:
    """The result of each message of a call: its offset, its original, or the reason for its refusal."""
    (answer,) = call.answers
    count = len(call.messages)
    if isinstance(answer, PushqError):
        return [answer] * count
    assert isinstance(answer, Published) and answer.count == count
    flat: list[Any] = []
    base = int(answer.base)
    for number, block in enumerate(call.blocks):
        first = base if answer.bases is None else answer.bases[number]
        flat += range(first, first + block.count)
        base += block.count
    for index, other in (answer.others or {}).items():
        flat[index] = other
    return flat
