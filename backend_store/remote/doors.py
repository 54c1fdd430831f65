"""The hosts' doors as a gateway knows them: a line to each address that it was told, for publishes into lanes.

What has no slot goes to the open doors by turns, and so into the lanes of all hosts; while doors in the gateway's zone
are open, to those alone. What belongs to a lane goes by the same line each time, so that one producer's messages of a
key stay in their order. A line whose host is lost goes on to the next one with all that waits for it, and home again
when there is a quiet moment.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from backend_store.remote.directory import DoorDirectory
from backend_store.remote.limits import DOOR_HOME_SECONDS, LINE_CONNECT_SECONDS_MAX
from backend_store.remote.line import Line
from backend_store.wire.store_frames import DOOR, Bits, Defined, Ended, Greeted, GroupNews, Leases, Place, Tails


class Doors:
    """See the file's first sentence."""

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        gateway: str,
        tls: ssl.SSLContext | None,
        *,
        cluster: str = "",
        zone: str = "",
    ) -> None:
        """`cluster`: the further one whose hosts these are. `zone`: the gateway's; "" prefers none."""
        assert addresses, "lanes without a host's door"
        self._directories = [DoorDirectory([*addresses[n:], *addresses[:n]]) for n in range(len(addresses))]
        self._zone = zone
        self._hosts = [Unheard() for _ in addresses]
        self.lines = [
            # A name for each line: to a host that took over several they are different guests.
            Line(DOOR, directory, host, f"{gateway}-{number}", tls, whose="the backends' door", cluster=cluster)
            for number, (directory, host) in enumerate(zip(self._directories, self._hosts, strict=True))
        ]
        self._turn = 0
        self._returning = asyncio.get_running_loop().create_task(self._return(), name="doors go home")

    def line_of(self, lane: int | None) -> Line:
        """`lane`: where the messages are at home; None for those that any may take."""
        if lane is not None:
            return self.lines[lane % len(self.lines)]
        self._turn += 1
        able = self._near() or [line for line in self.lines if line.is_open] or self.lines
        return able[self._turn % len(able)]

    def _near(self) -> list[Line]:
        """The open ones to hosts in this gateway's zone."""
        if not self._zone:
            return []
        there = zip(self.lines, self._hosts, strict=True)
        return [line for line, host in there if line.is_open and host.zone == self._zone]

    async def _return(self) -> None:
        """A host that was lost and has come back is gone to again."""
        while True:
            await asyncio.sleep(DOOR_HOME_SECONDS)
            for line, directory in zip(self.lines, self._directories, strict=True):
                if directory.is_away and line.is_open and await _is_there(directory.own):
                    directory.go_home()
                    line.leave_when_quiet()

    async def close(self) -> None:
        self._returning.cancel()
        await asyncio.gather(self._returning, return_exceptions=True)
        await asyncio.gather(*(line.close() for line in self.lines))


async def _is_there(address: tuple[str, int]) -> bool:
    try:
        async with asyncio.timeout(LINE_CONNECT_SECONDS_MAX):
            _, writer = await asyncio.open_connection(*address)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


class Unheard:
    """Owns a line that only publishes; see `line.Owner`."""

    def __init__(self) -> None:
        self.zone = ""
        """Where the backend stands that the line leads to, or led to last."""

    def held(self) -> list[tuple[Place, str, Bits]]:
        return []

    def greeted(self, frame: Greeted) -> None:
        self.zone = frame.zone

    def defined(self, frame: Defined, *, is_first: bool) -> None: ...
    def leased(self, frame: Leases) -> None: ...
    def ended(self, frame: Ended) -> None: ...
    def group_news(self, frame: GroupNews) -> None: ...
    def tails(self, frame: Tails) -> None: ...
    def lost(self) -> None: ...
