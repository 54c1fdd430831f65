"""Tailing of streams without a group: sends gateways the partitions' ends; each gateway fetches chunks as it needs.

No message is sent unasked, so a gateway that is slow, or reads an old part, costs the others nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from backend_store.client.embedded import EmbeddedStore
from backend_store.client.queue import EmbeddedQueue
from backend_store.client.streams import Start, StreamPart
from backend_store.core.limits import EPOCHS_TOLD_MAX
from backend_store.core.log.chunk import Chunk
from backend_store.service.asked import Asked, AtPlace, queue_at
from backend_store.wire.store_frames import PartNow, Place

if TYPE_CHECKING:
    from backend_store.service.visitor import Visitor


class StartReading(AtPlace, frozen=True):
    """Asks where a reader begins: see `client.streams.StreamParts.start`."""

    wanted: Any


class Started(NamedTuple):
    """Where a reader begins, and the ends of all partitions at that time."""

    start: Start
    ends: dict[int, int]


class Tailing:
    """The gateways that tail one stream, and tells them when its partitions change; the stream's `extras` hold it."""

    def __init__(self, stream: EmbeddedQueue):
        self._stream = stream
        self._places: dict[Visitor, Place] = {}
        self._listened: set[StreamPart] = set()
        stream.parts.on_changed(self._changed)
        self._listen()

    @property
    def is_over(self) -> bool:
        """The stream was deleted."""
        return self._stream.deleted

    def enter(self, visitor: Visitor, place: Place) -> None:
        self._places[visitor] = place
        visitor.tail_moved(place)

    def leave(self, visitor: Visitor) -> None:
        self._places.pop(visitor, None)

    def now(self) -> list[PartNow]:
        return [
            PartNow(
                part.number,
                part.epoch,
                part.floor,
                part.end,
                part.is_empty,
                list(part.barriers),
                list(part.epochs[-EPOCHS_TOLD_MAX:]),
            )
            for part in self._stream.parts.all
        ]

    def _listen(self) -> None:
        parts = set(self._stream.parts.all)
        for part in parts - self._listened:
            part.on_appended(self._appended)
            part.on_trimmed(self.tell)
        self._listened = parts

    def _changed(self) -> None:
        self._listen()
        self.tell()

    def _appended(self, chunks: list[Chunk]) -> None:
        self.tell()

    def tell(self) -> None:
        for visitor, place in self._places.items():
            visitor.tail_moved(place)


def tailing_of(stream: EmbeddedQueue) -> Tailing:
    """The stream's `Tailing` in this process, made on first use."""
    found: Tailing | None = stream.extras.get("tailing")
    if found is None:
        found = stream.extras["tailing"] = Tailing(stream)
    return found


async def start(store: EmbeddedStore, asked: StartReading) -> Started:
    stream = queue_at(store, asked.place)
    parts = stream.parts
    # Entries that readers do not see, such as moves of slots, advance the ends without a notice, and the asking gateway
    # waits until it has heard of these ends.
    tailing_of(stream).tell()
    return Started(parts.start(asked.wanted), {part.number: int(part.end) for part in parts.all})


HANDLERS: dict[type[Asked], Any] = {StartReading: start}
