"""Producers that send again until they are answered, and consumers that acknowledge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.replication.disk import Message

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

RETRIES_MS = (100, 400, 800)
ACK_TRIES = 6


class Producer:
    """One message after the other, each until it is confirmed."""

    def __init__(self, world: World, number: int, partition: int):
        self.world = world
        self.name = f"producer {number}"
        self.number = number
        self.partition = partition
        self._seq = 0
        self._tries = 0
        self._target = world.rng.choice(world.nodes)
        world.at(world.rng.uniform(100, 500), self._next)

    def _next(self) -> None:
        self._seq += 1
        self._send()

    def _send(self) -> None:
        world, target = self.world, self._target
        self._tries += 1
        reply = world.replies(target.name, self.name, self._on_confirmed)
        world.send(self.name, target.name, target.on_ask, self.partition, "publish", (self.number, self._seq), reply)
        world.at(world.rng.choice(RETRIES_MS), self._again, self._tries)

    def _again(self, tries: int) -> None:
        if tries == self._tries:
            nodes = self.world.nodes
            is_tidy = self.world.moves is not None and self.world.is_healed  # of many nodes chance may miss the one
            self._target = nodes[tries % len(nodes)] if is_tidy else self.world.rng.choice(nodes)
            self._send()

    def _on_confirmed(self, message: Message) -> None:
        if message == (self.number, self._seq):
            self._tries += 1
            self._seq += 1
            self.world.at(self.world.rng.uniform(20, self.world.mix.think_ms), self._next_if, self._seq)

    def _next_if(self, seq: int) -> None:
        if seq == self._seq:
            self._send()


class Consumer:
    def __init__(self, world: World, number: int, partition: int):
        self.world = world
        self.name = f"consumer {number}"
        self.partition = partition
        world.at(world.rng.uniform(100, 500), self._look)

    def _look(self) -> None:
        world, rng = self.world, self.world.rng
        leader = world.coordinator.records[self.partition].leader
        target = rng.choice(world.nodes) if leader is None or rng.random() < 0.3 else world.by_name[leader]
        reply = world.replies(target.name, self.name, self._on_message)
        world.send(self.name, target.name, target.on_receive, self.partition, reply)
        world.at(rng.uniform(50, 300), self._look)

    def _on_message(self, message: Message) -> None:
        if self.world.rng.random() > 0.05:
            self._ack(message, ACK_TRIES, {})

    def _ack(self, message: Message, tries: int, done: dict[str, bool]) -> None:
        world = self.world
        if not tries or done:
            return
        target = world.rng.choice(world.nodes)
        reply = world.replies(target.name, self.name, lambda _: done.setdefault("acked", True))
        world.send(self.name, target.name, target.on_ask, self.partition, "ack", message, reply)
        world.at(400, self._ack, message, tries - 1, done)
