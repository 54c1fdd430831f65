"""What goes wrong, in the proportions that a seed draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend_store.core.replication.record import Identity
from tests.simulation.replication.coordinator import COORDINATOR

if TYPE_CHECKING:
    from tests.simulation.replication.node import Node
    from tests.simulation.replication.world import World


class Faults:
    def __init__(self, world: World):
        self.world = world
        self._old: list[Identity] = []
        world.at(1_500, self._go_on)

    def _go_on(self) -> None:
        world, mix = self.world, self.world.mix
        if world.is_healed:
            return
        names, weights = mix.faults
        if any(weights):
            [name] = world.rng.choices(names, weights)
            if getattr(self, name.replace(" ", "_"))() is not False:
                world.checks.counts[name] += 1
        world.at(world.rng.expovariate(1 / mix.fault_ms), self._go_on)

    def _some(self) -> Node:
        return self.world.rng.choice(self.world.nodes)

    def _leading(self) -> Node:
        record = self.world.rng.choice(list(self.world.coordinator.records.values()))
        return self._some() if record.leader is None else self.world.by_name[record.leader]

    # ------------------------------------------------------------------------------------------------------- nodes

    def crash(self, node: Node | None = None) -> None:
        node = node or self._some()
        node.crash()
        self.world.at(self.world.rng.choice([20, 50, 300, 4_000]), node.start)

    def crash_leader(self) -> None:
        self.crash(self._leading())

    def crash_all(self) -> None:
        for node in self.world.nodes:
            self.crash(node)

    def crash_most(self) -> None:
        """Only one is left, and the others stay away for longer than a session lasts."""
        left = self._some()
        for node in self.world.nodes:
            if node is not left:
                node.crash()
                self.world.at(self.world.rng.choice([4_000, 9_000]), node.start)

    def pause(self, node: Node | None = None) -> None:
        node = node or self._some()
        node.pause()
        self.world.at(self.world.rng.choice([300, 3_500, 6_000]), node.go_on)

    def pause_leader(self) -> None:
        self.pause(self._leading())

    def replace_disk(self) -> bool:
        node = self._some()
        if not self.may_lose(node):
            return False
        node.crash()
        node.replace_disk()
        self.world.at(self.world.rng.choice([20, 300, 4_000]), node.start)
        return True

    def flip_a_bit(self) -> bool:
        node, rng = self._some(), self.world.rng
        images = [image for image in node.disk.images.values() if image.entries]
        if not images or not self.may_lose(node) or self.world.coordinator.records[0].min_in_sync == 1:
            return False  # it may be found late, when this node is the only one in sync that is needed
        image = rng.choice(images)
        place = rng.randrange(len(image.entries))
        entry = image.entries[place]
        at = rng.randrange(len(entry.data))
        data = entry.data[:at] + bytes([entry.data[at] ^ 1 << rng.randrange(8)]) + entry.data[at + 1 :]
        image.entries[place] = entry._replace(data=data)
        number = next(number for number, found in node.disk.images.items() if found is image)
        memory = getattr(node, "memory", {}).get(number)
        if memory is not None:
            memory.entries[:] = [image.entries[place] if kept is entry else kept for kept in memory.entries]
        node.disk.is_damaged = True
        return True

    def may_lose(self, node: Node) -> bool:
        """Whether all others that count have what is committed, and there are some: one disk is lost at a time."""
        world = self.world
        for record in world.coordinator.records.values():
            holders = [
                name
                for name in (*record.isr, *record.elr)
                if world.by_name[name].disk.id == record.disks[name] and not world.by_name[name].disk.is_damaged
            ]
            others = [name for name in holders if name != node.name]
            if not others or len(others) < len({*record.isr, *record.elr} - {node.name}):
                return False
            if record.mode == "async" and node.name == record.leader and len(others) < 2:
                return False  # the other may be giving its place up just now, to take this one's state
            if record.min_in_sync == 1 and node.name in holders:
                return False
        return True

    def set_a_clock(self) -> None:
        self._some().wall_skew_ms = self.world.rng.randint(-5_000, 5_000)

    # ----------------------------------------------------------------------------------------------------- network

    def _cut(self, links: set[tuple[str, str]]) -> None:
        world = self.world
        if world.rng.random() < 0.3:
            links = {link for link in sorted(links) if link[0] < link[1]}  # one way
        world.cut |= links
        world.at(world.rng.choice([800, 3_000, 7_000]), world.cut.difference_update, links)

    def cut(self, node: Node | None = None) -> None:
        node = node or self._some()
        others = [other.name for other in self.world.nodes if other is not node]
        cut = self.world.rng.sample(others, self.world.rng.randint(1, len(others)))
        self._cut({(node.name, name) for name in cut} | {(name, node.name) for name in cut})

    def cut_off_leader(self) -> None:
        node = self._leading()
        others = [other.name for other in self.world.nodes if other is not node]
        self._cut({(node.name, name) for name in others} | {(name, node.name) for name in others})

    def cut_from_coordinator(self) -> None:
        name = self.world.rng.choice([*(node.name for node in self.world.nodes), "manager 1", "manager 2"])
        self._cut({(name, COORDINATOR), (COORDINATOR, name)})

    def heal(self) -> None:
        self.world.cut.clear()

    # --------------------------------------------------------------------------------------------- the coordinator

    def stop_coordinator(self) -> None:
        self.world.coordinator.stop()
        self.world.at(self.world.rng.choice([500, 4_000, 8_000]), self.world.coordinator.start)

    def end_a_session(self) -> bool:
        """The coordinator forgets a session early: what rests on leases may break, and nothing else."""
        if self.world.leases_hold:
            return False
        self.world.coordinator.end_session(self._some().name)
        return True

    def old_registration(self) -> None:
        """A registration of a life that is over arrives."""
        known = list(self.world.coordinator.known.values())
        self._old = [*self._old, *known][-20:]
        asks = self.world.rng.choice(self._old)
        self.world.send(asks.node, COORDINATOR, self.world.coordinator.on_register, asks, lambda known: None)

    def hand_over(self) -> None:
        world = self.world
        number, record = world.rng.choice(list(world.coordinator.records.items()))
        if record.leader is None:
            return
        node = world.by_name[record.leader]
        others = [name for name in record.replicas if name != record.leader]
        if node.is_up and number in node.replicas and others:
            node.do(self._hand_over, node, number, world.rng.choice(others))

    def _hand_over(self, node: Node, number: int, target: str | None) -> None:
        node.replicas[number].hand_over(target, now_ms=node.clock())  # type: ignore[arg-type]
        node.settle(number)

    def resign(self) -> None:
        world = self.world
        number, record = world.rng.choice(list(world.coordinator.records.items()))
        if record.leader is not None and number in world.by_name[record.leader].replicas:
            node = world.by_name[record.leader]
            node.do(self._hand_over, node, number, None)
