"""Consumer groups of a stream against a reference: with leases and with offsets, over crashes, seeks and retention.

The reference does not choose: the group hands messages out, and the reference says whether it might. Each decision
lands, or is lost with a crash, or lands and nobody hears of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend_store.core.leases.receipts import SUFFIXES, by_token, view_of_token
from backend_store.core.ready import backlog, priorities
from backend_store.model import PushqError
from backend_store.node.limits import GROUP_IDLE_MS
from backend_store.node.views.group import RunningGroup
from tests.support.seeds import examples
from tests.support.streams import GroupOf, StreamWorld, seqs_of
from tests.support.world import Consumer, receipts_by_seq, verdicts

EXAMPLES = examples(35, exploring=150)
STEPS = 50
CONSUMERS = 2
VISIBILITY_MS = 30_000
RETENTION_MS = 100_000
SMALL = {(backlog, "CHUNKS_LOADED_BYTES_MAX"): 600, (priorities, "READY_RUNS_AHEAD"): 2}

Fate = Literal["land", "lost", "unheard"]
fates = st.sampled_from(["land", "land", "land", "lost", "unheard"])
any_number = st.integers(0, 1 << 20)


@dataclass
class Held:
    """A message that a consumer has."""

    seq: int
    receipt: str
    consumer: int
    until_ms: int


@dataclass
class Reference:
    """What is published and kept, what the group is done with, and who holds what. Holds are memory."""

    present: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    held: dict[int, Held] = field(default_factory=dict)
    due: dict[int, int] = field(default_factory=dict)
    won: set[str] = field(default_factory=set)

    @property
    def waiting(self) -> list[int]:
        return [seq for seq in self.present if seq not in self.done]

    def drop(self, floor: int) -> None:
        self.present = [seq for seq in self.present if seq >= floor]
        self.held = {seq: one for seq, one in self.held.items() if seq >= floor}

    def forget_holds(self) -> None:
        self.held, self.due, self.won = {}, {}, set()


class StreamGroup(RuleBasedStateMachine):
    mode: Literal["offsets", "leases"]
    ordering: Literal["best_effort", "strict"] = "best_effort"

    def __init__(self) -> None:
        super().__init__()
        self._bounds = {(module, name): getattr(module, name) for module, name in SMALL}
        for (module, name), value in SMALL.items():
            setattr(module, name, value)
        self.world = StreamWorld(retention_ms=RETENTION_MS, max_attempts=10_000, ordering=self.ordering)
        self.reference = Reference()
        self.consumers = [Consumer() for _ in range(CONSUMERS)]
        self.issued: list[tuple[str, int]] = []

    def teardown(self) -> None:
        self.drain()
        for (module, name), value in self._bounds.items():
            setattr(module, name, value)

    @property
    def group(self) -> GroupOf:
        return self.world.found()

    # -------------------------------------------------------------------------------------------------- commands

    @initialize(count=st.integers(0, 6))
    def begin(self, count: int) -> None:
        if count:
            self.publish([count], 0)
        self.world.group("g", "earliest", self.mode)
        self.world.group("idle", "earliest", self.mode)

    @rule(counts=st.lists(st.integers(1, 5), min_size=1, max_size=3), holes=st.integers(0, 31))
    def publish(self, counts: list[int], holes: int) -> None:
        for count in counts:
            gone = holes & ((1 << count) - 1)
            base = self.world.stored_with_holes(*[b"x" * 100] * count, holes=gone)
            self.reference.present += [base + n for n in range(count) if not gone >> n & 1]

    @rule(which=st.integers(0, CONSUMERS - 1), limit=st.integers(1, 8))
    def take(self, which: int, limit: int) -> None:
        lease = self.group.take(limit, self.consumers[which], VISIBILITY_MS)
        now_ms, reference = self.world.now_ms, self.reference
        if lease is None:
            assert not self.may_have(which), f"{which} gets nothing of {self.may_have(which)}"
            return
        seqs = seqs_of(lease)
        self.check_taken(which, seqs)
        for seq in seqs:
            receipt = lease.token + SUFFIXES[seq - lease.state.base]
            reference.held[seq] = Held(seq, receipt, which, now_ms + VISIBILITY_MS)
            reference.due.pop(seq, None)
            self.issued.append((receipt, seq))

    def may_have(self, which: int) -> list[int]:
        raise NotImplementedError

    def check_taken(self, which: int, seqs: list[int]) -> None:
        raise NotImplementedError

    @precondition(lambda self: self.issued)
    @rule(picks=st.lists(any_number, min_size=1, max_size=4), fate=fates)
    def ack(self, picks: list[int], fate: Fate) -> None:
        """Old receipts too; what they may do is the group's to say, what they did is the reference's."""
        texts = list(dict.fromkeys(self.issued[-1 - n % min(len(self.issued), 20)][0] for n in picks))
        expected = self.expected_acks(texts) if fate != "lost" else {}
        answers = self.asked(texts, RunningGroup.settle, fate)
        assert answers in (None, [expected.get(text) for text in texts])

    def expected_acks(self, texts: list[str]) -> dict[str, bool]:
        """Decides an ack, as a commit would. Of receipts that compete those of leases in memory go first."""
        seqs, order = dict(self.issued), list(by_token(texts))
        order.sort(key=self.group.view.core.is_strange)
        found: dict[str, bool] = {}
        for text in sorted(texts, key=lambda text: (order.index(text[:-2]), -seqs[text])):
            of_this_time = view_of_token(text[:-2]) == self.group.group.row.number
            is_known = text in self.reference.won
            found[text] = of_this_time and (is_known or self.wins(text, seqs[text]))
            if found[text] and not is_known:
                beside = {one for one in texts if one[:-2] == text[:-2] and seqs[one] in self.reference.waiting}
                self.settled(text, seqs[text], beside)
        return found

    def wins(self, text: str, seq: int) -> bool:
        raise NotImplementedError

    def settled(self, text: str, seq: int, beside: set[str]) -> None:
        """`beside`: receipts of the same lease in the same request."""
        raise NotImplementedError

    @precondition(lambda self: self.reference.held)
    @rule(pick=any_number, delay_ms=st.sampled_from([0, 0, 5_000]), fate=fates)
    def nack(self, pick: int, delay_ms: int, fate: Fate) -> None:
        held = sorted(self.reference.held)
        seq = held[pick % len(held)]
        receipt = self.reference.held[seq].receipt
        due_ms = self.world.now_ms + delay_ms if delay_ms else 0
        answers = self.asked([receipt], lambda view, own, reply: view.give_back(own, due_ms, None, reply), fate)
        assert answers in (None, [True])
        if fate == "land":
            self.came_back(seq)
        if due_ms and fate != "lost" and (fate == "land" or self.mode == "leases"):
            self.reference.due[seq] = due_ms

    def came_back(self, seq: int) -> None:
        raise NotImplementedError

    def asked(self, texts: list[str], ask: Any, fate: Fate) -> list[bool] | None:
        """The verdicts; None where a crash kept them from whoever waits."""
        answers: list[dict[str, int] | PushqError] = []
        self.world.ask(texts, ask, answers.append)
        if fate == "land":
            self.world.settle_down()
            assert len(answers) == 1 and isinstance(answers[0], dict)
            return verdicts(texts, answers[0])
        if not answers:
            self.world.committer.prepare()
        self.crash(landed=fate == "unheard")
        return None

    @rule(landed=st.booleans())
    def crash(self, landed: bool) -> None:
        self.world.crash(landed=landed)
        due = self.reference.due if self.mode == "leases" else {}
        self.reference.forget_holds()
        self.reference.due = {seq: at for seq, at in due.items() if at > self.world.now_ms}
        self.consumers = [Consumer() for _ in range(CONSUMERS)]
        self.reference.drop(self.world.partition.state.floor)

    @rule(ms=st.sampled_from([100, 5_000, VISIBILITY_MS, 45_000, GROUP_IDLE_MS]))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)
        self.world.settle_down()
        self.world.settle_down()
        self.ran_out(self.world.now_ms)
        self.reference.due = {seq: at for seq, at in self.reference.due.items() if at > self.world.now_ms}
        self.reference.drop(self.world.partition.state.floor)
        if self.group.group.view is None:
            self.reference.won = set()  # nobody used it for so long that it left memory

    def ran_out(self, now_ms: int) -> None:
        raise NotImplementedError

    @rule(which=st.integers(0, CONSUMERS - 1))
    def leave(self, which: int) -> None:
        consumer, self.consumers[which] = self.consumers[which], Consumer()
        for lease in consumer.leases:
            if lease.bits:
                self.group.view.give_back_lease(lease)
        self.world.settle_down()
        self.left(which)

    def left(self, which: int) -> None:
        raise NotImplementedError

    @rule(which=st.integers(0, CONSUMERS - 1))
    def take_and_not_send(self, which: int) -> None:
        lease = self.group.take(3, self.consumers[which], VISIBILITY_MS)
        if lease is not None:
            self.check_taken(which, seqs_of(lease))
            self.consumers[which].leases.remove(lease)
            self.group.view.unsent(lease)

    @rule(place=any_number)
    def seek(self, place: int) -> None:
        state = self.world.partition.state
        at = state.floor + place % (state.end - state.floor + 1)
        self.world.group("g", {"seq": at})
        self.reference.done = {seq for seq in self.reference.present if seq < at}
        self.reference.forget_holds()

    @rule(delta=st.integers(0, 1))
    def commit(self, delta: int) -> None:
        self.world.settle_down()

    # ---------------------------------------------------------------------------------------------------- checks

    @invariant()
    def the_lag_is_exact(self) -> None:
        if self.world.groups.find("g") is None or self.world.committer.is_in_flight:
            return
        assert self.group.lag == len(self.reference.waiting)
        assert self.world.found("idle").lag == len(self.reference.present)

    @invariant()
    def the_stream_keeps_what_is_not_too_old(self) -> None:
        world = self.world
        gone = world.partition.state.published_total - world.partition.state.live
        assert world.partition.state.live == len(self.reference.present)
        assert gone == world.partition.state.ended.get("retention", 0)
        assert world.quarantined == []

    def drain(self) -> None:
        """At the end one consumer gets all that is left, and nothing else."""
        if self.world.groups.find("g") is None:
            return
        self.world.settle_down()
        self.world.crash()
        self.world.pass_time(10_000)
        self.world.settle_down()
        self.reference.drop(self.world.partition.state.floor)
        group, seqs = self.group, []
        while (lease := group.take(64)) is not None:
            seqs += seqs_of(lease)
            assert all(group.ack(*receipts_by_seq(lease).values()))
        assert sorted(seqs) == self.reference.waiting and group.lag == 0


class LeasedMachine(StreamGroup):
    mode = "leases"

    def may_have(self, which: int) -> list[int]:
        held, due = self.reference.held, self.reference.due
        return [seq for seq in self.reference.waiting if seq not in held and seq not in due]

    def check_taken(self, which: int, seqs: list[int]) -> None:
        assert set(seqs) <= set(self.may_have(which)), f"{seqs} of {self.may_have(which)}"

    def wins(self, text: str, seq: int) -> bool:
        holder = self.reference.held.get(seq)
        return seq in self.reference.waiting and (holder is None or holder.receipt == text)

    def settled(self, text: str, seq: int, beside: set[str]) -> None:
        self.reference.won.add(text)
        self.reference.done.add(seq)
        self.reference.held.pop(seq, None)
        self.reference.due.pop(seq, None)

    def came_back(self, seq: int) -> None:
        self.reference.held.pop(seq, None)

    def ran_out(self, now_ms: int) -> None:
        self.reference.held = {seq: one for seq, one in self.reference.held.items() if one.until_ms > now_ms}

    def left(self, which: int) -> None:
        self.reference.held = {seq: one for seq, one in self.reference.held.items() if one.consumer != which}


class StrictMachine(LeasedMachine):
    """Without keys the stream has one order: its next message goes when the one before it is settled."""

    ordering = "strict"

    def may_have(self, which: int) -> list[int]:
        return [] if self.reference.held or self.reference.due else self.reference.waiting

    def check_taken(self, which: int, seqs: list[int]) -> None:
        assert seqs == self.may_have(which)[: len(seqs)], f"{seqs} of {self.may_have(which)}"


class OffsetMachine(StreamGroup):
    mode = "offsets"

    def __init__(self) -> None:
        super().__init__()
        self.void: set[str] = set()
        """Receipts of messages that a nack brought back, and of those behind. An earlier process's are unknown."""
        self.given_before = 0

    def may_have(self, which: int) -> list[int]:
        """What comes next, and all behind it; nothing while another one is at it."""
        held = self.reference.held
        if any(one.consumer != which for one in held.values()) or self.reference.due:
            return []
        return [seq for seq in self.reference.waiting if seq not in held]

    def check_taken(self, which: int, seqs: list[int]) -> None:
        assert seqs == self.may_have(which)[: len(seqs)], f"{seqs} of {self.may_have(which)}"

    def wins(self, text: str, seq: int) -> bool:
        """Its own lease runs; or nobody holds it or anything before it, and nobody gave such a message back since."""
        held = self.reference.held
        if seq in held and held[seq].receipt == text:
            return True
        is_free = seq in self.reference.waiting and not any(one <= seq for one in held)
        return is_free and text not in self.void

    def settled(self, text: str, seq: int, beside: set[str]) -> None:
        """Everything before goes with it, and its receipts have acked."""
        reference = self.reference
        reference.won |= {text, *beside}
        for one in [one for one in reference.held.values() if one.seq <= seq]:
            reference.won.add(one.receipt)
            del reference.held[one.seq]
        reference.done |= {one for one in reference.present if one <= seq}
        reference.due = {one: at for one, at in reference.due.items() if one > seq}

    def came_back(self, seq: int) -> None:
        self.void |= {text for text, at in self.issued[self.given_before :] if at >= seq}
        self.reference.held = {at: one for at, one in self.reference.held.items() if at < seq}

    def ran_out(self, now_ms: int) -> None:
        over = [seq for seq, one in self.reference.held.items() if one.until_ms <= now_ms]
        if over:
            self.reference.held = {seq: one for seq, one in self.reference.held.items() if seq < min(over)}

    def left(self, which: int) -> None:
        if any(one.consumer == which for one in self.reference.held.values()):
            self.reference.held = {}

    @rule(landed=st.booleans())
    def crash(self, landed: bool) -> None:
        super().crash(landed)
        self.void, self.given_before = set(), len(self.issued)


def _settings() -> settings:
    return settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        suppress_health_check=[HealthCheck.too_slow],
        report_multiple_bugs=False,
        deadline=None,
    )


TestLeasedGroup = LeasedMachine.TestCase
TestLeasedGroup.settings = _settings()
TestStrictGroup = StrictMachine.TestCase
TestStrictGroup.settings = _settings()
TestOffsetGroup = OffsetMachine.TestCase
TestOffsetGroup.settings = _settings()


def test_a_repeated_ack_settles_nothing_beside_it() -> None:
    """The first receipt has won before; the other one was made void by a nack, and is refused each time."""
    machine = OffsetMachine()
    try:
        machine.begin(0)
        machine.publish([2], 0)
        machine.take(0, 2)
        (first, _), (second, _) = machine.issued
        machine.ack([1], "land")
        machine.nack(0, 0, "land")
        assert machine.expected_acks([first, second]) == {first: True, second: False}
        for picks in ([0, 1], [1, 0], [0]):
            machine.ack(picks, "land")
        assert machine.reference.waiting == [1]
    finally:
        machine.teardown()
