"""A publish call: what each message becomes, and what is said of one that is wrong."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.log.chunk import KIND_BYTES, KIND_JSON, KIND_MIXED, Messages
from backend_store.core.reorder.hlc import HybridClock, format_stamp
from backend_store.model import InvalidRequest, MessageTooLarge, QueueConfig, Stamp
from gateway.limits import HORIZON_MS_MAX
from gateway.publishing.encode import prepare, prepare_plain
from gateway.publishing.timing import time_us
from push.ports import Encoding, Prepared
from push.protocol import PublishMessage
from tests.unit.backend_store.core.log.test_chunk import stored

NOW_MS = 1_763_719_200_000
NOW = "2025-11-21T10:00:00Z"
PLAIN = QueueConfig()


def prepared(*messages: dict[str, Any], config: QueueConfig = PLAIN, encoding: Encoding = "json") -> Prepared:
    codec: Any = msgspec.json if encoding == "json" else msgspec.msgpack
    decoded = codec.decode(codec.encode(list(messages)), type=list[PublishMessage])
    return prepare(config, decoded, encoding, now_ms=NOW_MS, clock=HybridClock())


def messages_of(found: Prepared) -> Messages:
    (chunk,) = stored(found.blocks)
    return chunk.messages


def column(found: Prepared, name: str) -> list[Any] | None:
    return (messages_of(found).columns or {}).get(name)


def refused(*messages: dict[str, Any], config: QueueConfig = PLAIN, encoding: Encoding = "json") -> dict[str, str]:
    """What is said, by pointer."""
    with pytest.raises(InvalidRequest) as error:
        prepared(*messages, config=config, encoding=encoding)
    return {e.pointer: e.detail for e in error.value.errors}


# ------------------------------------------------------------------------------------------------------- bodies


def test_json_is_kept_as_it_was_sent_and_base64_becomes_bytes() -> None:
    raw = [PublishMessage(body=msgspec.Raw(b'{ "a": 1.0}')), PublishMessage(body_base64=b64encode(b"\0\xff").decode())]
    found = messages_of(prepare(PLAIN, raw, "json", now_ms=NOW_MS, clock=HybridClock()))
    assert (found.kind, found.bodies) == (KIND_MIXED, [b'{ "a": 1.0}', b"\0\xff"])
    assert found.columns == {"kind": [KIND_JSON, KIND_BYTES]}


def test_messagepack_values_become_json_and_bytes_stay_bytes() -> None:
    found = messages_of(prepared({"body": {"a": [1, None]}}, {"body": b"\0"}, encoding="msgpack"))
    assert found.bodies == [b'{"a":[1,null]}', b"\0"]
    assert messages_of(prepared({"body": b"\0"}, encoding="msgpack")).kind == KIND_BYTES


@pytest.mark.parametrize(
    ("message", "pointer"),
    [
        ({}, "body"),
        ({"body": 1, "body_base64": "AA=="}, "body"),
        ({"body_base64": "A"}, "body_base64"),
        ({"body_base64": "ü"}, "body_base64"),
    ],
)
def test_a_body_that_is_none_is_named(message: dict[str, Any], pointer: str) -> None:
    assert list(refused({"body": 1}, message)) == [f"/messages/1/{pointer}"]


@pytest.mark.parametrize("body", [{"a": b"\0"}, float("nan"), [float("inf")]])
def test_a_messagepack_value_without_a_json_form_is_named(body: Any) -> None:
    assert list(refused({"body": body}, encoding="msgpack")) == ["/messages/0/body"]


def test_body_and_headers_together_are_no_bigger_than_the_queue_takes() -> None:
    config = QueueConfig(max_message_bytes=10)
    prepared({"body": 12345678}, {"body": 1, "headers": {"abcd": "efghi"}}, config=config)
    for wrong in (
        {"body": 12345678901},
        {"body": 1, "headers": {"abcde": "fghij"}},
        {"body": 1, "headers": {"ü": "€" * 3}},
    ):
        with pytest.raises(
            MessageTooLarge,
            match=r"1 of 2 messages refused, nothing was accepted: the body and headers have 1[12] bytes",
        ):
            prepared({"body": 1}, wrong, config=config)
    with pytest.raises(MessageTooLarge, match="1 of 1 message refused"):
        prepare_plain(config, [b"x" * 11], "msgpack", now_ms=NOW_MS, clock=HybridClock())


@pytest.mark.parametrize("count", [0, 1001])
def test_a_call_has_1_to_1000_messages(count: int) -> None:
    assert list(refused(*[{"body": 1}] * count)) == ["/messages"]


# ------------------------------------------------------------------------------------------------------ columns


def test_what_a_producer_gives_is_kept() -> None:
    full = {
        "id": "i",
        "key": "k",
        "content_type": "text/x",
        "headers": {"h": "v"},
        "reply_to": "r",
        "correlation_id": "c",
    }
    found = prepared({"body": 1, **full}, {"body": 2})
    assert messages_of(found).columns == {name: [value, None] for name, value in full.items()}
    assert found.ids is not None and list(found.ids) == ["i", None] and found.order is None
    assert prepared({"body": 1, "headers": {}}, {"body": 2, "key": None}).ids is None
    assert messages_of(prepared({"body": 1, "headers": {}})).columns is None


@pytest.mark.parametrize("name", ["id", "key", "reply_to", "correlation_id", "content_type", "producer"])
def test_names_have_1_to_256_bytes(name: str) -> None:
    more = {"producer_seq": 1} if name == "producer" else {}
    for fits in ("x", "x" * 256, "ü" * 128, "😀" * 64):
        prepared({"body": 1, name: fits, **more})
    for wrong in ("", "x" * 257, "ü" * 129, "😀" * 65):
        assert list(refused({"body": 1, name: wrong, **more})) == [f"/messages/0/{name}"]


def test_headers_have_bounds() -> None:
    prepared({"body": 1, "headers": {f"{n}": "x" for n in range(64)}})
    assert list(refused({"body": 1, "headers": {f"{n}": "x" for n in range(65)}})) == ["/messages/0/headers"]
    assert "bytes, not 16385" in refused({"body": 1, "headers": {"a": "x" * 16384}})["/messages/0/headers"]


def test_each_wrong_field_of_each_message_is_named_in_their_order() -> None:
    errors = refused({"body": 1, "id": ""}, {"body": 2}, {"key": "", "ttl_ms": 0})
    assert list(errors) == ["/messages/0/id", "/messages/2/body", "/messages/2/key", "/messages/2/ttl_ms"]


# ---------------------------------------------------------------------------------------- priority, due, expiry


def test_a_priority_is_one_of_the_queues() -> None:
    config = QueueConfig(priorities=3)
    found = prepared({"body": 0}, {"body": 2, "priority": 2}, {"body": 1, "priority": 1}, {"body": 3}, config=config)
    assert [(block.priority, block.count) for block in found.blocks] == [(0, 2), (2, 1), (1, 1)]
    assert found.order == [0, 3, 1, 2]
    for wrong in (-1, 3, 10**15):
        errors = refused({"body": 1}, {"body": 1, "priority": wrong}, config=config)
        assert errors == {"/messages/1/priority": f"priority must be between 0 and 2 in this queue, not {wrong}"}
    assert prepared({"body": 1, "priority": 2}, config=config).order is None


def test_a_message_for_later_is_due_then() -> None:
    later = format_stamp((NOW_MS + 90_000) * 1000)
    for message in ({"delay_ms": 90_000}, {"deliver_at": later}, {"deliver_at": "2025-11-21T11:01:30+01:00"}):
        (block,) = prepared({"body": 1, **message}).blocks
        assert block.due_ms == NOW_MS + 90_000


@pytest.mark.parametrize("message", [{}, {"delay_ms": 0}, {"deliver_at": NOW}, {"deliver_at": "1999-01-01T00:00:00Z"}])
def test_a_message_whose_time_has_come_is_due_at_once(message: dict[str, Any]) -> None:
    (block,) = prepared({"body": 1, **message}).blocks
    assert block.due_ms == 0


def test_a_message_is_never_due_before_its_time() -> None:
    (block,) = prepared({"body": 1, "deliver_at": "2025-11-21T10:00:01.000001Z"}).blocks
    assert block.due_ms == NOW_MS + 1001


def test_a_queues_delay_is_for_messages_that_say_nothing() -> None:
    config = QueueConfig(delay_ms=500)
    given = [{"body": 0}, {"body": 1, "delay_ms": 0}, {"body": 2, "delay_ms": 7}, {"body": 3, "deliver_at": NOW}]
    found = prepared(*given, config=config)
    assert [(b.due_ms and b.due_ms - NOW_MS, b.count) for b in found.blocks] == [(500, 1), (0, 2), (7, 1)]
    assert found.order == [0, 1, 3, 2]
    (block,) = prepare_plain(config, [b"1", b"2"], "json", now_ms=NOW_MS, clock=HybridClock()).blocks
    assert block.due_ms == NOW_MS + 500


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay_ms": -1},
        {"delay_ms": HORIZON_MS_MAX + 1},
        {"deliver_at": "soon"},
        {"deliver_at": "2025-11-21"},
        {"deliver_at": "2025-11-21T10:00:00"},
        {"deliver_at": "9999-01-01T00:00:00Z"},
        {"ttl_ms": 0},
        {"ttl_ms": HORIZON_MS_MAX + 1},
        {"timestamp": "yesterday"},
        {"timestamp": "1969-12-31T23:59:59Z"},
        {"timestamp": "2025-02-30T00:00:00.000001Z"},
    ],
)
def test_times_out_of_range_are_named(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    assert list(refused({"body": 1, name: None}, {"body": 1, **wrong})) == [f"/messages/1/{name}"]


def test_a_message_has_a_delay_or_a_time() -> None:
    assert list(refused({"body": 1, "delay_ms": 1, "deliver_at": NOW})) == ["/messages/0/deliver_at"]


def test_a_message_expires_after_the_shorter_of_its_own_and_the_queues_time() -> None:
    config = QueueConfig(message_ttl_ms=1_000)
    found = prepared({"body": 0}, {"body": 1, "ttl_ms": 10}, {"body": 2, "ttl_ms": 5_000}, config=config)
    assert column(found, "exp") == [NOW_MS + 1_000, NOW_MS + 10, NOW_MS + 1_000]
    (block,) = found.blocks
    assert block.traits is not None and list(block.traits.expires or []) == column(found, "exp")
    assert column(prepared({"body": 0}, {"body": 1, "ttl_ms": 10}), "exp") == [0, NOW_MS + 10]
    plain = prepare_plain(config, [b"1", b"2"], "json", now_ms=NOW_MS, clock=HybridClock())
    assert column(plain, "exp") == [NOW_MS + 1_000] * 2


def test_a_delayed_messages_life_begins_when_it_is_due() -> None:
    assert column(prepared({"body": 1, "delay_ms": 100, "ttl_ms": 10}), "exp") == [NOW_MS + 110]
    config = QueueConfig(delay_ms=100, message_ttl_ms=10)
    assert column(prepared({"body": 1}, config=config), "exp") == [NOW_MS + 110]


@pytest.mark.parametrize("wrong", [{"delay_ms": 1}, {"deliver_at": NOW}, {"ttl_ms": 1}])
def test_messages_of_a_stream_do_not_wait_and_do_not_expire(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    stream = QueueConfig(kind="stream")
    errors = refused({"body": 1, **wrong}, config=stream)
    assert list(errors) == [f"/messages/0/{name}"] and "a stream" in errors[f"/messages/0/{name}"]
    prepared({"body": 1, "delay_ms": 0}, config=stream)


@pytest.mark.parametrize("sequencing", ["producer", "clock"])
@pytest.mark.parametrize("wrong", [{"delay_ms": 1000}, {"deliver_at": "2030-01-01T00:00:00Z"}, {"deliver_at": NOW}])
def test_messages_of_a_queue_that_sorts_do_not_wait_for_a_time(sequencing: Any, wrong: dict[str, Any]) -> None:
    (name,) = wrong
    sorts = QueueConfig(sequencing=sequencing)
    errors = refused({"body": 1, **SDK}, {"body": 1, **SDK, **wrong}, config=sorts)
    assert list(errors) == [f"/messages/1/{name}"]
    assert f"sequencing: {sequencing}" in errors[f"/messages/1/{name}"] and f"remove {name}" in errors.popitem()[1]
    prepared({"body": 1, **SDK, "delay_ms": 0}, config=sorts)


def test_a_life_that_ends_before_a_messages_place_is_known_is_refused() -> None:
    sorts = QueueConfig(sequencing="clock", sort_window_ms=2_000)
    for ttl_ms in (1, 2_000):
        errors = refused({"body": 1, "ttl_ms": 5_000}, {"body": 1, "ttl_ms": ttl_ms}, config=sorts)
        assert list(errors) == ["/messages/1/ttl_ms"] and "more than 2000" in errors["/messages/1/ttl_ms"]
    assert column(prepared({"body": 1, "ttl_ms": 2_001}, config=sorts), "exp") == [NOW_MS + 2_001]
    prepared({"body": 1, **SDK, "ttl_ms": 1}, config=QueueConfig(sequencing="producer"))


# ------------------------------------------------------------------------------------------------- stamps, order

SDK = {"producer": "p", "producer_seq": 4, "timestamp": "2025-11-21T10:00:00.000007Z"}


@given(st.integers(0, 4_102_444_800_000_000))
def test_a_time_is_read_as_it_is_written(us: int) -> None:
    assert time_us(format_stamp(us)) == us
    seconds, fraction = divmod(us, 1_000_000)
    assert time_us(f"{format_stamp(seconds * 1_000_000)[:19]}.{fraction:06d}Z") == us


@pytest.mark.parametrize(
    "text", ["2025-11-21T10:00:00.٣٣٣٣٣٣Z", "2025-W47-5T10:00:00.000000Z", "2025-11-21T10:00:00.00000xZ"]
)
def test_what_only_looks_like_a_time_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        time_us(text)


def test_a_queue_in_arrival_order_keeps_numbers_and_times_and_does_not_sort_by_them() -> None:
    found = prepared({"body": 1, **SDK}, {"body": 2})
    assert messages_of(found).columns == {"pr": ["p", None], "ps": [4, None], "ts": [NOW_MS * 1000 + 7, None]}
    assert found.blocks[0].traits is None


def test_the_leader_of_a_queue_that_sorts_is_told_the_stamps() -> None:
    found = prepared({"body": 1, **SDK}, config=QueueConfig(sequencing="producer"))
    (block,) = found.blocks
    assert block.traits is not None and block.traits.stamps == [Stamp(NOW_MS * 1000 + 7, "p", 4)]


@pytest.mark.parametrize(
    ("message", "pointer"),
    [
        ({"producer": "p"}, "producer_seq"),
        ({"producer_seq": 1}, "producer"),
        ({"producer": "p", "producer_seq": 0}, "producer_seq"),
    ],
)
def test_a_producer_and_its_number_go_together(message: dict[str, Any], pointer: str) -> None:
    assert list(refused({"body": 1, **message})) == [f"/messages/0/{pointer}"]


def test_a_queue_ordered_by_producer_takes_numbered_messages_only_and_says_how() -> None:
    config = QueueConfig(sequencing="producer")
    errors = refused({"body": 1, "producer": "p", "producer_seq": 1}, {"body": 2}, config=config)
    assert list(errors) == ["/messages/1/producer"] and "`producer_seq`" in errors["/messages/1/producer"]
    with pytest.raises(InvalidRequest, match="2 of 2 messages refused"):
        prepare_plain(config, [b"1", b"2"], "json", now_ms=NOW_MS, clock=HybridClock())


def test_the_gateway_gives_a_time_to_messages_of_a_clock_queue_that_have_none() -> None:
    config = QueueConfig(sequencing="clock")
    base = NOW_MS * 1000
    assert column(prepared({"body": 1}, {"body": 2}, config=config), "ts") == [base, base + 1]
    mixed = prepared({"body": 1}, {"body": 2, "timestamp": "2025-11-21T10:00:00.000400Z"}, config=config)
    times = column(mixed, "ts")
    assert times is not None and times[1] == base + 400 and times[0] > base + 400
    plain = prepare_plain(config, [b"1", b"2"], "json", now_ms=NOW_MS, clock=HybridClock())
    assert plain.blocks[0].traits is not None
    assert plain.blocks[0].traits.stamps == [Stamp(base, "", 0), Stamp(base + 1, "", 0)]


# ------------------------------------------------------------------------------------------------------- dedupe


def hashes(*messages: dict[str, Any], config: QueueConfig, encoding: Encoding = "json") -> list[bytes | None]:
    return [
        one
        for block in prepared(*messages, config=config, encoding=encoding).blocks
        for one in ((block.traits.ids if block.traits else None) or [None] * block.count)
    ]


BY_ID = QueueConfig(dedupe="id")
BY_CONTENT = QueueConfig(dedupe="content")
ONCE = QueueConfig(delivery="exactly_once", dedupe="id")


def test_a_message_is_known_by_its_id_where_the_queue_drops_repeated_ids() -> None:
    first, again, other, none = hashes(
        {"body": 1, "id": "a"}, {"body": 2, "id": "a"}, {"body": 1, "id": "b"}, {"body": 1}, config=BY_ID
    )
    assert first == again != other and none is None and first is not None and len(first) == 16
    assert hashes({"body": 1, "id": "a"}, config=PLAIN) == [None]


def test_a_message_is_known_by_its_content_where_the_queue_drops_repeated_content() -> None:
    first, again, other, typed, json, base64 = hashes(
        {"body": "x", "id": "a", "headers": {"a": "b"}},
        {"body": "x", "id": "b", "key": "k"},
        {"body": "y", "id": "a"},
        {"body": "x", "content_type": "text/x"},
        {"body": "x", "content_type": "application/json"},
        {"body_base64": b64encode(b'"x"').decode()},
        config=BY_CONTENT,
    )
    assert first == again == json and len({first, other, typed, base64}) == 4
    plain = prepare_plain(BY_CONTENT, [b'"x"'], "json", now_ms=NOW_MS, clock=HybridClock())
    assert plain.blocks[0].traits is not None and plain.blocks[0].traits.ids == [first]


def test_exactly_once_needs_an_id_or_a_number_and_says_so() -> None:
    named, numbered, again, other = hashes(
        {"body": 1, "id": "a", "producer": "p", "producer_seq": 1},
        {"body": 1, "producer": "p", "producer_seq": 1},
        {"body": 2, "producer": "p", "producer_seq": 1},
        {"body": 1, "producer": "p1", "producer_seq": 1},
        config=ONCE,
    )
    assert numbered == again is not None and len({named, numbered, other}) == 3
    assert named == hashes({"body": 1, "id": "a"}, config=BY_ID)[0]
    errors = refused({"body": 1, "id": "a"}, {"body": 2}, config=ONCE)
    assert list(errors) == ["/messages/1/id"] and "`producer_seq`" in errors["/messages/1/id"]
    with pytest.raises(InvalidRequest, match="2 of 2 messages refused"):
        prepare_plain(ONCE, [b"1", b"2"], "json", now_ms=NOW_MS, clock=HybridClock())


# ------------------------------------------------------------------------------------------------- bodies alone


@given(st.lists(st.integers(), min_size=1, max_size=200))
def test_bodies_alone_make_the_same_blocks_as_messages_that_are_only_bodies(values: list[int]) -> None:
    raw = [msgspec.Raw(msgspec.json.encode(value)) for value in values]
    plain = prepare_plain(PLAIN, raw, "json", "00-ab-cd-01", now_ms=NOW_MS, clock=HybridClock())
    messages = [PublishMessage(body=body) for body in raw]
    general = prepare(PLAIN, messages, "json", "00-ab-cd-01", now_ms=NOW_MS, clock=HybridClock())
    assert plain == general
