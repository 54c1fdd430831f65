"""What push needs from the gateway: authentication, authorization, metering, throttling, and encoding of messages into
blocks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from backend_store.client import Block, Blocks, Columns, Lease, Queue
from backend_store.model import Claim, Published, PushqError, QueueConfig
from push.core.resume import Parked
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
    """A publish call, checked and encoded. `ids` are the ids that producers gave their messages; None if no message has
    one.

    `order`: for each message in the blocks, its number in the call; None if they are in the order of the call.
    """

    blocks: list[Block]
    ids: Sequence[str | None] | None = None
    order: list[int] | None = None
    claim: Claim | None = None
    """Set for a call with an idempotency key."""
    until_ms: int = 0
    """The deadline of such a call, by the node's steady clock."""

    @property
    def size(self) -> int:
        """Bytes of the blocks."""
        blocks = self.blocks
        return len(blocks[0].data) if len(blocks) == 1 else sum([len(block.data) for block in blocks])


class KeyOf(NamedTuple):
    """An idempotency key and the principal it belongs to."""

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
        """Whether the queue has, or had, several partitions."""

    def blocks(self, columns: Columns, trace: str | None) -> Blocks:
        """Encodes a call's messages: each block has messages of one partition, priority and due time."""

    def sealed(self, blocks: list[Block]) -> list[Block]:
        """The blocks as they are stored, encrypted if the queue is. Raises `Unavailable` while no key is available for
        them."""

    @property
    def content_key(self) -> bytes:
        """The key for hashes of contents; empty if contents are not encrypted. Raises `Unavailable`."""

    def steady_ms(self) -> int:
        """Now, by the clock of the node that stores the queue's messages; delays and expiry use it."""

    def publish(
        self,
        blocks: list[Block],
        reply: Callable[[Published | PushqError], None],
        claim: Claim | None = None,
        *,
        until_ms: int = 0,
    ) -> None:
        """Stores a call's messages. A call that has not begun by `until_ms`, of the node's steady clock, never will."""

    def why_full(self, messages: int = 1, size: int = 1) -> PushqError | None:
        """Why so many more messages and bytes cannot be taken now, if that is known in advance; None if they can."""


class Meter(Protocol):
    """Counts operations: called once a request, a frame or a delivery, or once for several that were handled
    together."""

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
        """Counts `requests` requests with one outcome. `seconds`: how long each of them took."""


class Unmetered:
    """The meter if none is set."""

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
        """Counts nothing."""


Publishing = tuple[str, list[Block]]
"""A queue's name and the blocks for it."""


class Throttle(Protocol):
    """Enforces clients' rate limits and connection counts."""

    def publish(
        self, who: Who, publishes: Sequence[Publishing], until: float = inf
    ) -> PushqError | Coroutine[Any, Any, PushqError | None] | None:
        """Counts a publish that is about to be accepted. Returns None if it passes, the error if not, or a coroutine
        whose result is one of these no later than `until`, by the loop's clock."""

    def publish_together(self, who: Who, queue: str, *, requests: int, messages: int, size: int) -> bool:
        """Counts so many publishes to one queue if all of them pass now, and returns True; else counts nothing."""

    def operation(
        self, who: Who, operation: Operation, queue: str | None
    ) -> PushqError | Coroutine[Any, Any, PushqError | None] | None:
        """Counts a connect or a subscribe; returns as `publish` does."""

    def enter(self, kind: Kind, who: Who) -> None:
        """Counts a connection or a subscription until its `leave`. Raises `too-many-connections`."""

    def leave(self, kind: Kind, who: Who) -> None: ...


class NoThrottle:
    """Lets everything pass and counts nothing."""

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
    """Credentials and queues, as the gateway knows them."""

    def identify(self, token: str) -> Principal:
        """The caller of a token. Raises `Unauthenticated`."""

    def redeem(self, ticket: str) -> Principal:
        """Spends a one-use ticket. Raises `Unauthenticated`."""

    def is_same_caller(self, known: Principal, newer: Principal) -> bool:
        """Whether a newer credential may go on with the session of an earlier one."""

    def has_expired(self, principal: Principal) -> bool:
        """Whether the principal's token has expired: a newer token of the same caller would be accepted."""

    def still_valid(self, principal: Principal) -> bool:
        """Whether a live session may go on: its key exists and has not expired."""

    def queue(self, principal: Principal, name: str, verb: Verb) -> Queue:
        """The queue, for an operation of `verb`. Raises `QueueNotFound` if it does not exist or is another tenant's,
        `Forbidden` without the scope."""

    def publish_to(self, principal: Principal, name: str) -> Target:
        """Where messages published to `name` go. Raises as `queue` does."""

    def publish_with_ack(self, principal: Principal, name: str) -> Queue:
        """The queue that an ack publishes to. Raises as `publish_to` does; a queue that was moved away cannot take part
        in a transaction."""

    def made_by_publish(self, principal: Principal, name: str, until: float) -> Coroutine[Any, Any, None] | None:
        """A coroutine that creates the queue that a publish to an unknown name creates; None if none is created. The
        coroutine raises `Unavailable` if the queue is not there by `until`, by the loop's clock."""

    def prepare(
        self,
        queue: Target,
        messages: Sequence[PublishMessage],
        encoding: Encoding,
        trace: str | None = None,
        key_of: KeyOf | None = None,
    ) -> Prepared:
        """Checks and encodes a call. Raises `InvalidRequest` or `MessageTooLarge`, naming each message that is wrong.

        `trace` is a W3C `traceparent`; it is stored with the messages. `key_of` is the call's idempotency key.
        """

    def publish_once(self, queue: Target, prepared: Prepared, reply: Callable[[Published | PushqError], None]) -> None:
        """Publishes a call that has an idempotency key; a repeat gets the first call's answer."""

    def prepare_plain(
        self,
        queue: Target,
        bodies: Sequence[Any],
        encoding: Encoding,
        trace: str | None = None,
        key_of: KeyOf | None = None,
    ) -> Prepared:
        """`prepare` for messages that are only bodies (raw values of the encoding)."""

    def prepare_together(
        self, queue: Target, calls: Sequence[Sequence[Any]], encoding: Encoding
    ) -> tuple[Prepared, int] | None:
        """Prepares calls whose messages are only bodies as one. Returns it with the total bytes of the blocks that the
        calls would be by themselves. None if it matters to the queue which call brings which message."""

    def allowed_origin(self, origin: str | None, host: str | None) -> bool:
        """Whether a browser page of that origin may connect."""


class Elsewhere(Protocol):
    """The sessions of the other gateways that serve the same queues."""

    @property
    def suffix(self) -> str:
        """The end of the ids of this gateway's sessions."""

    async def fetch(self, session: str, principal: Principal) -> Parked[list[Lease]] | None:
        """Takes a session, with its leases, from the gateway that has it; None if none has it, or it belongs to another
        principal. Raises `PushqError`."""
