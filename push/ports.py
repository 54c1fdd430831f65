"""What push asks of the gateway it is part of: who somebody is, what they may do, and how a message becomes a block."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, Protocol

import msgspec

from backend_store.client import Block, Blocks, Columns, Queue
from backend_store.model import Published, PushqError, QueueConfig
from push.protocol import PublishMessage

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


class Target(Protocol):
    """A queue as a producer sees it."""

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> QueueConfig: ...
    def blocks(self, columns: Columns, trace: str | None) -> Blocks:
        """A call's messages, encoded: blocks of one partition, priority and due time each."""

    def publish(self, blocks: list[Block], reply: Callable[[Published | PushqError], None]) -> None: ...


class Desk(Protocol):
    def identify(self, token: str) -> Principal:
        """Raises `Unauthenticated`."""

    def redeem(self, ticket: str) -> Principal:
        """Spends a one-use ticket. Raises `Unauthenticated`."""

    def still_valid(self, principal: Principal) -> bool:
        """Whether a live session may go on: its key exists and has not expired."""

    def queue(self, principal: Principal, name: str, verb: Verb) -> Queue:
        """Raises `QueueNotFound` for what is absent or another tenant's, `Forbidden` without the scope."""

    def publish_to(self, principal: Principal, name: str) -> Target:
        """Where messages published to `name` go. Raises like `queue`."""

    def made_by_publish(self, principal: Principal, name: str) -> Coroutine[Any, Any, None] | None:
        """Makes the queue that a publish to an unknown name makes; None where it makes none."""

    def prepare(
        self, queue: Target, messages: Sequence[PublishMessage], encoding: Encoding, trace: str | None = None
    ) -> Prepared:
        """Raises `InvalidRequest` or `MessageTooLarge`, naming each message that is wrong.

        `trace` is a W3C `traceparent`; it is kept with the messages.
        """

    def prepare_plain(
        self, queue: Target, bodies: Sequence[Any], encoding: Encoding, trace: str | None = None
    ) -> Prepared:
        """The same for messages that are only bodies (raw values of the encoding)."""

    def allowed_origin(self, origin: str | None, host: str | None) -> bool:
        """Whether a browser page of that origin may connect."""
