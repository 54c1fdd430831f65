"""What the model of partitioned queues knows of each message, and how it finds the real ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hypothesis import strategies as st

from backend_store.client.embedded import EmbeddedQueue
from backend_store.core.leases.leases import Lease
from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import KIND_JSON, Columns, Draft
from backend_store.core.log.sublogs import OUTBOX, VIEW_DEAD, VIEW_MAIN, VIEW_OUTBOX
from backend_store.model import AutoExpand, QueueConfig
from gateway.queues.rules import broken_rules
from tests.support.semantics_seen import SHELVES, chunks, present

SHELVES_SEEN = {VIEW_MAIN: SHELVES["main"], VIEW_DEAD: SHELVES["dead"], VIEW_OUTBOX: (OUTBOX,)}


class Seen(NamedTuple):
    """The position of a message."""

    queue: str
    view: int
    partition: int
    offset: int


@dataclass
class Fact:
    """One message. `home` is the queue it was published to."""

    number: int
    home: str
    order: int = 0
    """The call in which it was published."""
    key: str | None = None
    hash: bytes | None = None
    scheduled_ms: int = 0
    expires_ms: int = 0
    asked_ms: int = 0
    state: str = "new"
    """new · asked · stored · refused · repeat · unknown (a crash swallowed the response) · over"""
    place: tuple[int, int] | None = None
    """(partition, offset), from the response to its publish, or as seen."""
    may_be_over: bool = False
    """Something that ends it was being written when the process crashed."""
    is_moved: bool = False
    """It was moved from where its producer put it (dead-lettered, redriven), so its order has changed."""
    token: str = ""
    """Of the lease that holds it until `deadline_ms`; once given back, it waits until `due_ms`."""
    lease: Lease | None = None
    deadline_ms: int = 0
    due_ms: int = 0
    was_out: bool = False
    seen: Seen | None = None
    """Its position when last seen."""

    def is_held(self, now_ms: int) -> bool:
        return self.state == "stored" and bool(self.token) and self.deadline_ms > now_ms


def lying(queue: EmbeddedQueue) -> Iterator[tuple[int, Seen]]:
    """Every message of a queue by its number, from stored and decided state."""
    for partition in queue._partitions.all:
        for view, shelves in SHELVES_SEEN.items():
            for shelf in shelves:
                for chunk in chunks(partition, shelf):
                    for index in indexes(present(partition, view, chunk)):
                        place = Seen(queue.name, view, partition.index, chunk.base + index)
                        yield int(chunk.messages.bodies[index]), place


# ------------------------------------------------------------------------------------------------------- what is drawn


@st.composite
def configs(draw: st.DrawFn) -> QueueConfig:
    """Any valid combination of settings that affect partitions."""
    given: dict[str, Any] = {"partitions": draw(st.integers(1, 4)), "colocate_with": "b"}
    given["ordering"] = draw(st.sampled_from(["best_effort", "strict", "strict"]))
    if given["ordering"] == "best_effort":
        given["priorities"] = draw(st.integers(1, 3))
    else:
        given["key_run_max"] = draw(st.sampled_from([1, 2, 32]))
    if draw(st.booleans()):
        given["dedupe"] = "id"
        given["dedupe_window_ms"] = draw(st.sampled_from([300, 2000]))
    given["lease_mode"] = draw(st.sampled_from(["memory", "replicated"]))
    given["dead_letter_queue"] = draw(st.sampled_from([".dead", ".dead", "b", None]))
    given["max_attempts"] = draw(st.integers(1, 3)) if given["dead_letter_queue"] is not None else 10
    given["retry_backoff_ms"] = draw(st.sampled_from([0, 0, 150]))
    given["message_ttl_ms"] = draw(st.sampled_from([None, None, None, 900]))
    if draw(st.integers(0, 2)) == 0:
        given["max_messages"] = draw(st.integers(2, 12))
        dead_letters = ["dead_letter_oldest", "dead_letter_newest"] if given["dead_letter_queue"] else []
        given["overflow"] = draw(st.sampled_from(["reject", "drop_oldest", *dead_letters]))
    elif draw(st.integers(0, 5)) == 0:
        given["auto_expand"] = AutoExpand(of="partition_messages", limit=6, max_partitions=5)
    config = QueueConfig(**given)
    assert not list(broken_rules(config, ()))
    return config


@st.composite
def others(draw: st.DrawFn) -> QueueConfig:
    """The second queue, which takes the first one's dead letters, and messages published with an ack."""
    ordering = draw(st.sampled_from(["best_effort", "strict"]))
    return QueueConfig(partitions=draw(st.integers(1, 3)), ordering=ordering, lease_mode="memory")  # type: ignore[arg-type]


class Wish(NamedTuple):
    """A producer's wishes for a message, as far as the queue's config supports them."""

    key: str | None
    id: str | None
    priority: int
    delay_ms: int
    ttl_ms: int | None


wishes = st.builds(
    Wish,
    key=st.sampled_from([None, *"abcdef"]),
    id=st.sampled_from([None, None, "x", "y"]),
    priority=st.integers(0, 2),
    delay_ms=st.sampled_from([0, 0, 0, 0, 60, 400]),
    ttl_ms=st.sampled_from([None, None, None, None, 500]),
)


def columns_of(drafts: Sequence[Draft]) -> Columns:
    """The messages as a gateway has them, before it knows their partitions."""
    table = {name: [(draft.columns or {}).get(name) for draft in drafts] for name in ("id", "key")}
    table = {name: values for name, values in table.items() if any(value is not None for value in values)}
    if any(draft.expires_ms for draft in drafts):
        table["exp"] = [draft.expires_ms for draft in drafts]
    hashes = [draft.dedupe for draft in drafts]
    return Columns(
        KIND_JSON,
        [draft.body for draft in drafts],
        table,
        [draft.priority for draft in drafts],
        [draft.due_ms for draft in drafts],
        hashes if any(hashes) else None,
    )


def draft_of(fact: Fact, priority: int) -> Draft:
    columns = {"id": f"m{fact.number}"} | ({"key": fact.key} if fact.key is not None else {})
    body = b"%d" % fact.number
    return Draft(KIND_JSON, body, columns, priority, fact.scheduled_ms, fact.expires_ms, None, fact.hash)
