"""Queues of several partitions against a reference: they grow and shrink while they are in use, and the process ends at
any moment, in the middle of a move as well."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from backend_store.model import QueueConfig
from tests.support.node_world import TENANT
from tests.support.partitions_bench import CALM_MS, Bench
from tests.support.partitions_facts import Fact, Wish, configs, lying, others, wishes
from tests.support.seeds import examples

EXAMPLES = examples(10, exploring=60)
STEPS = 40

some_wishes = st.lists(wishes, min_size=1, max_size=6)
picks = st.lists(st.integers(0, 30), min_size=1, max_size=4)
name = st.sampled_from(["a", "a", "a", "b", "a.dead"])


class PartitionsModelTest(Bench):
    def teardown(self) -> None:
        try:
            if hasattr(self, "world") and sys.exc_info()[0] is None:
                self._end()
        finally:
            if hasattr(self, "world"):
                self.world.close()
            self.restore_bounds()

    @initialize(a=configs(), b=others(), wishes=some_wishes, leaves=st.booleans())
    def start(self, a: QueueConfig, b: QueueConfig, wishes: list[Wish], leaves: bool) -> None:
        self.open(a, b)
        self.leaves = leaves
        self.publish(wishes, name="a")

    # ------------------------------------------------------------------------------------------------------- messages

    @rule(wishes=some_wishes, name=st.sampled_from(["a", "a", "a", "b"]))
    def publish(self, wishes: list[Wish], name: str) -> None:
        self.send(name, *self.drafted(name, wishes))
        self._go_on()

    @rule(wishes=some_wishes, n=st.integers(2, 5))
    def publish_much(self, wishes: list[Wish], n: int) -> None:
        """Calls that are on the way together."""
        for _ in range(n):
            self.send("a", *self.drafted("a", wishes))
        self._go_on()

    @rule(wishes=some_wishes)
    def prepare(self, wishes: list[Wish]) -> None:
        """A gateway encodes a call by the slot table that it sees."""
        self.prepared.append(self.drafted("a", wishes, routed=True))

    @precondition(lambda self: self.prepared)
    @rule()
    def publish_prepared(self) -> None:
        """And sends it when the table may be another one."""
        self.send("a", *self.prepared.pop(0))
        self._go_on()

    @rule(name=name, limit=st.integers(1, 12), ms=st.sampled_from([100, 400, 30_000]))
    def take(self, name: str, limit: int, ms: int) -> None:
        self.lease(name, limit, ms)
        self._go_on()

    @rule(
        name=name,
        limit=st.integers(1, 12),
        then=st.sampled_from(["ack", "ack", "ack", "nack", "delay", "extend", "step", "run out"]),
        wishes=some_wishes,
    )
    def work(self, name: str, limit: int, then: str, wishes: list[Wish]) -> None:
        """What consumers mostly do: take, and then something with what they got."""
        taken = self.lease(name, limit, 400)
        self._go_on()
        if not taken or self.is_held:
            return
        if then == "ack":
            self.settle_some(taken)
        elif then in ("nack", "delay"):
            self.give_back_some(taken, 70 if then == "delay" else 0)
        elif then == "extend":
            self.extend_some(taken[:2], 1000)
        elif then == "step" and name == "a":
            self.ack_and_publish(taken[:2], *self.drafted("b", wishes))
        elif then == "run out":
            self.time_passes(400)
        self._go_on()

    @precondition(lambda self: self.receipts)
    @rule(picks=picks)
    def ack(self, picks: list[int]) -> None:
        self.settle_some(self.some(picks))
        self._go_on()

    @precondition(lambda self: self.receipts)
    @rule(picks=picks, delay_ms=st.sampled_from([0, 0, 60, 500]))
    def nack(self, picks: list[int], delay_ms: int) -> None:
        self.give_back_some(self.some(picks), delay_ms)
        self._go_on()

    @precondition(lambda self: self.receipts)
    @rule(picks=picks, ms=st.sampled_from([100, 1000]))
    def extend(self, picks: list[int], ms: int) -> None:
        self.extend_some(self.some(picks), ms)
        self._go_on()

    @precondition(lambda self: self.some([0], "a"))
    @rule(picks=picks, wishes=some_wishes)
    def step(self, picks: list[int], wishes: list[Wish]) -> None:
        """Acks in the one queue and publishes in the other: both or neither."""
        self.ack_and_publish(self.some(picks, "a"), *self.drafted("b", wishes))
        self._go_on()

    @precondition(lambda self: self._stored())
    @rule(which=st.integers(0, 100))
    def cancel_one(self, which: int) -> None:
        facts = self._stored()
        self.cancel(facts[which % len(facts)])
        self._go_on()

    @rule(name=name)
    def purge_all(self, name: str) -> None:
        self.purge(name)
        self._go_on()

    @rule()
    def redrive_all(self) -> None:
        self.redrive()
        self._go_on()

    # ----------------------------------------------------------------------------------------------------- partitions

    @rule(name=st.sampled_from(["a", "a", "a", "b"]), partitions=st.integers(1, 5))
    def resize(self, name: str, partitions: int) -> None:
        self._configure(name, partitions=partitions)

    @rule(
        partitions=st.integers(1, 5),
        wishes=some_wishes,
        held=st.integers(0, 3),
        limit=st.integers(1, 12),
        ms=st.sampled_from([0, 60]),
    )
    def move_a_backlog(self, partitions: int, wishes: list[Wish], held: int, limit: int, ms: int) -> None:
        """Keys have messages from before and after their slot went; some of the older ones are in somebody's hands."""
        self.publish(wishes, name="a")
        if held:
            self.take("a", held, 400)
        self._configure("a", partitions=partitions)
        self.publish(wishes, name="a")
        self.time_passes(ms)
        for _ in range(3):
            self.take("a", limit, 400)

    @rule(partitions=st.integers(1, 5), commits=st.integers(0, 14), wishes=some_wishes, then=st.booleans())
    def resize_and_stop_in_it(self, partitions: int, commits: int, wishes: list[Wish], then: bool) -> None:
        """The plan is carried out as far as so many commits bring it; `then` it goes on."""
        self.hold(commits)
        self._configure("a", partitions=partitions)
        self.publish_much(wishes, 3)
        if then:
            self.let_go()

    def _configure(self, name: str, **changes: Any) -> None:
        definition = self.world.node.metadata.find(TENANT, name)
        config = msgspec.structs.replace(definition.config, **changes)
        self.begin(self.world.store.update_queue(TENANT, name, config, definition.version), lambda queue: None)
        self._go_on()

    # --------------------------------------------------------------------------------------------- the disk, and time

    @rule(ms=st.sampled_from([1, 60, 60, 300, 1000, 2500]))
    def time_passes(self, ms: int) -> None:
        self.world.pass_time(ms)
        self._go_on()

    @precondition(lambda self: not self.is_held)
    @rule(commits=st.integers(0, 8))
    def hold(self, commits: int) -> None:
        """So many commits land, and the next is on its way."""
        self.world.hold(commits)

    @precondition(lambda self: self.is_held)
    @rule()
    def let_go(self) -> None:
        self.world.let_go()
        self._go_on()

    @rule(landed=st.booleans())
    def crash(self, landed: bool) -> None:
        self.hear()
        steps = self.undecided()
        self.world.crash(landed=landed)
        self.crashes += 1
        self.model.now_ms = self.world.now_ms
        self.model.crashed(self.places(), steps)
        self._go_on()

    @precondition(lambda self: not self.tasks)
    @rule()
    def restart(self) -> None:
        """A clean stop and start: leases are kept."""
        self.let_go()
        if self.tasks:
            return
        steps = self.undecided(is_clean=True)
        self.world.restart()
        self.crashes += 1
        self.model.now_ms = self.world.now_ms
        self.model.crashed(self.places(), steps)
        self._go_on()

    def _go_on(self) -> None:
        self.world.settle()
        self.hear()

    def _stored(self) -> list[Fact]:
        return [fact for fact in self.model.facts.values() if fact.state == "stored" and fact.home == "a"]

    # --------------------------------------------------------------------------------------------------------- checks

    @invariant()
    def is_as_the_reference_says(self) -> None:
        if hasattr(self, "world") and not self.is_held:
            self._go_on()
            self.model.look(self.places())
            self.check_counts()

    # -------------------------------------------------------------------------------------------------------- the end

    def _end(self) -> None:
        """Everything is taken and acked; then the plans have come to their ends, and what was given up is gone."""
        self.world.let_go()
        self._go_on()
        if self.leaves:
            self._leave()
        self.time_passes(30_000)
        for _ in range(80):
            if not self.model.left() and not self.places():
                break
            for queue in [name + suffix for name in self.names for suffix in ("", ".dead")]:
                while taken := self.lease(queue, 40, 400):
                    self.world.settle()
                    self.settle_some(taken)
                    self._go_on()
            self.is_as_the_reference_says()
            self.time_passes(100)
        assert not self.model.left(), f"{self.model.left()} cannot be had"
        for _ in range(6):
            grows = "a" in self.names and self.config_of("a").auto_expand is not None
            self.time_passes(CALM_MS if grows else 2500)
        for queue in self.queues():
            open_ones = self.world.store.node.queues._queues[queue.definition.uid]
            numbers = [partition.index for partition in open_ones.all]
            assert len(numbers) == self.config_of(queue.name).partitions, f"{queue.name} still has {numbers}"
            moving = self.world.node.queues._movings.get(queue.definition.uid)
            assert moving is None or moving.is_at_rest, f"a plan of {queue.name} does not come to its end"
        assert not self.leftovers()
        self.is_as_the_reference_says()
        if not self.crashes:
            assert not self.model._repeats, f"{self.model._repeats} name nothing"

    def _leave(self) -> None:
        """The queue is deleted, and all that it holds goes to another one."""
        leaving = self.world.queue("a")
        self.names, self.model.is_leaving = ["b", "c"], True
        for fact in self.model.facts.values():
            fact.token = ""
        self.begin(self.world.store.move_queue(TENANT, "a", "c"), lambda queue: None)
        self.time_passes(5000)
        assert not dict(lying(leaving)), "some messages did not move with the rest"


TestPartitions = PartitionsModelTest.TestCase
TestPartitions.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    report_multiple_bugs=False,
)
