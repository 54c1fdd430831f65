"""Handlers that a test ends message by message, and what a played server was told of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, TypeVar

from push.client import Message, Runner
from push.client.frames import Begin, Deliver, Nack, WireMessage
from tests.unit.push.client.played import PlayedServer, eventually, session

F = TypeVar("F")


class Work:
    """A handler that the test ends, message by message."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self._gates: dict[str, asyncio.Future[None]] = {}

    async def __call__(self, message: Message) -> None:
        self.begun.append(message.id)
        gate = self._gates.setdefault(message.id, asyncio.get_running_loop().create_future())
        try:
            await gate
        except asyncio.CancelledError:
            self.cancelled.append(message.id)
            raise
        finally:
            self._gates.pop(message.id)
        self.ended.append(message.id)

    def finish(self, *ids: str) -> None:
        for id in ids:
            self._gates[id].set_result(None)

    def fail(self, id: str, error: BaseException) -> None:
        self._gates[id].set_exception(error)


class Running:
    """A runner at work in the background."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.task = asyncio.create_task(runner.run())

    async def stopped(self) -> None:
        self.runner.stop()
        async with asyncio.timeout(2):
            await self.task


def sent(server: PlayedServer, kind: type[F]) -> list[F]:
    return [frame for frame in server.frames if isinstance(frame, kind)]


def begun(server: PlayedServer) -> list[str]:
    return [receipt for frame in sent(server, Begin) for receipt in frame.receipts]


def nacks(server: PlayedServer) -> list[tuple[list[str], int | None, bool]]:
    return [(list(frame.receipts), frame.delay_ms, frame.tried) for frame in sent(server, Nack)]


def delivering(*ids: str, **fields: Any) -> PlayedServer:
    """A server whose first subscription gets these."""
    server = PlayedServer()
    batches: Iterator[tuple[str, ...]] = iter([ids])
    server.on_subscribe = lambda connection, _: connection.deliver(*next(batches, ()), **fields)
    return server


def keyed(*messages: tuple[str, str | None]) -> Deliver:
    wire = [WireMessage(id=id, body=id, receipt=f"r-{id}", key=key) for id, key in messages]
    return Deliver(sub=1, messages=wire)


async def ran(
    server: PlayedServer, handler: Any, until: Any, limits: dict[str, Any] | None = None, **options: Any
) -> None:
    """Run until something is true, then stop."""
    async with session(server, **limits or {}) as pushq:
        running = Running(pushq.runner("q", handler, **options))
        await eventually(until)
        await running.stopped()
