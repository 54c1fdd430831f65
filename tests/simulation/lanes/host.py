"""A simulated host: takes sends for any lane, owns some, hands out messages of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.lanes.coordinator import SESSION_MS
from tests.simulation.lanes.owned import OwnedLane, Reply
from tests.simulation.lanes.process import Message, Process

if TYPE_CHECKING:
    from tests.simulation.lanes.world import World

HEARTBEAT_MS = 500
START_US = 1_790_000_000_000_000


class Host(Process):
    def __init__(self, world: World, name: str, cluster: str):
        super().__init__(world, name)
        self.cluster = cluster
        self.rate = 1 + world.rng.uniform(-world.mix.drift, world.mix.drift)
        self.skew_us = int(world.rng.uniform(-world.mix.skew_ms, world.mix.skew_ms) * 1000)
        self.wake()

    def wake(self) -> None:
        self.table = self.world.first_table
        self.owned: dict[int, OwnedLane] = {}
        self.alive: dict[str, int] = {}
        self.agent = self.world.core.agent.Agent(
            self.life, lease_ms=self.world.mix.lease_ms, messages_max=self.world.mix.loan_messages
        )
        self.session_ends_ms = 0
        self._turn = 0
        self.later(self.world.rng.uniform(1, HEARTBEAT_MS), self.heartbeat)

    def die(self) -> None:
        self.owned.clear()

    @property
    def as_owner(self) -> Any:
        return self.world.core.table.Owner(self.name, self.life)

    def steady_ms(self) -> int:
        """Runs a little too fast or too slow, and is never set."""
        return int(self.world.now * self.rate)

    def world_ms(self, steady_ms: int) -> float:
        return steady_ms / self.rate

    def wall_us(self) -> int:
        return START_US + self.steady_ms() * 1000 + self.skew_us

    # --------------------------------------------------------------------------------------- sessions and tables

    def heartbeat(self) -> None:
        coordinator = self.world.coordinator
        self.world.send(self.name, coordinator, coordinator.on_heartbeat, self.name, self.life, self.steady_ms())
        self.later(HEARTBEAT_MS, self.heartbeat)

    def on_heard(self, incarnation: int, sent_ms: int, table: Any, alive: dict[str, int]) -> None:
        if incarnation == self.life:
            self.session_ends_ms = max(self.session_ends_ms, sent_ms + SESSION_MS * 8 // 10)
            self.alive = alive
            self.on_table(table)

    def alive_there(self) -> dict[str, int]:
        """Read where the change is made, not here."""
        return self.world.coordinator.alive()

    def on_table(self, table: Any) -> None:
        if table.version <= self.table.version and "goes back to older tables" not in self.world.breaks:
            return
        self.table = table
        for number, row in table.lanes.items():
            owned = self.owned.get(number)
            if row.owner != self.as_owner:
                if owned is not None and row.epoch > owned.epoch:
                    del self.owned[number]
            elif owned is None or row.epoch > owned.epoch:
                if self.world.logs[number].take_over(self.name, row.epoch):
                    self.owned.pop(number, None)
                    self.owned[number] = OwnedLane(self, number, row, self.world.first_table.slots)
            elif row.epoch == owned.epoch:
                owned.on_row(row)

    def on_changed(self, has_changed: bool) -> None:
        """A change that was asked for was made or refused: the table says what holds now."""
        coordinator = self.world.coordinator
        self.world.send(self.name, coordinator, coordinator.tell, self, self.on_table)

    def send_to_owner(self, lane: int, what: str, *args: Any) -> None:
        owner = self.table.lanes[lane].owner
        if owner is not None:
            target = self.world.hosts[owner.host]
            self.world.send(self.name, target, target.on_lane, lane, what, args)

    def on_lane(self, lane: int, what: str, args: tuple[Any, ...]) -> None:
        owned = self.owned.get(lane)
        if owned is not None:
            getattr(owned, what)(*args)

    # -------------------------------------------------------------------------------------------------- publishing

    def on_publish(self, message: Message, version: int, forwards: int, reply: Reply) -> None:
        core = self.world.core.routing
        self._turn += 1
        standing = core.Standing(self.name, self.cluster, self._can_commit, self.alive)
        slot = None if "appends ids wherever they arrive" in self.world.breaks else message.slot
        route = core.route(self.table, core.Send(slot, version, forwards), standing, turn=self._turn)
        match type(route).__name__:
            case "AppendTo":
                self.owned[route.lane].publish(message, version, reply)
            case "ForwardTo":
                self.forward(message, version, forwards, route.host, reply)
            case "Behind":
                self.on_changed(False)
                reply(core.Refused())
            case _:
                reply(route)

    def _can_commit(self, lane: int) -> bool:
        owned = self.owned.get(lane)
        return owned is not None and owned.can_commit

    def forward(self, message: Message, version: int, forwards: int, host: str, reply: Reply) -> None:
        target = self.world.hosts[host]
        once = message.id is None

        def back(answer: Any) -> None:
            self.world.send(target.name, self, reply, answer, once=once)

        self.world.send(self.name, target, target.on_publish, message, version, forwards + 1, back, once=once)

    # ---------------------------------------------------------------------------------------------------- delivery

    def on_receive(self, reply: Callable[[Host, Any], None]) -> None:
        now_ms = self.steady_ms()
        handed = self.agent.hand_out(now_ms)
        if handed is not None:
            self.world.checks.handed_out(self, handed)
            reply(self, handed)
            return
        for ask in self.agent.ask(self.table.lanes, now_ms):
            self.send_to_owner(ask.lane, "lend", ask, self.name, self._granted(ask))

    def _granted(self, ask: Any) -> Reply:
        def taken(grant: Any) -> None:
            if grant is None:
                self.agent.nothing_granted(ask.request)
                return
            unsent = self.agent.take(grant, self.steady_ms())
            if unsent is not None:
                self.send_to_owner(ask.lane, "give_back", unsent)

        return lambda grant: self.world.send(self._owner_name(ask.lane), self, taken, grant)

    def _owner_name(self, lane: int) -> str:
        return self.world.logs[lane].writer

    def on_receipt(self, receipt: Any, what: str, args: tuple[Any, ...], reply: Reply) -> None:
        """Takes an ack, or an extend, for the owner of the receipt's lane."""
        lane = receipt.lease.lane
        self.send_to_owner(
            lane, what, receipt, *args, lambda a: self.world.send(self._owner_name(lane), self, reply, a)
        )
