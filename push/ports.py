"""What push asks of the gateway it is part of: who somebody is, what they may do, and how a message becomes a block."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from backend_store.client import Block, Blocks, Columns, Queue
from backend_store.model import Claim, Published, PushqError, QueueConfig
from push.protocol import PublishMessage
from throttling.census import Kind, Who
from throttling.rules import Operation

Verb = Literal["publish", "consume", "view", "manage"]
Encoding = Literal["json", "msgpack"]


class Principal(Protocol):
    """An authenticated caller."""

    @property
    def id(self) -> str: ...
    @property
    def tenant(self) -> str: ...


class Prepared(msgspec.Struct, frozen=True):
    """A publish call, checked and encoded. `ids` has what producers named their messages; None where nobody did.

    `order` has the number in the call of each message in the blocks; None where they stand as they were given.
    """

    blocks: list[Block]
    ids: Sequence[str | None] | None = None
    order: list[int] | None = None
    claim: Claim | None = None
    """Of a call with an idempotency key."""
    until_ms: int = 0
    """Until when such a call may wait for the disk."""

    @property
    def size(self) -> int:
        """Bytes of the blocks."""
        blocks = self.blocks
        return len(blocks[0].data) if len(blocks) == 1 else sum([len(block.data) for block in blocks])


class KeyOf(NamedTuple):
    """An idempotency key, and whose it is."""

    principal: str
    key: str


class Target(Protocol):
    """A queue as a producer sees it."""

    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> int: ...
    @property
    def config(self) -> QueueConfig: ...
    @property
    def is_split(self) -> bool:
        """Whether it has, or had, several partitions."""

    def blocks(self, columns: Columns, trace: str | None) -> Blocks:
        """A call's messages, encoded: blocks of one partition, priority and due time each."""

    def sealed(self, blocks: list[Block]) -> list[Block]:
        """The blocks as they may be stored. Raises `Unavailable` while there is no key for them."""

    @property
    def content_key(self) -> bytes:
        """What hashes of contents are keyed with; empty where contents are not encrypted. Raises `Unavailable`."""

    def steady_ms(self) -> int:
        """Now, by the clock of who stores its messages: delays and lives are kept by it."""

    def publish(
        self,
        blocks: list[Block],
        reply: Callable[[Published | PushqError], None],
        claim: Claim | None = None,
        *,
        until_ms: int = 0,
    ) -> None:
        """Stores a call's messages. After `until_ms`, of the node's steady clock, what has not begun never will."""

    def why_full(self, messages: int = 1, size: int = 1) -> PushqError | None:
        """Why not so many messages more, of so many bytes, can be taken now, if that can be told before."""


class Meter(Protocol):
    """Hears what callers do: once a request, a frame or a delivery, or once for some that were handled together."""

    def count(
        self,
        tenant: str,
        principal: str,
        queue: str,
        operation: str,
        transport: str,
        outcome: str = "ok",
        *,
        requests: int = 1,
        messages: int = 0,
        bytes_in: int = 0,
        bytes_out: int = 0,
        seconds: float = 0.0,
    ) -> None:
        """`seconds`: how long each of the requests took."""


class Unmetered:
    """Nobody wants to know."""

    def count(
        self,
        tenant: str,
        principal: str,
        queue: str,
        operation: str,
        transport: str,
        outcome: str = "ok",
        *,
        requests: int = 1,
        messages: int = 0,
        bytes_in: int = 0,
        bytes_out: int = 0,
        seconds: float = 0.0,
    ) -> None:
        """Heard and forgotten."""


Publishing = tuple[str, list[Block]]
"""A queue's name, and the messages for it."""


class Throttle(Protocol):
    """Holds clients to their limits."""

    def publish(
        self, who: Who, publishes: Sequence[Publishing], until: float = inf
    ) -> PushqError | Coroutine[Any, Any, PushqError | None] | None:
        """Counts a publish that is about to be accepted: None lets it pass. A coroutine is awaited to know, which says
        no later than `until`, by the loop's clock."""

    def publish_together(self, who: Who, queue: str, *, requests: int, messages: int, size: int) -> bool:
        """Counts so many publishes to one queue, where all of them pass now; else nothing is counted."""

    def operation(
        self, who: Who, operation: Operation, queue: str | None
    ) -> PushqError | Coroutine[Any, Any, PushqError | None] | None:
        """The same for a connect or a subscribe."""

    def enter(self, kind: Kind, who: Who) -> None:
        """Counts a connection or a subscription until it `leave`s. Raises `too-many-connections`."""

    def leave(self, kind: Kind, who: Who) -> None: ...


class NoThrottle:
    """Everything passes, and nothing is counted."""

    def publish(self, who: Who, publishes: Sequence[Publishing], until: float = inf) -> None:
        return None

    def publish_together(self, who: Who, queue: str, *, requests: int, messages: int, size: int) -> bool:
        return True

    def operation(self, who: Who, operation: Operation, queue: str | None) -> None:
        return None

    def enter(self, kind: Kind, who: Who) -> None:
        return None

    def leave(self, kind: Kind, who: Who) -> None:
        return None


class Desk(Protocol):
    def identify(self, token: str) -> Principal:
        """Raises `Unauthenticated`."""

    def redeem(self, ticket: str) -> Principal:
        """Spends a one-use ticket. Raises `Unauthenticated`."""

    def is_same_caller(self, known: Principal, newer: Principal) -> bool:
        """Whether a newer credential may go on with the session of an earlier one."""

    def has_expired(self, principal: Principal) -> bool:
        """Whether a newer token of the same caller would do."""

    def still_valid(self, principal: Principal) -> bool:
        """Whether a live session may go on: its key exists and has not expired."""

    def queue(self, principal: Principal, name: str, verb: Verb) -> Queue:
        """Raises `QueueNotFound` for what is absent or another tenant's, `Forbidden` without the scope."""

    def publish_to(self, principal: Principal, name: str) -> Target:
        """Where messages published to `name` go. Raises like `queue`."""

    def publish_with_ack(self, principal: Principal, name: str) -> Queue:
        """The queue that an ack publishes to. Raises like `publish_to`; what was moved away has no common step."""

    def made_by_publish(self, principal: Principal, name: str, until: float) -> Coroutine[Any, Any, None] | None:
        """Makes the queue that a publish to an unknown name makes; None where it makes none. Raises `Unavailable` where
        it is not made by then, by the loop's clock."""

    def prepare(
        self,
        queue: Target,
        messages: Sequence[PublishMessage],
        encoding: Encoding,
        trace: str | None = None,
        key_of: KeyOf | None = None,
    ) -> Prepared:
        """Raises `InvalidRequest` or `MessageTooLarge`, naming each message that is wrong.

        `trace` is a W3C `traceparent`; it is kept with the messages. `key_of` is the call's idempotency key.
        """

    def publish_once(self, queue: Target, prepared: Prepared, reply: Callable[[Published | PushqError], None]) -> None:
        """Publishes a call that has an idempotency key; a repeat is answered like the first."""

    def prepare_plain(
        self,
        queue: Target,
        bodies: Sequence[Any],
        encoding: Encoding,
        trace: str | None = None,
        key_of: KeyOf | None = None,
    ) -> Prepared:
        """The same for messages that are only bodies (raw values of the encoding)."""

    def prepare_together(
        self, queue: Target, calls: Sequence[Sequence[Any]], encoding: Encoding
    ) -> tuple[Prepared, int] | None:
        """Calls whose messages are only bodies, as one, and the bytes of the blocks that they would be by themselves,
        one each. None where it is not all the same to the queue which calls bring the messages.
        """

    def allowed_origin(self, origin: str | None, host: str | None) -> bool:
        """Whether a browser page of that origin may connect."""
