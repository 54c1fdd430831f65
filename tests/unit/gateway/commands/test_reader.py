"""A line is taken when the pipe was found empty and its reader there, with a real pipe."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from gateway.commands import reader
from gateway.commands.consume import consume
from gateway.commands.reader import Reader

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0
LINE = b"hello\n"


class Line:
    """In place of the SDK's message."""

    released = 0

    async def release(self, *, delay: float | None = None) -> None:
        self.released += 1


class Pipe:
    """One message's line goes through a pipe to a reader that a test plays."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()
        self.reader = Reader(self.into, ahead_max=10)
        self.message: Any = Line()
        self.taken: list[Any] = []
        os.write(self.into, LINE)

    async def take(self, message: Any) -> None:
        self.taken.append(message)

    async def watch(self) -> None:
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(self.reader.watch(self.take))
            await self.reader.wrote(self.message)  # returns when there may be another line
            raise EOFError


async def test_line_that_a_reader_took_last_goes_back_though_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "FAREWELL_S", 0.5)
    pipe = Pipe()
    assert os.read(pipe.out, 100) == LINE
    os.close(pipe.out)
    with pytest.raises(ExceptionGroup) as ended:
        await pipe.watch()
    assert isinstance(ended.value.exceptions[0], BrokenPipeError)
    await pipe.reader.end(pipe.take)
    assert (pipe.taken, pipe.message.released) == ([], 1)
    os.close(pipe.into)


async def test_line_of_a_reader_that_stays_is_taken() -> None:
    pipe = Pipe()
    assert os.read(pipe.out, 100) == LINE
    with pytest.raises(ExceptionGroup) as ended:
        await pipe.watch()
    assert isinstance(ended.value.exceptions[0], EOFError)
    await pipe.reader.end(pipe.take)
    assert (pipe.taken, pipe.message.released) == ([pipe.message], 0)
    os.close(pipe.out)
    os.close(pipe.into)


def test_help_says_what_head_leaves_and_what_takes_exactly_one() -> None:
    words = " ".join((consume.help or "").split())
    assert "| head -1` shows a message and leaves it in the queue, while --count 1 takes exactly one" in words
