"""Producers and consumers of a strictly ordered queue, over every transport, while its partitions move or it is killed.

They speak the protocols directly, without the SDK, whose reconnects would hide the effects of a crash. Each ends when
it is stopped, or when the server is gone.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

from tests.support.consumers import HttpConsumer, Message, Socket, SocketConsumer, call, http_client
from tests.support.keyed_history import KeyedHistory, Name
from tests.support.load import CUT, NOTICE_S_MAX
from tests.support.patience import PATIENCE_S
from tests.support.server import PushqServer

BEGIN_S_MAX = PATIENCE_S
"""The first messages are confirmed within this time, even on a busy machine."""
CREDIT = 40
CREDIT_EVENTS = 8
"""Events are settled one by one."""
WINDOW_FRAMES = 6
FRAME_MESSAGES = (1, 1, 5, 40)
AHEAD_MESSAGES_MAX = 400
"""Producers wait for consumers: draining a partition that its slots have left is what takes time."""
AGAIN_SHARE = 0.05
AGAIN_FRAMES = 50
"""Number of recent frames that may be sent again."""
BACK_SHARE = 0.03
"""Share of messages that a consumer gives back."""

Client = Coroutine[Any, Any, None]


Frame = list[Name]


class CutSocket(Socket):
    """A session whose requests fail when it is cut."""

    async def ask(self, **frame: Any) -> dict[str, Any]:
        answer = await super().ask(**frame)
        if answer["type"] == "closed":
            raise EOFError("the server closed the connection before it responded")
        return answer


class Producer:
    """Sends the messages of some keys. Unconfirmed messages are sent again first, in order; now and then also something
    older, as a client does whose response was lost.
    """

    def __init__(self, name: str, keys: int):
        self.keys = [f"{name}-{number}" for number in range(keys)]
        self.pending: list[Frame] = []
        self.sent: list[Frame] = []


class KeyedLoad:
    """See the module docstring."""

    def __init__(
        self, server: PushqServer, queue: str, rng: random.Random, history: KeyedHistory, *, delay_ms_max: int = 0
    ):
        """`delay_ms_max`: each message is delayed by up to this much."""
        self.delay_ms_max = delay_ms_max
        self.server = server
        self.queue = queue
        self.rng = rng
        self.history = history
        self.stopped = False
        self.repeats = 0

    @property
    def behind(self) -> int:
        """Messages that nobody has tried to ack yet."""
        return len(self.history.places) - len(self.history.settling)

    async def run_until_killed(self, after_s: float, *clients: Client, begun: Callable[[], object]) -> None:
        """Runs the clients until the server is killed, `after_s` after `begun` returns true. Raises any other failure
        of a client.
        """
        tasks = [asyncio.create_task(client, name=getattr(client, "__name__", "client")) for client in clients]
        try:
            async with asyncio.timeout(BEGIN_S_MAX):
                while not begun():
                    for task in tasks:
                        if task.done():
                            task.result()  # nothing may fail while the server lives
                    await asyncio.sleep(0.005)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        await asyncio.sleep(after_s)
        self.server.kill()
        self.stopped = True
        ended, running = await asyncio.wait(tasks, timeout=NOTICE_S_MAX)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for task in ended:
            if (error := task.exception()) is not None and (faults := list(_faults(error))):
                raise faults[0]
        assert not running, f"{[task.get_name() for task in running]} did not notice that the server was gone"

    # ------------------------------------------------------------------------------------------------- producers

    async def produce_by_socket(self, producer: Producer, *, binary: bool = False) -> None:
        """Sends a few frames ahead of their responses."""
        window = asyncio.Semaphore(WINDOW_FRAMES)
        async with CutSocket.open(self.server, binary=binary) as socket, asyncio.TaskGroup() as asking:

            async def ask(frame: Frame) -> None:
                try:
                    answer = await socket.ask(type="publish", queue=self.queue, messages=self._messages(frame))
                    self._confirmed(producer, frame, answer)
                finally:
                    window.release()

            for frame in self._frames(producer):
                await window.acquire()
                asking.create_task(ask(frame))
                await self._wait()

    async def produce_by_http(self, producer: Producer) -> None:
        async with http_client(self.server) as http:
            for frame in self._frames(producer):
                answer = await call(http, "POST", f"{self.queue}/messages", {"messages": self._messages(frame)})
                self._confirmed(producer, frame, answer)
                await self._wait()

    def _frames(self, producer: Producer) -> Iterable[Frame]:
        """Frames awaiting confirmation, then new ones."""
        yield from list(producer.pending)
        while not self.stopped:
            if producer.sent and self.rng.random() < AGAIN_SHARE:
                yield self.rng.choice(producer.sent[-AGAIN_FRAMES:])
                continue
            count = self.rng.choice(FRAME_MESSAGES)
            frame = [self.history.next(self.rng.choice(producer.keys)) for _ in range(count)]
            producer.pending.append(frame)
            producer.sent.append(frame)
            yield frame

    def _messages(self, frame: Frame) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = [{"body": list(name), "key": name.key, "id": str(name)} for name in frame]
        for message in made if self.delay_ms_max else ():
            message["delay_ms"] = self.rng.randrange(self.delay_ms_max)
        return made

    def _confirmed(self, producer: Producer, frame: Frame, answer: dict[str, Any]) -> None:
        assert "messages" in answer, f"a publish was refused: {answer}"
        for name, row in zip(frame, answer["messages"], strict=True):
            assert row["id"] == str(name) and "error" not in row, row
            self.history.confirm(name, (row["partition"], row["seq"]))
            self.repeats += row["duplicate"]
        if frame in producer.pending:
            producer.pending.remove(frame)

    async def _wait(self) -> None:
        await asyncio.sleep(0)
        while self.behind > AHEAD_MESSAGES_MAX and not self.stopped:  # noqa: ASYNC110 - consumers change it
            await asyncio.sleep(0.005)

    # ------------------------------------------------------------------------------------------------- consumers

    async def consume(self, transport: str) -> None:
        """Consumes over one of `TRANSPORTS`, until the server closes the connection."""
        match transport:
            case "sse":
                await self._consume_events()
            case "poll":
                await self._consume_polling()
            case _:
                await self._consume_socket(binary=transport == "ws-msgpack")

    async def _consume_socket(self, *, binary: bool) -> None:
        async with CutSocket.open(self.server, binary=binary) as socket:
            consumer = await SocketConsumer.begin(socket, self.queue, credit=CREDIT)
            while True:
                frames = [await socket.inbox.get()]
                while not socket.inbox.empty():
                    frames.append(socket.inbox.get_nowait())
                await self._handle(
                    [f["message"] for f in frames if f["type"] == "message"], consumer.ack, consumer.nack
                )
                if any(frame["type"] == "closed" for frame in frames):
                    return

    async def _consume_events(self) -> None:
        async with http_client(self.server) as http:
            settler, url = HttpConsumer(http, self.queue), f"/v1/queues/{self.queue}/events?credit={CREDIT_EVENTS}"
            async with http.stream("GET", url, timeout=None) as response:
                name = ""
                async for line in response.aiter_lines():
                    if line.startswith("event: "):
                        name = line[7:]
                    elif line.startswith("data: ") and name == "message":
                        await self._handle([json.loads(line[6:])], settler.ack, settler.nack)

    async def _consume_polling(self) -> None:
        async with http_client(self.server) as http:
            settler = HttpConsumer(http, self.queue)
            while True:
                answer = await call(http, "POST", f"{self.queue}/receive", {"max": 20, "wait_ms": 1000})
                await self._handle(answer["messages"], settler.ack, settler.nack)

    async def _handle(
        self, messages: Sequence[Message], ack: Callable[[list[str]], Any], nack: Callable[[list[str]], Any]
    ) -> None:
        """Acks all but a few, which are given back."""
        if not messages:
            return
        acks, nacks = {}, []
        for message in messages:
            name = Name(*message["body"])
            self.history.deliver(name)
            if self.rng.random() < BACK_SHARE:
                nacks.append(message["receipt"])
            else:
                acks[message["receipt"]] = name
        self.history.settle(acks.values())
        if nacks:
            await nack(nacks)
        verdicts = await ack(list(acks)) if acks else []
        self.history.ack([name for name, ok in zip(acks.values(), verdicts, strict=True) if ok])

    # ------------------------------------------------------------------------------------------------ what is there

    async def present(self) -> list[Name]:
        """All messages in the queue, in whatever state. States are read in this order so that none is missed that
        changes from one to the next meanwhile; a message that was due may also go to another partition.
        """
        found: set[tuple[Name, int, int]] = set()
        async with http_client(self.server) as http:
            for state in ("delayed", "in_flight", "ready"):
                cursor: str | None = ""
                while cursor is not None:
                    page = f"{self.queue}/messages?state={state}&limit=1000" + (f"&cursor={cursor}" if cursor else "")
                    answer = await call(http, "GET", page)
                    found.update((Name(*item["body"]), item["partition"], item["seq"]) for item in answer["items"])
                    cursor = answer["next"]
        names = [name for name, _, _ in found]
        return list(set(names)) if self.delay_ms_max else names


def _faults(error: BaseException) -> Iterator[BaseException]:
    """Failures that are not a consequence of the server's end."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _faults(one)
    elif not isinstance(error, CUT):
        yield error
