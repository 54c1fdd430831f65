"""Detects what the reader of stdout, if that is a pipe, has read: lines left in it when the reader exits were not."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import stat
import struct
import sys
import termios
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from push.client import Message

LOOK_S_MIN = 0.001
LOOK_S_MAX = 0.05
"""How often a pipe that is not emptied is checked."""
FAREWELL_S = 0.005
"""A reader that has enough exits within this time after its last read: `head`, `grep -m`."""

GIVE_BACK_S_MAX = 2.0
"""How long an ending command waits for the server to take unread messages back."""
GIVE_BACK_S_EACH = 0.001
"""Additional time for each message."""
SSE_BACK_S = 1.0
"""Over SSE a message given back at once would be redelivered before the stream ends, without a way to tell the server
that it was not processed: so it is delayed until the stream has ended."""

Taken = Callable[["Message"], Awaitable[None]]


class Reader:
    """Holds messages whose lines were written until the pipe was seen empty with its reader alive.

    One line at first, then twice as many each time, up to `ahead_max`: a reader that takes lines and exits, as `head`
    does, drops only a few.
    """

    def __init__(self, fd: int, *, ahead_max: int, back_s: float | None = None) -> None:
        self._fd = fd
        self._back_s = back_s
        self._ahead_max = ahead_max
        self._ahead = 1
        self._written: deque[Message] = deque()
        self._change = asyncio.Event()
        self._room = asyncio.Event()

    async def wrote(self, message: Message) -> None:
        """Call it when a message's line is in the pipe. Returns when the next one may be written."""
        self._written.append(message)
        self._change.set()
        while len(self._written) >= self._ahead:
            self._room.clear()
            await self._room.wait()

    async def watch(self, taken: Taken) -> None:
        """Calls `taken` for each message that was read, until cancelled; `BrokenPipeError` when the reader exits."""
        while True:
            await self._change.wait()
            self._change.clear()
            while written := len(self._written):
                await self._emptied()
                await self._tell(written, taken)
                self._ahead = min(self._ahead_max, 2 * self._ahead)
                self._room.set()

    async def end(self, taken: Taken) -> None:
        """No more lines follow: those in the pipe will be read, unless the reader is gone. Gives the others back."""
        if not self.has_left:
            await self._tell(len(self._written), taken)
        await given_back(self._written, self._back_s)

    @property
    def has_left(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, 0)
        return any(events & select.POLLERR for _, events in poll.poll(0))

    async def _tell(self, count: int, taken: Taken) -> None:
        for _ in range(count):
            await taken(self._written.popleft())

    async def _emptied(self) -> None:
        wait_s = LOOK_S_MIN
        while self._unread():
            self._raise_if_left()
            await asyncio.sleep(wait_s)
            wait_s = min(LOOK_S_MAX, 2 * wait_s)
        await asyncio.sleep(FAREWELL_S)
        self._raise_if_left()

    def _unread(self) -> int:
        unread: int = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, b"\0" * 4))[0]
        return unread

    def _raise_if_left(self) -> None:
        if self.has_left:
            raise BrokenPipeError(errno.EPIPE, "the reader of stdout has exited")  # click ends quietly on this errno


async def given_back(messages: Iterable[Message], after_s: float | None = None) -> int:
    """Nacks unread messages, without counting an attempt, while the subscription is open. Returns how many the server
    confirmed.

    Messages without an answer count as tried.
    """
    releasing = [asyncio.ensure_future(message.release(delay=after_s)) for message in messages]
    if not releasing:
        return 0
    _, late = await asyncio.wait(releasing, timeout=GIVE_BACK_S_MAX + GIVE_BACK_S_EACH * len(releasing))
    for task in late:
        task.cancel()
    results = await asyncio.gather(*releasing, return_exceptions=True)
    return sum(result is None for result in results)


def reader_of_stdout(ahead_max: int, back_s: float | None) -> Reader | None:
    """None if stdout is not a pipe: then a written line counts as read."""
    try:
        fd = sys.stdout.fileno()
    except (OSError, ValueError):
        return None
    return Reader(fd, ahead_max=ahead_max, back_s=back_s) if stat.S_ISFIFO(os.fstat(fd).st_mode) else None
