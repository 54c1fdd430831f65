"""Two partitioned queues of a real node side by side with their reference: the requests, and where both must agree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from hypothesis.stateful import RuleBasedStateMachine

from backend_store.client.embedded import EmbeddedQueue
from backend_store.client.filters import PeekFilter
from backend_store.client.queue import Purge
from backend_store.core.log.block import blocks_of
from backend_store.core.log.sublogs import VIEW_DEAD, VIEW_MAIN, VIEW_OUTBOX
from backend_store.core.partitions import slots
from backend_store.core.ready import backlog, priorities
from backend_store.model import Block, Published, PushqError, QueueConfig, Verdict
from backend_store.node.slots import partition_slots
from backend_store.storage.engine import Table
from backend_store.storage.keys import log_range
from tests.support.node_world import TENANT, NodeWorld
from tests.support.partitions_facts import Fact, Seen, Wish, columns_of, draft_of, lying
from tests.support.partitions_model import PartitionsModel, Step
from tests.support.semantics_seen import numbers_of
from tests.support.world import Consumer, receipts_by_seq

SMALL: dict[tuple[ModuleType, str], int] = {
    (backlog, "CHUNKS_LOADED_BYTES_MAX"): 600,
    (priorities, "READY_RUNS_AHEAD"): 2,
    (slots, "MOVE_SLOTS_MAX"): 64,
    (partition_slots, "DRAIN_CHUNKS_PER_LOOK"): 2,
}
"""Limits small enough to be reached, and larger moves, so that a plan needs fewer of them."""
CALM_MS = 70_000
"""A queue that expanded by itself gives up one partition after a minute with little load."""
STATES = ("ready", "in_flight", "delayed", "dead")


class Receipt(NamedTuple):
    text: str
    fact: Fact
    token: str
    queue: str


@dataclass
class Pending:
    """A request to the node about messages that a crash may leave undecided. `ends`: whether it ends the messages."""

    facts: list[Fact]
    ends: bool = True
    is_answered: bool = False


class Bench(RuleBasedStateMachine):
    """The machine without rules, which the test adds."""

    world: NodeWorld
    model: PartitionsModel

    def __init__(self) -> None:
        super().__init__()
        self._bounds = {place: getattr(*place) for place in SMALL}
        for place, value in SMALL.items():
            setattr(*place, value)
        self.consumer = Consumer()
        self.receipts: list[Receipt] = []
        self.pending: list[Pending] = []
        self.steps: list[tuple[Step, list[Any]]] = []
        self.tasks: list[tuple[asyncio.Task[Any], Callable[[Any], None]]] = []
        self.names = ["a", "b", "c"]
        self.prepared: list[tuple[list[Fact], list[Block]]] = []
        """Calls prepared with an earlier slot table."""
        self.crashes = 0
        self.redrives = 0

    def restore_bounds(self) -> None:
        for place, value in self._bounds.items():
            setattr(*place, value)

    # ---------------------------------------------------------------------------------------------------- what there is

    def open(self, a: QueueConfig, b: QueueConfig) -> None:
        self.world = NodeWorld()
        self.world.make("b", b)
        self.world.make("a", a)
        self.world.make("c", b)
        self.model = PartitionsModel({"a": a, "b": b, "c": b})
        self.model.now_ms = self.world.now_ms

    def queues(self) -> list[EmbeddedQueue]:
        """The queues that contain messages; the companions are views of the same data."""
        return [self.world.queue(name) for name in self.names]

    def places(self) -> dict[int, Seen]:
        found: dict[int, Seen] = {}
        for queue in self.queues():
            for number, seen in lying(queue):
                assert number not in found, f"{number} is in {found[number]} and in {seen}"
                found[number] = seen
        return found

    @property
    def is_held(self) -> bool:
        return self.world.writer.allowed is not None

    # ------------------------------------------------------------------------------------------------------ publishes

    def drafted(self, queue: str, wishes: Sequence[Wish], *, routed: bool = False) -> tuple[list[Fact], list[Block]]:
        """The messages of one call, and its blocks, in block order. `routed`: blocks are made for the partitions of the
        current slot table.
        """
        facts, drafts, config = [], [], self.model.configs[queue]
        for wish in wishes:
            fact = self.model.new(queue)
            fact.key = wish.key
            if config.dedupe == "id" and wish.id is not None:
                fact.hash = f"{wish.id}-{wish.key}".encode().ljust(16, b"\0")
            fact.scheduled_ms = self.world.now_ms + wish.delay_ms if wish.delay_ms else 0
            lives_ms = wish.ttl_ms if wish.ttl_ms is not None else config.message_ttl_ms
            fact.expires_ms = self.world.now_ms + lives_ms if lives_ms else 0
            facts.append(fact)
            drafts.append(draft_of(fact, wish.priority % config.priorities))
        blocks, order = blocks_of(drafts) if not routed else self.world.queue(queue).blocks(columns_of(drafts), None)
        return ([facts[n] for n in order] if order is not None else facts), blocks

    def send(self, queue: str, facts: list[Fact], blocks: list[Block]) -> None:
        for fact in facts:
            self.model.sent(fact)
        replies: list[Published | PushqError] = []

        def reply(result: Published | PushqError) -> None:
            assert not replies, "a publish was answered twice"
            replies.append(result)
            self.model.now_ms = self.world.now_ms
            self.model.answered(facts, result, blocks)

        self.world.tell(lambda: self.world.queue(queue).publish(blocks, reply))

    # ------------------------------------------------------------------------------------------------------- receipts

    def lease(self, name: str, limit: int, visibility_ms: int) -> list[Receipt]:
        queue = self.world.queue(name)
        lease = self.world.tell(lambda: queue.take(limit, self.consumer, visibility_ms))
        if lease is None:
            return []
        by_seq = numbers_of(lease)
        assert 1 <= len(by_seq) <= limit
        facts = [self.model.facts[number] for number in by_seq.values()]
        self.model.taken(name, facts, lease, self.places())
        texts = receipts_by_seq(lease)
        taken = [Receipt(texts[seq], self.model.facts[n], lease.token, name) for seq, n in by_seq.items()]
        self.receipts += taken
        return taken

    def some(self, picks: Sequence[int], queue: str | None = None) -> list[Receipt]:
        """Receipts of one queue by number, the youngest first."""
        known = [one for one in self.receipts if queue is None or one.queue == queue]
        if not known:
            return []
        chosen = [known[-1 - n % len(known)] for n in dict.fromkeys(n % len(known) for n in picks)]
        return [one for one in chosen if one.queue == chosen[0].queue]

    def settle_some(self, chosen: list[Receipt]) -> None:
        self._ask(chosen, lambda queue, texts, reply: queue.settle(texts, reply), self._acked)

    def give_back_some(self, chosen: list[Receipt], delay_ms: int) -> None:
        due_ms = self.world.now_ms + delay_ms if delay_ms else 0
        on_verdict = partial(self._given_back, due_ms=due_ms)
        self._ask(chosen, lambda queue, texts, reply: queue.give_back(texts, delay_ms, reply), on_verdict, ends=False)

    def extend_some(self, chosen: list[Receipt], visibility_ms: int) -> None:
        deadline_ms = self.world.now_ms + visibility_ms
        on_verdict = partial(self._extended, deadline_ms=deadline_ms)
        self._ask(chosen, lambda queue, texts, reply: queue.extend(texts, visibility_ms, reply), on_verdict, ends=False)

    def _ask(
        self,
        chosen: list[Receipt],
        ask: Callable[[EmbeddedQueue, list[str], Callable[[list[Verdict] | PushqError], None]], None],
        on_verdict: Callable[[Receipt, bool], None],
        *,
        ends: bool = True,
    ) -> None:
        facts = [one.fact for one in chosen]
        pending = Pending(facts, ends=ends)
        self.pending.append(pending)

        def reply(result: list[Verdict] | PushqError) -> None:
            assert isinstance(result, list), result
            pending.is_answered = True
            self.model.now_ms = self.world.now_ms
            for one, verdict in zip(chosen, result, strict=True):
                if verdict.ok or not self._is_undecided(one.fact):
                    on_verdict(one, verdict.ok)

        queue = self.world.queue(chosen[0].queue)
        self.world.tell(lambda: ask(queue, [one.text for one in chosen], reply))

    def _is_undecided(self, fact: Fact) -> bool:
        """Whether an earlier request about it may have been decided."""
        return any(fact in one.facts for one in self.pending if not one.is_answered)

    def _acked(self, one: Receipt, ok: bool) -> None:
        if one.fact.state != "over":
            self.model.acked(one.fact, one.token, ok=ok)

    def _given_back(self, one: Receipt, ok: bool, *, due_ms: int) -> None:
        self.model.given_back(one.fact, one.token, ok=ok, due_ms=due_ms)

    def _extended(self, one: Receipt, ok: bool, *, deadline_ms: int) -> None:
        assert ok or not (one.fact.token == one.token and one.fact.is_held(self.model.now_ms)), one
        if ok and one.fact.token == one.token:
            one.fact.deadline_ms = deadline_ms

    def ack_and_publish(self, chosen: list[Receipt], outputs: list[Fact], blocks: list[Block]) -> None:
        """One step over both queues."""
        for fact in outputs:
            self.model.sent(fact)
        step, answers = Step([one.fact for one in chosen], outputs), list[Any]()
        self.steps.append((step, answers))
        self.pending.append(pending := Pending(step.inputs))

        def reply(result: Any) -> None:
            answers.append(result)
            pending.is_answered = True
            self.model.now_ms = self.world.now_ms
            if isinstance(result, PushqError) or not result.places:
                for fact in outputs:
                    fact.state = "refused"
                return
            for one, verdict in zip(chosen, result.verdicts, strict=True):
                assert verdict.ok, "a step published but did not ack"
                self._acked(one, True)
            self.model.answered(outputs, result.places[0], blocks)

        a, b = self.world.queue("a"), self.world.queue("b")
        self.world.tell(lambda: a.settle_and_publish([one.text for one in chosen], [(b, blocks)], reply))

    # ------------------------------------------------------------------------------------------------- longer business

    def begin(self, work: Any, done: Callable[[Any], None]) -> None:
        """Starts an awaited operation, which may finish at once, or when commits land."""
        self.tasks.append((self.world.start(work), done))

    def hear(self) -> None:
        """Processes operations that have finished."""
        self.model.now_ms = self.world.now_ms
        waiting = []
        for task, done in self.tasks:
            if task.done():
                done(task.result())
            else:
                waiting.append((task, done))
        self.tasks = waiting
        self.pending = [one for one in self.pending if not one.is_answered]
        self.steps = [(step, answers) for step, answers in self.steps if not answers]

    def purge(self, name: str) -> None:
        view = VIEW_DEAD if name.endswith(".dead") else VIEW_MAIN
        owner = name.removesuffix(".dead")
        before = [self.model.facts[n] for n, seen in self.places().items() if (seen.queue, seen.view) == (owner, view)]
        pending = Pending(before)
        self.pending.append(pending)

        def done(purge: Purge) -> None:
            pending.is_answered = True
            there = self.places()
            stayed = [fact for fact in before if fact.number in there and there[fact.number] == fact.seen]
            assert not stayed, f"{stayed} outlived a purge"
            # So may messages published while it waited for its commit.
            for fact in self.model.facts.values():
                is_of_it = fact.home == owner or (fact.seen is not None and fact.seen.queue == owner)
                if is_of_it and fact.state == "stored" and fact.number not in there:
                    fact.state = "over"

        self.begin(self.world.queue(name).purge("p"), done)

    def cancel(self, fact: Fact) -> None:
        pending = Pending([fact])
        self.pending.append(pending)

        def done(outcome: str) -> None:
            pending.is_answered = True
            if outcome == "cancelled":
                assert not fact.is_held(self.model.now_ms), f"{fact} was cancelled"
                fact.state = "over"

        self.begin(self.world.queue("a").cancel(f"m{fact.number}"), done)

    def redrive(self) -> None:
        queue = self.world.queue("a")
        if any(job.state == "running" for _, job in queue.redrives.since(0)):
            return
        self.redrives += 1
        self.model.has_redriven = True
        letters = queue.dead_letters(lambda *_: True, None, own=False)
        find = self.world.queue
        self.world.tell(lambda: queue.redrive(f"r{self.redrives}", letters, total=0, rate_per_s=None, find=find))

    # --------------------------------------------------------------------------------------------------------- the end

    def undecided(self, *, is_clean: bool = False) -> list[Step]:
        """The process ends: whatever awaited a response may have happened. Returns the steps among it."""
        for fact in self.model.facts.values():
            is_stored = fact.lease is not None and fact.lease.durable and fact.lease.number > 0
            if not (is_clean or is_stored):
                fact.token = ""
        for one in self.pending:
            for fact in one.facts:
                fact.may_be_over = fact.may_be_over or one.ends
                fact.token = fact.token if one.ends else ""
        steps = [step for step, _ in self.steps]
        self.pending, self.steps, self.tasks = [], [], []
        return steps

    def peeked(self, name: str, state: str) -> list[int]:
        """The numbers of all messages in a state, read page by page."""
        found: list[int] = []
        cursor: str | None = None
        for _ in range(200):
            page = self.world.do(self.world.queue(name).peek(PeekFilter(state=state, limit=3, cursor=cursor)))
            found += [int(item.message["id"][1:]) for item in page.items]
            cursor = page.next
            if cursor is None:
                return found
        raise AssertionError("a peek does not end")

    def check_counts(self) -> None:
        there = self.places()
        for queue in self.queues():
            stats = queue.stats()
            main = [n for n, seen in there.items() if (seen.queue, seen.view) == (queue.name, VIEW_MAIN)]
            dead = [n for n, seen in there.items() if seen.queue == queue.name and seen.view == VIEW_DEAD]
            out = [n for n, seen in there.items() if seen.queue == queue.name and seen.view == VIEW_OUTBOX]
            assert stats.ready + stats.in_flight + stats.delayed == len(main), f"{stats}, but {main} are present"
            most = self.model.configs[queue.name].max_messages
            assert most is None or self.redrives or len(main) <= most, f"{len(main)} messages of at most {most}"
            assert stats.dead == len(dead) + len(out), f"{stats}, but {dead}, {out} are dead"
            peeked = {state: self.peeked(queue.name, state) for state in STATES}
            assert sorted(peeked["ready"] + peeked["in_flight"] + peeked["delayed"]) == sorted(main)
            assert sorted(peeked["dead"]) == sorted(dead)
            counts = stats.ready, stats.in_flight, stats.delayed
            assert counts == tuple(len(peeked[state]) for state in STATES[:3]), f"{stats}, but {peeked} are seen"

    def leftovers(self) -> dict[str, int]:
        """Rows of partitions that are gone."""
        found: dict[str, int] = {}
        for known in self.world.node.metadata.maps.values():
            for number, member in known.table.members.items():
                for table in Table if member.role == "retired" else ():
                    rows = self.world.engine.scan(table, *log_range(known.replicas[number]), 100)
                    if table is not Table.META and rows:
                        found[f"{number} {table.value}"] = len(rows)
        return found

    def config_of(self, name: str) -> QueueConfig:
        return self.world.node.metadata.find(TENANT, name).config
