"""The work queue against the reference queue: any order of calls, commits that are late or never land, crashes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend_store.client.filters import PeekFilter
from backend_store.client.peek import look
from backend_store.core.leases.leases import Lease
from backend_store.core.leases.receipts import SUFFIXES, by_token
from backend_store.core.limits import LEASE_MS_MIN
from backend_store.core.log.chunk import KIND_JSON, plain_blocks
from backend_store.core.ready import backlog, priorities
from backend_store.model import PeekPage, Published, PushqError
from tests.support.contest import Early, decide
from tests.support.queue_model import Message, QueueModel, Receipt
from tests.support.seeds import examples
from tests.support.world import Consumer, World, attempts_by_seq, bodies_by_seq, receipts_by_seq, verdicts

EXAMPLES = examples(90, exploring=600)
STEPS = 60
CONSUMERS = 3
QUIET_STEPS = 3
"""Commits and deliveries between two ends of the process: a queue that only restarts decides nothing."""
SMALL = {(backlog, "CHUNKS_LOADED_BYTES_MAX"): 600, (priorities, "READY_RUNS_AHEAD"): 2}
"""Bounds small enough to be reached: chunks leave memory while they are in use, and a backlog stays on disk."""

Ack = tuple[list[str], list[Receipt], list[Any]]

any_number = st.integers(0, 1 << 20)


class WorkQueue(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._bounds = {(module, name): getattr(module, name) for module, name in SMALL}
        for (module, name), value in SMALL.items():
            setattr(module, name, value)
        self.world = World()
        self.model = QueueModel(self.world.now_ms)
        self.consumers = [Consumer() for _ in range(CONSUMERS)]
        self.bodies = 0
        self.issued: list[tuple[str, Receipt]] = []
        """Every receipt ever given out, as text and as the reference names it."""
        self.publishes: list[tuple[list[bytes], list[Any]]] = []
        self.acks: list[Ack] = []
        self.early = Early()
        self.nacks: list[tuple[Ack, int]] = []
        self.purges: list[list[Any]] = []
        self.landing: list[Callable[[], None]] = []
        self.confirmed: set[int] = set()
        self.acked: set[int] = set()
        self.quiet_steps = 0

    def teardown(self) -> None:
        for (module, name), value in self._bounds.items():
            setattr(module, name, value)

    # ------------------------------------------------------------------------------------------------- commands

    @initialize(count=st.integers(1, 30))
    def begin(self, count: int) -> None:
        self.publish([1] * count, size=3)
        self.commit()

    @rule(counts=st.lists(st.integers(1, 5), min_size=1, max_size=2), size=st.sampled_from([0, 3, 200, 17_000]))
    def publish(self, counts: list[int], size: int) -> None:
        for count in counts:
            bodies = [self._body(size) for _ in range(count)]
            answers: list[Any] = []
            self.world.partition.publish(plain_blocks(KIND_JSON, bodies), answers.append)
            self.publishes.append((bodies, answers))

    def _body(self, size: int) -> bytes:
        self.bodies += 1
        return b"%d" % self.bodies + b" " * size

    @rule(limit=st.integers(1, 70), who=st.integers(0, CONSUMERS - 1), visibility_ms=st.sampled_from([0, 50, 400]))
    def take(self, limit: int, who: int, visibility_ms: int) -> None:
        ready = self.model.in_state("ready")
        lease = self.world.take(limit, self.consumers[who], visibility_ms)
        if lease is None:
            assert not ready, f"{len(ready)} messages are ready and none was handed out"
            return
        self.quiet_steps += 1
        seqs = list(receipts_by_seq(lease))
        assert 1 <= len(seqs) <= limit
        self.model.taken(seqs, lease.token, who, self.world.now_ms + max(visibility_ms, LEASE_MS_MIN))
        assert attempts_by_seq(lease) == {seq: self.model.messages[seq].attempt for seq in seqs}
        assert bodies_by_seq(lease) == {seq: self.model.messages[seq].body for seq in seqs}
        self.issued += [(text, (lease.token, seq)) for seq, text in receipts_by_seq(lease).items()]

    @rule(
        limit=st.integers(1, 9),
        who=st.integers(0, CONSUMERS - 1),
        visibility_ms=st.sampled_from([50, 400]),
        then=st.sampled_from(["ack", "nack", "delay", "extend", "run out", "unsent", "go away"]),
        some=st.lists(st.integers(0, 8), min_size=1, max_size=3),
    )
    def work(self, limit: int, who: int, visibility_ms: int, then: str, some: list[int]) -> None:
        """What consumers mostly do: take, and then something with what they got."""
        issued = len(self.issued)
        self.take(limit, who, visibility_ms)
        if len(self.issued) == issued:
            return
        if then == "ack":
            self.ack(some, "")
        elif then in ("nack", "delay"):
            self.nack(some, "", 20 if then == "delay" else 0)
        elif then == "extend":
            self.extend(some, 400)
        elif then == "run out":
            self.time_passes(400)
        elif then == "unsent":
            self.leave_unsent(who, -1)
        else:
            self.go_away(who)

    @precondition(lambda self: self.issued)
    @rule(picks=st.lists(any_number, min_size=1, max_size=6), forge=st.sampled_from(["", "", "", "token", "index"]))
    def ack(self, picks: list[int], forge: str) -> None:
        self.acks.append(self._asked(picks, forge, self.world.main.settle))

    @precondition(lambda self: self.issued)
    @rule(
        picks=st.lists(any_number, min_size=1, max_size=6),
        forge=st.sampled_from(["", "", "", "token"]),
        delay_ms=st.sampled_from([0, 0, 20, 500]),
    )
    def nack(self, picks: list[int], forge: str, delay_ms: int) -> None:
        due_ms = self.world.now_ms + delay_ms if delay_ms else 0

        def give_back(grouped: dict[str, int], reply: Callable[[dict[str, int] | PushqError], None]) -> None:
            self.world.main.give_back(grouped, due_ms, None, reply)

        self.nacks.append((self._asked(picks, forge, give_back), due_ms))

    @precondition(lambda self: self.issued)
    @rule(picks=st.lists(any_number, min_size=1, max_size=6), visibility_ms=st.sampled_from([0, 50, 400]))
    def extend(self, picks: list[int], visibility_ms: int) -> None:
        texts, receipts = self._picked(picks, "")
        held = [self.model.holds(r) for r in receipts]
        assert self.world.extend(*texts, visibility_ms=visibility_ms) == held
        for receipt, is_held in zip(receipts, held, strict=True):
            if is_held:
                self.model.messages[receipt[1]].deadline_ms = self.world.now_ms + visibility_ms

    @rule(who=st.integers(0, CONSUMERS - 1), which=any_number)
    def leave_unsent(self, who: int, which: int) -> None:
        leases = [lease for lease in self.consumers[who].leases if lease.rest is None and self._is_whole(lease)]
        if leases:
            lease = leases[which % len(leases)]
            self.model.unsent(lease.token)
            # Its bytes never left: nobody can have this receipt.
            self.issued = [(text, r) for text, r in self.issued if r[0] != lease.token]
            self.world.main.unsent(lease)

    def _is_whole(self, lease: Lease) -> bool:
        given = [r for _, r in self.issued if r[0] == lease.token]
        return bool(given) and all(self.model.holds(r) for r in given) and not self._is_asked_for(lease.token)

    def _is_asked_for(self, token: str) -> bool:
        asked = [*self.acks, *(ack for ack, _ in self.nacks)]
        return any(receipt[0] == token for _, receipts, _ in asked for receipt in receipts)

    @rule(who=st.integers(0, CONSUMERS - 1))
    def go_away(self, who: int) -> None:
        consumer = self.consumers[who]
        if any(list(lease.parts()) for lease in consumer.leases):
            self._decide_first()
        for lease in consumer.leases:
            for part in list(lease.parts()):
                self.world.main.give_back_lease(part)
        consumer.leases.clear()
        for m in self.model.messages.values():
            if m.state == "leased" and m.holder == who:
                self.model.give_back(m.seq)

    @precondition(lambda self: self.quiet_steps >= QUIET_STEPS)
    @rule()
    def purge(self) -> None:
        answers: list[Any] = []
        self.world.partition.purge(answers.append)
        self.purges.append(answers)

    @rule(ms=st.sampled_from([1, 15, 49, 50, 400, 1000]))
    def time_passes(self, ms: int) -> None:
        before = [len(c.lost_receipts) for c in self.consumers]
        if any(m.state == "leased" and m.deadline_ms <= self.world.now_ms + ms for m in self.model.messages.values()):
            self._decide_first()
        self.world.pass_time(ms)
        lost = self.model.tick(self.world.now_ms)
        told = [text for c, n in zip(self.consumers, before, strict=True) for text in c.lost_receipts[n:]]
        kept = [r for r in lost if self.model.messages[r[1]].holder >= 0]
        assert sorted(told) == sorted(self._text(r) for r in kept)

    # -------------------------------------------------------------------------------------------------- the disk

    @precondition(lambda self: not self.world.committer.is_in_flight)
    @rule()
    def prepare(self) -> None:
        """The reference decides what waits as the partition does: publishes, acks, nacks, purges."""
        asked = {token for _, receipts, _ in self.acks for token, _ in receipts}
        strange = {token for token in asked if self.world.main.core.is_strange(token)}
        if not self.world.committer.prepare():
            return
        publishes, self.publishes = self.publishes, []
        acks, self.acks = self.acks, []
        nacks, self.nacks = self.nacks, []
        purges, self.purges = self.purges, []
        early, self.early = self.early, Early()
        won = decide(
            [receipts for _, receipts, _ in acks],
            strange,
            lambda n, receipt: early.acked(acks[n][2], receipt, self.model.ack),
        )
        expected = list(zip(acks, won, strict=True))
        expected += [
            (nack, early.nack(nack[2], lambda nack=nack, due_ms=due_ms: self._returned(nack, due_ms)))  # type: ignore[misc]
            for nack, due_ms in nacks
        ]
        seq = self.world.partition.state.end
        new = [Message(seq + n, body) for n, body in enumerate(body for bodies, _ in publishes for body in bodies)]
        live = sum(m.state not in ("gone", "settling") for m in self.model.messages.values()) + len(new)
        self.model.prepare(new, purged=bool(purges))
        self.landing = [
            lambda: self._check_publishes(publishes, seq),
            lambda: self._check_verdicts(expected),
            lambda: self._check_purges(purges, live),
        ]

    def _decide_first(self) -> None:
        """Leases are about to end: what was said of them before counts, and is answered with the next commit."""
        strange = {
            token for _, receipts, _ in self.acks for token, _ in receipts if self.world.main.core.is_strange(token)
        }
        for _, receipts, answers in self.acks:
            self.early.ack(answers, receipts, strange, self.model.ack)
        for nack, due_ms in self.nacks:
            self.early.nack(nack[2], lambda nack=nack, due_ms=due_ms: self._returned(nack, due_ms))  # type: ignore[misc]

    def _returned(self, nack: Ack, due_ms: int) -> list[bool]:
        held = [self.model.holds(r) for r in nack[1]]
        for receipt, is_held in zip(nack[1], held, strict=True):
            if is_held:
                self.model.give_back(receipt[1], due_ms)
        return held

    def _check_publishes(self, publishes: list[tuple[list[bytes], list[Any]]], seq: int) -> None:
        for bodies, answers in publishes:
            assert answers == [Published(0, seq, len(bodies))]
            self.confirmed.update(range(seq, seq + len(bodies)))
            seq += len(bodies)

    def _check_verdicts(self, expected: list[tuple[Ack, list[bool]]]) -> None:
        for (texts, receipts, answers), wanted in expected:
            assert [verdicts(texts, done) for done in answers] == [wanted]
            self.acked.update(r[1] for r, ok in zip(receipts, wanted, strict=True) if ok and r in self.model.winners)

    def _check_purges(self, purges: list[list[Any]], live: int) -> None:
        assert purges == [[live]] * len(purges)
        if purges:
            self.acked.update(self.model.in_state("gone"))

    @precondition(lambda self: self.world.committer.is_in_flight)
    @rule()
    def land(self) -> None:
        self.world.committer.land()
        self.model.land()
        for check in self.landing:
            check()
        self.landing = []

    @rule()
    def commit(self) -> None:
        """The usual case: nothing happens meanwhile."""
        self.quiet_steps += 1
        if not self.world.committer.is_in_flight:
            self.prepare()
        if self.world.committer.is_in_flight:
            self.land()

    @precondition(lambda self: self.quiet_steps >= QUIET_STEPS)
    @rule(landed=st.booleans())
    def crash(self, landed: bool) -> None:
        self.world.crash(landed=landed)
        self.model.now_ms = self.world.now_ms
        self.model.crash(landed=landed)
        self._forget_callers()

    @precondition(lambda self: self.quiet_steps >= QUIET_STEPS)
    @rule()
    def restart(self) -> None:
        while self.world.committer.is_in_flight or self._waits():
            self.land() if self.world.committer.is_in_flight else self.prepare()
        self.world.restart()
        self.model.winners.clear()
        self._forget_callers()
        for m in self.model.messages.values():
            m.holder = -1
            if m.state == "delayed" and m.due_ms <= self.world.now_ms:
                m.state = "ready"
        self.model.now_ms = self.world.now_ms
        self.model.disk = ({m.seq: replace(m) for m in self.model.messages.values()}, *self.model.disk[1:])

    def _waits(self) -> bool:
        return bool(self.publishes or self.acks or self.nacks or self.purges or self.model.in_state("returned"))

    def _forget_callers(self) -> None:
        for consumer in self.consumers:
            consumer.leases.clear()
        self.publishes, self.acks, self.nacks, self.purges, self.landing = [], [], [], [], []
        self.early = Early()
        self.quiet_steps = 0

    # --------------------------------------------------------------------------------------------------- checks

    @invariant()
    def counts_are_equal(self) -> None:
        messages = self.model.messages.values()
        free_settling = sum(m.state == "settling" and not m.was_held for m in messages)
        held_settling = sum(m.state == "settling" and m.was_held for m in messages)
        ready = len(self.model.in_state("ready")) + free_settling
        in_flight = len(self.model.in_state("leased", "returned")) + held_settling
        assert self.world.counts == (ready, in_flight, len(self.model.in_state("delayed")))
        state = self.world.partition.state
        assert (state.published_total, state.acked_total) == (self.model.published_total, self.model.acked_total)

    @invariant()
    def what_was_confirmed_is_present_and_what_was_settled_is_not(self) -> None:
        present = set(self.model.in_state("ready", "leased", "returned", "delayed", "settling"))
        assert not self.confirmed - self.acked - present - set(self.model.in_state("gone"))
        assert not self.acked & present

    @invariant()
    def peek_shows_what_is_there(self) -> None:
        if self.world.committer.is_in_flight or self._waits():
            return
        for state, wanted in (("ready", "ready"), ("in_flight", "leased"), ("delayed", "delayed")):
            page = _whole(look(self.world.partition, PeekFilter(state=state, limit=10_000)))
            assert [item.message["seq"] for item in page.items] == self.model.in_state(wanted)

    @invariant()
    def nothing_is_corrupt(self) -> None:
        assert self.world.quarantined == []

    # -------------------------------------------------------------------------------------------------- receipts

    def _asked(
        self,
        picks: list[int],
        forge: str,
        ask: Callable[[dict[str, int], Callable[[dict[str, int] | PushqError], None]], None],
    ) -> Ack:
        texts, receipts = self._picked(picks, forge)
        answers: list[Any] = []
        ask(by_token(texts), answers.append)
        return texts, receipts, answers

    def _picked(self, picks: list[int], forge: str) -> tuple[list[str], list[Receipt]]:
        """Receipts by number, the youngest first; a forged one has no token in the reference."""
        chosen = [self.issued[-1 - n % len(self.issued)] for n in dict.fromkeys(n % len(self.issued) for n in picks)]
        if forge == "token":
            chosen = [(text[:5] + ("A" if text[5] != "A" else "B") + text[6:], ("", r[1])) for text, r in chosen]
        elif forge == "index":
            chosen = [(self._beside(text, r[0]), ("", r[1])) for text, r in chosen]
        return [text for text, _ in chosen], [receipt for _, receipt in chosen]

    def _beside(self, text: str, token: str) -> str:
        """A receipt of the message after the last that this lease had, probably of the same chunk."""
        last = max(int(given[-2:], 16) for given, r in self.issued if r[0] == token)
        return text[:-2] + SUFFIXES[last + 1]

    def _text(self, receipt: Receipt) -> str:
        return next(text for text, r in self.issued if r == receipt)


TestWorkQueue = WorkQueue.TestCase
TestWorkQueue.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    suppress_health_check=[HealthCheck.too_slow],
    report_multiple_bugs=False,
)


def _whole(walk: Generator[None, None, PeekPage]) -> PeekPage:
    """Runs a peek to its end without a loop."""
    while True:
        try:
            next(walk)
        except StopIteration as end:
            page: PeekPage = end.value
            return page
