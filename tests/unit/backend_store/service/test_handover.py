"""A shard goes from one backend to another while a gateway publishes: over real sockets, without the replication."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from backend_store.client.embedded import EmbeddedStore
from backend_store.core.log.chunk import blocks_of
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.line.line import Call, Line
from backend_store.service import serving
from backend_store.service.defining import GoneQueues
from backend_store.service.serving import StoreServer, StoreService
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine
from backend_store.wire.store_frames import Place, Placed, Publish, Settle, Want, Wants, of_bits, sent_blocks
from tests.support.gateways import Gateway
from tests.support.patience import eventually
from tests.support.queues import draft
from tests.support.stores import made, opened, published

pytestmark = pytest.mark.anyio

WAIT_S = 60
CALLS = 20


class Pair:
    """Who leads, who is about to, and the line of a gateway that was told of the first one alone."""

    def __init__(self, store: EmbeddedStore, uid: int) -> None:
        self.store = store
        self.first = StoreService(store)
        self.services: dict[int, StoreService] = {}
        self.before, self.behind = StoreServer({0: self.first}), StoreServer(self.services)
        self.gateway = Gateway()
        self.answers: list[Any] = []
        self._uid = uid

    async def open(self) -> None:
        port = await self.before.listen("127.0.0.1", 0, None)
        self.next = f"127.0.0.1:{await self.behind.listen('127.0.0.1', 0, None)}"
        self.line = Line(0, FixedDirectory([("127.0.0.1", port)]), self.gateway, "gateway", None)
        assert await self.line.opened(WAIT_S)

    def publish(self, body: str) -> None:
        """One that must not be sent twice: it has no id."""
        blocks = sent_blocks(blocks_of([draft(body)]).blocks)
        frame = Publish(self.line.next_number(), 0, "default", "q", self._uid, blocks)
        self.line.call(Call(frame, self.answers.append, self.line.now_ms() + 60_000, may_repeat=False))

    async def hand_over(self) -> None:
        self.first.close()
        await self.store.node.close()
        engine = self.store.node.engine
        assert isinstance(engine, MemoryEngine)
        self.store = await opened(engine.crash())
        self.services[0] = StoreService(self.store)
        self.behind.led()

    async def close(self) -> None:
        await self.line.close()
        for service in (self.first, *self.services.values()):
            service.close()
        await self.before.close()
        await self.behind.close()
        await self.store.close()


@asynccontextmanager
async def pair(**config: Any) -> AsyncIterator[Pair]:
    store = await opened()
    queue = await made(store, "q", **config)
    found = Pair(store, queue.uid)
    await found.open()
    try:
        yield found
    finally:
        await found.close()


async def test_what_was_begun_is_answered_and_what_was_not_is_begun_at_the_next_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "FINISH_SECONDS_MAX", float(WAIT_S))
    async with pair() as found:
        engine, cycles = found.store.node.engine, found.store.node.committer.cycles
        disk, commit = threading.Event(), engine.commit

        def slow(batch: Batch, staged: Callable[[], None]) -> None:
            assert disk.wait(WAIT_S)
            commit(batch, staged)

        monkeypatch.setattr(engine, "commit", slow)
        for number in range(CALLS):
            found.publish(f"before {number}")
        await eventually(lambda: found.store.node.committer.cycles > cycles)
        finishing = asyncio.ensure_future(found.first.finish(found.next))
        await asyncio.sleep(0)
        for number in range(CALLS):
            found.publish(f"meanwhile {number}")
        asking = asyncio.ensure_future(found.line.ask(GoneQueues([]), may_repeat=False))
        assert not found.answers
        disk.set()
        await finishing
        await eventually(lambda: len(found.answers) >= CALLS)
        assert all(isinstance(one, Placed) for one in found.answers), found.answers
        assert found.line.connections == 1 and not asking.done()
        await found.hand_over()
        await eventually(lambda: len(found.answers) == 2 * CALLS)
        assert all(isinstance(one, Placed) for one in found.answers), found.answers
        await asking
        assert found.line.connections == 2
        [queue] = found.store.queues()
        assert queue.stats().ready == 2 * CALLS


async def test_a_gateway_that_was_sent_on_waits_where_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It came again and again, each time later, and the shard was served for a while before anybody came."""
    monkeypatch.setattr(serving, "ONWARD_SECONDS_MAX", float(WAIT_S))
    async with pair() as found:
        await found.first.finish(found.next)
        visits = 0
        visit = found.line._visit

        async def counted(*args: Any, **options: Any) -> str | None:
            nonlocal visits
            visits += 1
            return await visit(*args, **options)

        monkeypatch.setattr(found.line, "_visit", counted)
        found.first.close()
        await eventually(lambda: visits == 1)
        await asyncio.sleep(0.3)  # far more than the pauses of who comes again and again
        assert visits == 1
        await found.hand_over()
        assert await found.line.opened(WAIT_S)
        assert visits == 1


async def test_nothing_is_leased_any_more_where_a_shard_is_about_to_go() -> None:
    async with pair() as found:
        [queue] = found.store.queues()
        await published(queue, draft("1"))
        await found.first.finish(found.next)
        found.first.visitors["gateway"].heard(Wants([Want(Place("default", "q", queue.uid), 3_600_000, 10, 10)]))
        assert queue.stats().in_flight == 0
        await found.hand_over()
        await eventually(lambda: found.line.connections == 2)
        found.line.want(Want(Place("default", "q", queue.uid), 3_600_000, 10, 10))
        await eventually(lambda: found.gateway.messages == 1)


@pytest.mark.parametrize("when", ["as it hears", "sent on", "on its way"])
async def test_what_a_gateway_gives_back_during_a_handover_is_ready_at_the_next_leader(when: str) -> None:
    """It was told to nobody, and came again when its visibility timeout was over."""
    async with pair() as found:
        [queue] = found.store.queues()
        place = Place("default", "q", queue.uid)
        await published(queue, draft("1"))
        found.line.want(Want(place, 3_600_000, 10, 10))
        await eventually(lambda: found.gateway.messages == 1)
        [(token, bits)] = found.gateway.tokens.items()

        def give_back() -> None:
            found.line.tell(Settle(0, place, "unsent", {token: bits}))

        if when == "as it hears":
            send_on = found.line._send_on

            def hearing(leader: tuple[str, int] | None) -> None:
                give_back()
                send_on(leader)

            found.line._send_on = hearing  # type: ignore[method-assign]
        await found.first.finish(found.next)
        if when == "sent on":
            give_back()
        await found.hand_over()
        if when == "on its way":
            give_back()
        await eventually(lambda: found.line.connections == 2)
        queue = found.store.queue("default", "q")
        await eventually(lambda: queue.stats().ready == 1, "it is ready")
        found.line.want(Want(place, 3_600_000, 10, 10))
        await eventually(lambda: found.gateway.messages == 2)
        lease = queue.held_by(0, 0)
        assert lease is not None and not lease.state.attempts, "nobody has tried it"


@pytest.mark.parametrize("when", ["as it hears", "on its way"])
async def test_what_was_acked_before_it_was_given_back_is_acked_though_the_shard_goes(when: str) -> None:
    """The ack waited for the next leader, and the one that went took the message back: its last attempt was over."""
    async with pair(max_attempts=1) as found:
        [queue] = found.store.queues()
        place = Place("default", "q", queue.uid)
        await published(queue, draft("1"), draft("2"))
        found.line.want(Want(place, 3_600_000, 10, 10))
        await eventually(lambda: found.gateway.messages == 2)
        [(token, bits)] = found.gateway.tokens.items()
        first = of_bits(1)
        send_on = found.line._send_on

        def hearing(leader: tuple[str, int] | None) -> None:
            acked = Settle(found.line.next_number(), place, "ack", {token: first})
            found.line.call(Call(acked, found.answers.append, found.line.now_ms() + 60_000, may_repeat=True))
            if when == "on its way":
                found.line._flush()
            found.line.tell(Settle(0, place, "return", {token: bits}))
            send_on(leader)

        found.line._send_on = hearing  # type: ignore[method-assign]
        await found.first.finish(found.next)
        await found.hand_over()
        await eventually(lambda: len(found.answers) == 1)
        assert found.answers == [{token: first}]
        queue = found.store.queue("default", "q")
        await eventually(lambda: queue.stats().in_flight == 0)
        assert queue.stats().acked_total == 1


async def test_backend_that_ends_says_to_its_gateways_that_it_goes_away() -> None:
    """They took it for lost."""
    async with pair() as found:
        with capture_logs() as logs:
            found.first.close()
            await eventually(lambda: not found.line.is_open, "the gateway knows")
        [log] = [log for log in logs if log["event"] in ("a backend was lost", "a backend goes away")]
        assert (log["event"], log["log_level"]) == ("a backend goes away", "info")


async def test_gateway_that_ends_says_to_its_backend_that_it_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as found:
        said: list[str] = []
        depart = found.first.depart

        def departs(name: str, link: serving.Link) -> None:
            said.append(str(link._connection.protocol.close_rcvd))
            depart(name, link)

        monkeypatch.setattr(found.first, "depart", departs)
        await found.line.close()
        await eventually(lambda: said, "the backend knows")
        assert said == ["1001 (going away)"]
