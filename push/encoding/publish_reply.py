"""The answer to a publish: where each message is stored, in the order of the call, as JSON or MessagePack.

In nearly every answer all messages are new: then each costs one `%`, wherever it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from backend_store.client import NumberedNames, message_id
from backend_store.model import Offset, Original, Published, PushqError, QueueConfig
from push.encoding.deliveries import array_header, encode
from push.encoding.numbered_names import BY_COLUMNS_FROM, numbered_rows, placed_rows, placed_rows_json
from push.encoding.rows import escaped, pack, placed_id
from push.ports import Encoding, Prepared
from push.problems import problem

_OK_JSON = b'{"type":"ok","id":%b,"messages":%b,"durability":{"fsynced":%b,"replicas":%d},%b}'
_OK_PACK = b"\x86" + pack("type") + pack("ok") + pack("durability")
_KEY_ID = pack("id")
_KEY_MESSAGES = pack("messages")
_BOOLEANS = (b"false", b"true")


def refusal(published: Published) -> PushqError | None:
    """The error of the whole call if each of its messages was refused; else None."""
    others = published.others
    if not others or len(others) < published.count:
        return None
    errors = [other for other in others.values() if isinstance(other, PushqError)]
    return errors[0] if len(errors) == published.count else None


def parts(published: Published, prepared: Prepared, counts: Sequence[int]) -> list[Published]:
    """Splits the result of calls that were stored as one into one result a call; `counts`: each call's messages."""
    places, others = _places(published, prepared), published.others or {}
    found: list[Published] = []
    first = 0
    for count in counts:
        own = {n: others[first + n] for n in range(count) if first + n in others}
        base = Offset(places[first][1])
        one = msgspec.structs.replace(
            published,
            base=base,
            count=count,
            bases=None,
            counts=None,
            others=own or None,
            places=places[first : first + count],
        )
        found.append(one)
        first += count
    return found


class Run(NamedTuple):
    """Messages at consecutive offsets, in the order of the call."""

    partition: int
    base: int
    messages: int


def runs_of_call(published: Published, prepared: Prepared) -> tuple[Run, ...] | None:
    """Where the messages are stored, in the order of the call; a duplicate where the first one is. None if a message
    has no place."""
    is_plain = published.places is None and published.bases is None and not published.others and prepared.order is None
    if is_plain or published.is_repeat:
        return (Run(published.partition, published.base, published.count),)
    found = _places(published, prepared)
    for number, other in (published.others or {}).items():
        if isinstance(other, PushqError) or other.offset == -1:
            return None
        partition = published.partition if other.partition is None else other.partition
        found[number if prepared.order is None else prepared.order[number]] = partition, other.offset
    runs: list[Run] = []
    for partition, offset in found:
        last = runs[-1] if runs else None
        if last is not None and last.partition == partition and last.base + last.messages == offset:
            runs[-1] = last._replace(messages=last.messages + 1)
        else:
            runs.append(Run(partition, offset, 1))
    return tuple(runs)


def repeated_call(runs: Sequence[Run], prepared: Prepared, *, fsynced: bool, replicas: int) -> Published:
    """The answer to a repeated call whose messages are all stored, from their places in the order of the call."""
    if len(runs) == 1:
        partition, base, count = runs[0]
        return Published(partition, Offset(base), count, fsynced=fsynced, replicas=replicas, is_repeat=True)
    places = [(run.partition, run.base + number) for run in runs for number in range(run.messages)]
    if prepared.order is not None:  # the order of this call's blocks, which may differ from the first call's
        places = [places[number] for number in prepared.order]
    return Published(
        places[0][0],
        Offset(places[0][1]),
        len(places),
        fsynced=fsynced,
        replicas=replicas,
        others={number: Original(seq, partition) for number, (partition, seq) in enumerate(places)},
        places=places,
    )


def published_messages_json(published: Published, prepared: Prepared) -> bytes:
    """The JSON array of `{id, seq, partition, duplicate, error?}`."""
    if published.others:
        return encode(_rows(published, prepared), "json")
    if published.places is not None:
        return b"[%b]" % b",".join(_scattered(published, prepared, "json"))
    offsets = _offsets(published, prepared)
    if isinstance(prepared.ids, NumberedNames):
        name = b'"%b%%03d"' % _literal(prepared.ids.prefix.encode())
        template = _json_row(published.partition, name, published.is_repeat)
        return b"[%b]" % b",".join([template % row for row in zip(prepared.ids.numbers, offsets, strict=True)])
    template = _json_template(published.partition, prepared.ids is None, published.is_repeat)
    if prepared.ids is None and isinstance(offsets, range) and len(offsets) >= BY_COLUMNS_FROM:
        return b"[%b]" % placed_rows_json(template, offsets)
    if prepared.ids is None:
        return b"[%b]" % b",".join([template % (n, n) for n in offsets])
    ids = _ids(published, prepared, offsets)
    return b"[%b]" % b",".join([template % (encode(i, "json"), n) for i, n in zip(ids, offsets, strict=True)])


@lru_cache
def queue_words(sequencing: str, dedupe: str, encoding: Encoding) -> bytes:
    """What an answer says about the queue, as members of a map: it tells a producer what its next messages need."""
    words = {"sequencing": sequencing, "dedupe": dedupe}
    if encoding == "json":
        return encode(words, "json")[1:-1]
    return b"".join(pack(name) + pack(word) for name, word in words.items())


def published_ok(
    request_id: int | str, published: Published, prepared: Prepared, config: QueueConfig, encoding: Encoding
) -> bytes:
    """The `ok` of a publish frame."""
    if encoding == "json":
        words = queue_words(config.sequencing, config.dedupe, encoding)
        messages = published_messages_json(published, prepared)
        durability = _BOOLEANS[published.fsynced], published.replicas
        return _OK_JSON % (encode(request_id, "json"), messages, *durability, words)
    head = _pack_head(published.fsynced, published.replicas, config.sequencing, config.dedupe)
    return b"".join([head, pack(request_id), _KEY_MESSAGES, _pack_messages(published, prepared)])


def published_oks(
    request_ids: Sequence[int | str | None],
    counts: Sequence[int],
    published: Published,
    prepared: Prepared,
    config: QueueConfig,
    encoding: Encoding,
) -> list[bytes]:
    """The `ok`s of publish frames that were stored as one, with `counts` messages each; none for a frame without an
    id."""
    is_plain = published.bases is None and published.places is None and not published.others
    if not is_plain or prepared.ids is not None or prepared.order is not None:
        owns = parts(published, prepared, counts)
        asked = [(i, own) for i, own in zip(request_ids, owns, strict=True) if i is not None]
        return [published_ok(i, own, prepared, config, encoding) for i, own in asked]
    template = _ok_of_one(
        published.partition, published.fsynced, published.replicas, config.sequencing, config.dedupe, encoding
    )
    write_id = _json_id if encoding == "json" else pack
    found: list[bytes] = []
    offset = published.base
    for request_id, count in zip(request_ids, counts, strict=True):
        if request_id is None:
            pass
        elif count == 1:
            place = offset if encoding == "json" else offset.to_bytes(8, "big")
            found.append(template % (write_id(request_id), offset, place))
        else:
            own = msgspec.structs.replace(published, base=offset, count=count)
            found.append(published_ok(request_id, own, prepared, config, encoding))
        offset = Offset(offset + count)
    return found


def _json_id(request_id: int | str) -> bytes:
    return b"%d" % request_id if type(request_id) is int else encode(request_id, "json")


@lru_cache
def _ok_of_one(partition: int, fsynced: bool, replicas: int, sequencing: str, dedupe: str, encoding: Encoding) -> bytes:
    """Template for the `ok` of a frame with one message; takes the request's id, and the message's offset as its row
    does."""
    if encoding == "json":
        words = _literal(queue_words(sequencing, dedupe, encoding))
        head, tail = b'{"type":"ok","id":%b,"messages":[', b'],"durability":{"fsynced":%b,"replicas":%d},%b}'
        return head + _json_template(partition, placed=True) + tail % (_BOOLEANS[fsynced], replicas, words)
    head = _literal(_pack_head(fsynced, replicas, sequencing, dedupe)) + b"%b"
    return head + _literal(_KEY_MESSAGES + array_header(1)) + _pack_template(partition, placed=True)


@lru_cache
def _pack_head(fsynced: bool, replicas: int, sequencing: str, dedupe: str) -> bytes:
    """An answer up to the request's id: the common part of all answers of a queue."""
    durability = pack({"fsynced": fsynced, "replicas": replicas})
    return b"".join([_OK_PACK, durability, queue_words(sequencing, dedupe, "msgpack"), _KEY_ID])


def _pack_messages(published: Published, prepared: Prepared) -> bytes:
    if published.others:
        return pack(_rows(published, prepared))
    if published.places is not None:
        return array_header(published.count) + b"".join(_scattered(published, prepared, "msgpack"))
    offsets, head = _offsets(published, prepared), array_header(published.count)
    if isinstance(prepared.ids, NumberedNames):
        return head + numbered_rows(published.partition, prepared.ids, offsets, is_repeat=published.is_repeat)
    if prepared.ids is None and isinstance(offsets, range) and len(offsets) >= BY_COLUMNS_FROM:
        return head + placed_rows(published.partition, offsets, is_repeat=published.is_repeat)
    template = _pack_template(published.partition, prepared.ids is None, published.is_repeat)
    if prepared.ids is None:
        return head + b"".join([template % (n, n.to_bytes(8, "big")) for n in offsets])
    ids = _ids(published, prepared, offsets)
    return head + b"".join([template % (pack(i), n.to_bytes(8, "big")) for i, n in zip(ids, offsets, strict=True)])


def _scattered(published: Published, prepared: Prepared, encoding: Encoding) -> list[bytes]:
    """The rows of new messages in several partitions."""
    places, ids = _places(published, prepared), prepared.ids
    template = _json_template if encoding == "json" else _pack_template
    templates = {partition: template(partition, ids is None) for partition in {partition for partition, _ in places}}
    if ids is not None:
        names = [given or message_id(*place) for given, place in zip(ids, places, strict=True)]
        firsts: Sequence[bytes | int] = [encode(name, "json") if encoding == "json" else pack(name) for name in names]
    else:
        firsts = [offset for _, offset in places]
    if encoding == "json":
        return [templates[p] % (first, offset) for first, (p, offset) in zip(firsts, places, strict=True)]
    return [templates[p] % (first, n.to_bytes(8, "big")) for first, (p, n) in zip(firsts, places, strict=True)]


@lru_cache
def _json_template(partition: int, placed: bool, is_repeat: bool = False) -> bytes:
    return _json_row(partition, b'"%d-%%012x"' % partition if placed else b"%b", is_repeat)


def _json_row(partition: int, name: bytes, is_repeat: bool) -> bytes:
    """A row template that takes what `name` takes, and the offset."""
    end = b'"partition":%d,"duplicate":%b}' % (partition, _BOOLEANS[is_repeat])
    return b'{"id":' + name + b',"seq":%d,' + end


@lru_cache
def _pack_template(partition: int, placed: bool, is_repeat: bool = False) -> bytes:
    return _pack_row(partition, placed_id(partition) if placed else b"%b", is_repeat)


def _pack_row(partition: int, name: bytes, is_repeat: bool) -> bytes:
    """A row template that takes what `name` takes, and the offset in eight bytes."""
    parts = [b"\x84", escaped("id"), name, escaped("seq"), b"\xcf%b", escaped("partition"), escaped(partition)]
    return b"".join([*parts, escaped("duplicate"), escaped(is_repeat)])


def _literal(text: bytes) -> bytes:
    return text.replace(b"%", b"%%")


def _offsets(published: Published, prepared: Prepared) -> list[int] | range:
    """Each message's offset, in the order of the call."""
    if published.is_repeat:
        return range(published.base, published.base + published.count)
    if published.bases is None:
        found: list[int] | range = range(published.base, published.base + published.count)
    else:
        counts = published.counts or [block.count for block in prepared.blocks]
        found = [
            offset for base, count in zip(published.bases, counts, strict=True) for offset in range(base, base + count)
        ]
    if prepared.order is None:
        return found
    placed = [0] * len(found)
    for number, offset in zip(prepared.order, found, strict=True):
        placed[number] = offset
    return placed


def _ids(published: Published, prepared: Prepared, offsets: list[int] | range) -> list[str]:
    assert prepared.ids is not None
    return [given or message_id(published.partition, n) for given, n in zip(prepared.ids, offsets, strict=True)]


# -------------------------------------------------------------------------------------- repeated and refused ones


def _rows(published: Published, prepared: Prepared) -> list[dict[str, Any]]:
    others, order = published.others or {}, prepared.order
    by_number = others if order is None else {order[place]: other for place, other in others.items()}
    return [
        _row(*place, prepared.ids[number] if prepared.ids else None, by_number.get(number))
        for number, place in enumerate(_places(published, prepared))
    ]


def _places(published: Published, prepared: Prepared) -> list[tuple[int, int]]:
    """(partition, offset) of each message, in the order of the call."""
    if published.places is None:
        return [(published.partition, offset) for offset in _offsets(published, prepared)]
    if prepared.order is None:
        return list(published.places)
    by_number = dict(zip(prepared.order, published.places, strict=True))
    return [by_number[number] for number in range(published.count)]


def _row(partition: int, offset: int, given: str | None, other: Original | PushqError | None) -> dict[str, Any]:
    """One row. A duplicate has the place of the first message; for a repeated `producer_seq` that place may not be
    known."""
    if isinstance(other, Original) and other.partition is not None:
        partition = other.partition
    if isinstance(other, PushqError):
        return {"id": given, "partition": partition, "duplicate": False, "error": problem(other)}
    seq: int | None = offset if other is None else other.offset
    if seq == -1:
        seq = None
    name = given if given is not None or seq is None else message_id(partition, seq)
    return {"id": name, "seq": seq, "partition": partition, "duplicate": other is not None}
