"""HTTP handlers for partitions: their first and next offsets, and the messages between two offsets of one.

For batch readers that keep their own offsets, such as Spark's: see `docs/how-to/spark.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from backend_store.client import Chunk, CorruptEntry, Queue, kind_of, offsets_of, read_range
from backend_store.model import Conflict, Forbidden
from gateway.api.http import Answer, Call, encode_json, integer, json_answer
from gateway.api.peek import SEQ_MAX
from gateway.api.shapes.bodies import OffsetsView, PartitionOffsetsView
from gateway.context import Gateway
from gateway.limits import RANGE_BYTES_MAX, RANGE_MESSAGES_MAX
from push.encoding.deliveries import numbered_messages
from push.operations.checks import field as invalid_field

log = structlog.get_logger("pushq.offsets")

RANGE: Final = ("from", "until", "limit", "uid")
PARTITION_DIGITS_MAX: Final = 5

_PAGE: Final = b'{"uid":%b,"epoch":%d,"first":%d,"next":%d,"messages":[%b]}'


def uid_of(queue: Queue) -> str:
    """The queue's uid as text, because other stores may identify queues by more than a number."""
    return str(queue.uid)


async def get(gateway: Gateway, call: Call) -> Answer:
    name, access = call.params[0], call.principal.access
    queue = gateway.store.queue(call.principal.tenant, name)
    if not access.may("view", name) and not access.may("consume", name):
        raise Forbidden(f"the key {call.principal.name!r} needs the scope view:{name} or consume:{name}")
    call.query()
    rows = [PartitionOffsetsView(*row) for row in offsets_of(queue)]
    return json_answer(OffsetsView(queue.name, uid_of(queue), kind_of(queue), rows))


async def read(gateway: Gateway, call: Call) -> Answer:
    queue = gateway.desk.queue(call.principal, call.params[0], "consume")
    query = call.query(*RANGE)
    if kind_of(queue) == "work":
        detail = f"{queue.name!r} is a work queue, which cannot be read by offset; use receive or subscribe"
        raise invalid_field("/path/queue", detail)
    if query.get("uid", uid_of(queue)) != uid_of(queue):
        detail = f"queue {queue.name!r} was recreated: its uid is {uid_of(queue)}, not {query['uid'][:50]!r}"
        raise Conflict(detail)
    start = integer(query, "from", 0, low=0, high=SEQ_MAX)
    limit = integer(query, "limit", RANGE_MESSAGES_MAX, low=1, high=RANGE_MESSAGES_MAX)
    assert start is not None
    assert limit is not None
    page = await read_range(
        queue,
        _partition(call.params[1]),
        start,
        integer(query, "until", None, low=0, high=SEQ_MAX),
        messages_max=limit,
        bytes_max=RANGE_BYTES_MAX,
        render=_rendered,
    )
    call.count(len(page.messages))
    at = page.at
    messages = b",".join(page.messages)
    return Answer(200, _PAGE % (encode_json(uid_of(queue)), at.epoch, at.first, page.next, messages))


def _partition(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > PARTITION_DIGITS_MAX:
        raise invalid_field("/path/partition", f"partition must be a whole number such as 0, not {text[:50]!r}")
    return int(text)


def _rendered(chunk: Chunk, numbers: Sequence[int]) -> list[bytes]:
    try:
        return numbered_messages(chunk, numbers)
    except CorruptEntry as error:
        # Its checksum is right, so it was written like this: readers must be able to pass it.
        log.error("messages cannot be read", partition=chunk.partition, offset=chunk.base, reason=str(error))
        return []
