"""What holds at every step, whatever fails."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.lanes.lane_log import Entry
from tests.simulation.lanes.process import Message, Violation

if TYPE_CHECKING:
    from tests.simulation.lanes.host import Host
    from tests.simulation.lanes.world import World

Place = tuple[int, int]
"""Lane and offset."""


class Hold(NamedTuple):
    host: str
    lease: Any
    until: float


class Checks:
    def __init__(self, world: World):
        self.world = world
        self.counts: Counter[str] = Counter()
        self.confirmed: set[tuple[str, int]] = set()
        self.refused_for_good: set[tuple[str, int]] = set()
        """Sends without an id whose last answer said that nothing was written."""
        self.places: dict[Place, Message] = {}
        self.settled: set[Place] = set()
        self._stored: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        self._last_logged: dict[str, int] = {}
        self._acked_by: dict[Place, Any] = {}
        self._holds: dict[Place, Hold] = {}
        self._first: dict[str, int] = {}
        self._handed: set[Place] = set()
        self.merged: dict[Place, bool] = {}
        """By place whether it came late."""
        self._merged_last: tuple[int, int, int] = (0, 0, 0)
        self._merged_key: dict[str, int] = {}

    # ------------------------------------------------------------------------------------------------------- logs

    def committed(self, lane: int, entry: Entry) -> None:
        body = entry.body
        self.counts[type(body).__name__] += 1
        if isinstance(body, Message):
            self._stored_once(body)
            self._in_order(body)
            if body.slot is None and self._is_adopted(lane, entry.epoch):
                raise Violation(f"{body} has no slot and is in lane {lane}, which was adopted")
            self.places[lane, entry.offset] = body
        elif type(body).__name__ == "MessagesSettled":
            for offset in body.offsets:
                self.settled.add((lane, offset))
                self._holds.pop((lane, offset), None)

    def _is_adopted(self, lane: int, epoch: int) -> bool:
        return bool(self.world.logs[lane].writers[epoch] != self.world.first_table.lanes[lane].preferred)

    def _stored_once(self, message: Message) -> None:
        before = self._stored[message.name]
        if message.name in self.refused_for_good:
            raise Violation(f"{message} is stored after its sender was told that it is not")
        if message.id is None and before:
            raise Violation(f"{message} was sent once and is stored twice")
        # Times along a lane follow clocks that differ: a window may end so much sooner.
        window_ms = self.world.mix.window_ms - 4 * self.world.mix.skew_ms - self.world.clock_jumps_ms
        if any(self.world.now - time < window_ms for time in before):
            raise Violation(f"{message} is stored twice")
        before.append(self.world.now)

    def _in_order(self, message: Message) -> None:
        if message.key is None:
            return
        if message.name[1] < self._last_logged.get(message.key, 0):
            raise Violation(f"{message} is logged after number {self._last_logged[message.key]} of its key")
        self._last_logged[message.key] = message.name[1]

    # --------------------------------------------------------------------------------------------------- delivery

    def handed_out(self, host: Host, handed: Any) -> None:
        place = handed.receipt.lease.lane, handed.receipt.offset
        until = host.world_ms(handed.until_ms)
        message = handed.message
        self.counts["handed out"] += 1
        if self.places.get(place) != message:
            raise Violation(f"{message} at {place} is handed out and not committed there")
        if place in self._acked_by:
            raise Violation(f"{message} is handed out by {host.name} after its ack was confirmed")
        hold = self._holds.get(place)
        if hold is not None and hold.until > self.world.now:
            self.counts["two holders"] += 1
            if self.world.mix.mode == "replicated":
                raise Violation(f"{message} is handed out by {host.name} while {hold} holds it")
        self._holds[place] = Hold(host.name, handed.receipt.lease, until)
        if self.world.mix.is_strict and message.key is not None and place not in self._handed:
            if message.name[1] <= self._first.get(message.key, 0):
                raise Violation(f"{message} is handed out after number {self._first[message.key]} of its key")
            self._first[message.key] = message.name[1]
            self._key_is_free(place, message)
        self._handed.add(place)

    def _key_is_free(self, place: Place, message: Message) -> None:
        if self.world.mix.mode == "memory":
            return
        for other, hold in self._holds.items():
            if other != place and self.places[other].key == message.key and hold.until > self.world.now:
                raise Violation(f"{message} is handed out while {self.places[other]} of its key is held")

    def extended(self, receipt: Any, until: float) -> None:
        place = receipt.lease.lane, receipt.offset
        hold = self._holds.get(place)
        if hold is not None and hold.lease == receipt.lease:
            self._holds[place] = hold._replace(until=max(hold.until, until))

    def acked(self, lane: int, receipt: Any) -> None:
        """An owner confirms an ack: it says so to whoever asked."""
        place = lane, receipt.offset
        winner = self._acked_by.setdefault(place, receipt.lease)
        if winner != receipt.lease:
            raise Violation(f"acks of {place} are confirmed to {winner} and to {receipt.lease}")

    # -------------------------------------------------------------------------------------------------------- merge

    def emitted(self, late: list[Any], merged: list[Any]) -> None:
        for one in late:
            self._merge_once(one.merged, is_late=True)
            if self.world.mix.merges_strictly:
                raise Violation(f"{one} is late in a strict merge")
        for one in merged:
            self._merge_once(one, is_late=False)
            if (one.time_us, one.lane, one.offset) <= self._merged_last:
                raise Violation(f"{one} is emitted after {self._merged_last}")
            self._merged_last = one.time_us, one.lane, one.offset
            key = one.message.key
            if key is not None:
                if one.message.name[1] < self._merged_key.get(key, 0):
                    raise Violation(f"{one} is emitted after number {self._merged_key[key]} of its key")
                self._merged_key[key] = one.message.name[1]

    def _merge_once(self, merged: Any, *, is_late: bool) -> None:
        place = merged.lane, merged.offset
        if place in self.merged:
            raise Violation(f"{merged} comes out of the merge twice")
        if self.places.get(place) != merged.message:
            raise Violation(f"{merged} comes out of the merge and is not committed there")
        self.merged[place] = is_late
        self.counts["late" if is_late else "merged"] += 1

    # ------------------------------------------------------------------------------------------------------ at rest

    def at_rest(self) -> None:
        stored = {message.name for message in self.places.values()}
        if lost := self.confirmed - stored:
            raise Violation(f"{len(lost)} confirmed messages are in no log: {sorted(lost)[:3]}")
        if false := [place for place in self._acked_by if place not in self.settled]:
            raise Violation(f"acks were confirmed that are in no log: {false[:3]}")
