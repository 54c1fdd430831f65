"""A key that makes no progress in a strictly ordered queue: its consumer holds its first messages forever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from tests.bench.clients import ClientFailed, Consumer, Publisher
from tests.bench.codec import CODECS, AnyArrival
from tests.bench.feeds import HOT, Feed
from tests.bench.rows import Row
from tests.bench.scale import CONSUMERS, CREDIT, STAMP_DIGITS, WINDOW, WORK_BACKLOG_MAX
from tests.bench.scenario_publish import QUEUE, keep_full
from tests.bench.scenario_work import Received, make_publisher
from tests.bench.world import Server, client_args, close, connect, until

_HOLD_MS = 3_600_000
_HOT_AT = slice(STAMP_DIGITS, STAMP_DIGITS + len(HOT))


class HoldingConsumer(Consumer):
    """Acks what it receives, except hot messages, which it keeps."""

    def arrived(self, frame: AnyArrival) -> None:
        if frame.type != "deliver":
            return
        frame.messages = [message for message in frame.messages if message.body[_HOT_AT] != HOT]  # type: ignore[assignment]
        super().arrived(frame)


class HotSide:
    """Consumers, and a producer that makes every second message hot. Only the other messages count."""

    def __init__(
        self, server: Server, publisher: Publisher, consumers: Sequence[Consumer], received: Received, *, holds: bool
    ) -> None:
        self.server = server
        self.publisher = publisher
        self.consumers = consumers
        self.received = received
        self._holds = holds

    @classmethod
    async def open(cls, server: Server, feed: Feed, *, holds: bool) -> Self:
        server.create(QUEUE, ordering="strict", lease_mode="memory", visibility_timeout_ms=_HOLD_MS)
        common, received = client_args(CODECS["msgpack"], server), Received()
        [publisher] = await connect(lambda: make_publisher(*common, QUEUE, feed=feed))
        kind = HoldingConsumer if holds else Consumer
        consumers = await connect(
            lambda: kind(*common, queue=QUEUE, credit=CREDIT, on_messages=received.add), CONSUMERS
        )
        return cls(server, publisher, consumers, received, holds=holds)

    @property
    def done(self) -> int:
        """Messages of other keys: all received ones if hot ones are held, else every second one."""
        return self.received.count if self._holds else self.received.count // 2

    def begin(self) -> None:
        """Allows as many messages of other keys in flight as other scenarios do."""
        publisher = self.publisher
        fill = keep_full(publisher, WINDOW, lambda: WORK_BACKLOG_MAX - 2 * (publisher.sent // 2 - self.done))
        self.received.on_messages = publisher.on_acked = fill
        fill()

    @property
    def _others(self) -> int:
        """Every publish begins with a message of another key, and they alternate."""
        return (self.publisher.sent + 1) // 2 if self._holds else self.publisher.sent

    async def rest(self) -> None:
        publisher, received = self.publisher, self.received
        publisher.on_acked, received.on_messages = None, lambda: None
        await until(
            lambda: publisher.unconfirmed == 0 and received.count >= self._others,
            [publisher, *self.consumers],
            lambda: f"{self._others} for other keys sent, {received.count} received, {self.server.stats(QUEUE)}",
        )

    async def finish(self) -> Row:
        await self.rest()
        publisher, clients = self.publisher, [self.publisher, *self.consumers]
        others = self._others
        await until(
            lambda: self.server.stats(QUEUE)["acked_total"] >= others, clients, lambda: f"{self.server.stats(QUEUE)}"
        )
        stats = self.server.stats(QUEUE)
        close(clients)
        kept = stats["ready"] + stats["in_flight"]
        if self.received.duplicates or stats["acked_total"] != others or kept != publisher.sent - others:
            raise ClientFailed(f"{publisher.sent} sent, {self.received.duplicates} duplicates, the queue has {stats}")
        return {"lost": 0, "duplicates": 0}
