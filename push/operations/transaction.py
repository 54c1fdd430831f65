"""Transactions: an ack that publishes, checked and answered alike on every transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from backend_store.client import Queue, SettledAndPublished
from backend_store.model import MESSAGES_PER_REQUEST_MAX, Published
from push.encoding.publish_reply import published_messages_json
from push.limits import PUBLISHES_PER_ACK_MAX
from push.operations.checks import field
from push.operations.publish_gate import check_publish
from push.ports import Encoding, Prepared, Principal
from push.protocol import AckPublish

if TYPE_CHECKING:
    from push.delivery.hub import Hub


class Output:
    """Messages for one queue, prepared to be stored with the ack."""

    __slots__ = ("prepared", "queue")

    def __init__(self, queue: Queue, prepared: Prepared):
        self.queue = queue
        self.prepared = prepared


def outputs(
    hub: Hub,
    principal: Principal,
    source: Queue,
    receipts: Sequence[str],
    publishes: Sequence[AckPublish],
    encoding: Encoding,
) -> list[Output]:
    """Checks and prepares what an ack publishes. Raises what a publish raises, and `InvalidRequest` for a queue that
    cannot share a transaction with `source`."""
    if not receipts:
        raise field(
            "/receipts",
            "an ack that publishes needs the receipt of the consumed message; otherwise use a plain publish",
        )
    if len(publishes) > PUBLISHES_PER_ACK_MAX:
        raise field("/publish", f"an ack can have at most {PUBLISHES_PER_ACK_MAX} publishes, not {len(publishes)}")
    if sum(len(one.messages) for one in publishes) > MESSAGES_PER_REQUEST_MAX:
        raise field("/publish", f"an ack can publish at most {MESSAGES_PER_REQUEST_MAX} messages")
    found = []
    for number, one in enumerate(publishes):
        queue = hub.desk.publish_with_ack(principal, one.queue)
        if not source.is_colocated_with(queue):
            detail = (
                f"queues {source.name!r} and {queue.name!r} are not colocated: create one with `colocate_with` "
                "naming the other"
            )
            raise field(f"/publish/{number}/queue", detail)
        check_publish(hub, queue.config)
        found.append(Output(queue, hub.desk.prepare(queue, one.messages, encoding)))
    return found


def published_rows(outputs: Sequence[Output], result: SettledAndPublished) -> list[dict[str, Any]]:
    """`published` of the answer: one row a publish. Empty if nothing was published now."""
    return [_row(output, place) for output, place in zip(outputs, result.places, strict=False)]


def _row(output: Output, place: Published) -> dict[str, Any]:
    return {
        "queue": output.queue.name,
        "messages": msgspec.json.decode(published_messages_json(place, output.prepared)),
    }
