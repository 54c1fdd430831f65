"""A server played in memory: it keeps the protocol's promises, and the test breaks them where it wants to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from push.client import Limits, Pushq, SessionEvent, connect
from push.client.errors import Problem
from push.client.frames import (
    Ack,
    AnyClientFrame,
    AnyServerFrame,
    Connect,
    ConnectedFrame,
    Deliver,
    Error,
    Extend,
    Nack,
    Ok,
    Publish,
    PublishedItem,
    SettleResult,
    Subscribe,
    Unsubscribe,
    WireMessage,
)
from push.client.transports.base import Cut
from tests.support import patience
from tests.unit.push.client.world import bodies, body_of, fields_of


class PlayedServer:
    """Dial it: `answers` False leaves every request open, `refuse` makes dialling fail."""

    def __init__(self) -> None:
        self.tokens: list[str | None] = []
        self.frames: list[AnyClientFrame] = []
        self.stored: list[str] = []
        self.published: list[list[str]] = []
        self.acked: list[str] = []
        self.stale: set[str] = set()
        self.answers = True
        self.refuse: list[Cut] = []
        self.session = "s1"
        self.ping_ms = 25_000
        self.connections: list[PlayedConnection] = []
        self.on_subscribe: Callable[[PlayedConnection, Subscribe], None] | None = None
        self.on_publish: Callable[[PlayedConnection, Publish], None] | None = None
        self.queues: dict[str, dict[str, Any]] = {}
        self.refuse_queue: Exception | None = None
        self.facts: dict[str, Any] = {}
        """What else the answer to a `subscribe` tells of the queue."""
        self.sequencing: str | None = None
        self.dedupe: str | None = None

    async def dial(self, token: str | None) -> PlayedConnection:
        self.tokens.append(token)
        if self.refuse:
            raise self.refuse.pop(0)
        self.connections.append(PlayedConnection(self))
        return self.connections[-1]

    async def make_queue(self, name: str, config: Mapping[str, Any]) -> None:
        if self.refuse_queue is not None:
            raise self.refuse_queue
        self.queues[name] = dict(config)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Every message that came in a publish frame, field by field."""
        return [fields_of(each) for frame in self.frames if isinstance(frame, Publish) for each in frame.messages]

    @property
    def connection(self) -> PlayedConnection:
        return self.connections[-1]


class PlayedConnection:
    def __init__(self, server: PlayedServer) -> None:
        self.server = server
        self.incoming: asyncio.Queue[AnyServerFrame | Cut] = asyncio.Queue()
        self.is_closed = False
        self.is_aborted = False
        self._subs = 0

    async def send(self, frames: Sequence[AnyClientFrame]) -> None:
        self.server.frames += frames
        for frame in frames:
            self._answer(frame)

    async def receive(self) -> list[AnyServerFrame]:
        found = await self.incoming.get()
        if isinstance(found, Cut):
            raise found
        return [found]

    async def close(self) -> None:
        self.is_closed = True
        self.incoming.put_nowait(Cut("closed", code=1000))

    def abort(self) -> None:
        self.is_aborted = True
        self.incoming.put_nowait(Cut("aborted"))

    async def wait_closed(self) -> None:
        assert self.is_aborted

    def say(self, *frames: AnyServerFrame) -> None:
        for frame in frames:
            self.incoming.put_nowait(frame)

    def cut(self, code: int | None = None) -> None:
        self.incoming.put_nowait(Cut("cut by the test", code=code))

    def deliver(self, *ids: str, sub: int = 1, **fields: Any) -> None:
        wire = [WireMessage(**{"id": id, "body": id, "receipt": f"r-{id}"} | fields) for id in ids]
        self.say(Deliver(sub=sub, messages=wire))

    def _answer(self, frame: AnyClientFrame) -> None:
        server = self.server
        match frame:
            case Connect():
                self.say(ConnectedFrame(session=server.session, id=frame.id, ping_ms=server.ping_ms))
            case Publish() if server.answers:
                server.published.append(bodies(frame))
                items = [PublishedItem(id=body_of(message), seq=n) for n, message in enumerate(frame.messages)]
                server.stored += bodies(frame)
                self.say(Ok(id=frame.id, messages=items, sequencing=server.sequencing, dedupe=server.dedupe))
                if server.on_publish is not None:
                    server.on_publish(self, frame)
            case Subscribe() if frame.queue == "missing":
                self.say(Error(id=frame.id, problem=Problem(code="queue-not-found", status=404)))
            case Subscribe():
                self._subs += 1
                self.say(Ok(id=frame.id, sub=self._subs, **server.facts))
                if server.on_subscribe is not None:
                    server.on_subscribe(self, frame)
            case Ack() | Nack() | Extend() if server.answers:
                server.acked += frame.receipts if isinstance(frame, Ack) else []
                self.say(Ok(id=frame.id, results=[SettleResult(r, r not in server.stale) for r in frame.receipts]))
            case Unsubscribe():
                self.say(Ok(id=frame.id))
            case _:
                pass


FAST = {"backoff_base_s": 0.001, "backoff_cap_s": 0.01}


def session(
    server: PlayedServer,
    key: Any = "secret",
    on_event: Callable[[SessionEvent], None] | None = None,
    options: dict[str, Any] | None = None,
    **limits: Any,
) -> Pushq:
    bounds = Limits(**FAST | limits)
    pushq = connect("http://played", key, on_event=on_event, limits=bounds, **options or {})
    pushq._make_dial = lambda: server.dial  # type: ignore[method-assign]
    pushq._make_queue = server.make_queue  # type: ignore[method-assign]
    return pushq


async def eventually(is_true: Callable[[], object]) -> None:
    """Looks at every turn of the loop: it may be so for a moment only."""
    await patience.eventually(is_true, look_s=0)
