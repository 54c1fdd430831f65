"""Every mix of queue settings against the reference queue: any order of calls, commits that never land, crashes."""

from __future__ import annotations

import sys
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from backend_store.client.redrive import _as_new
from backend_store.core.leases.receipts import by_token
from backend_store.core.leases.session_snapshot import Detached, KeptLease
from backend_store.core.limits import LEASE_MS_MIN
from backend_store.core.log.chunk import blocks_of
from backend_store.core.log.sublogs import VIEW_DEAD
from backend_store.model import QueueConfig
from backend_store.node.transfer.transfer import move
from tests.support.contest import Early
from tests.support.queues import take_up_leases
from tests.support.seeds import examples
from tests.support.semantics_bench import CONSUMERS, QUIET_STEPS, Asked, Bench, Move
from tests.support.semantics_facts import FREE
from tests.support.semantics_model import SemanticsModel
from tests.support.semantics_seen import VIEWS, leftovers, numbers_of, walk
from tests.support.semantics_seen import sweep as delete_purged
from tests.support.semantics_wishes import Author, Call, Wish, configs, draft_of, wishes
from tests.support.world import REPLICA, World, attempts_by_seq, partitions_of, verdicts

EXAMPLES = examples(60, exploring=400)
STEPS = 60
LONG_MS = 60_000

any_number = st.integers(0, 1 << 20)
view_name = st.sampled_from(["main", "main", "main", "dead", "late"])


class QueueSemantics(Bench):
    def teardown(self) -> None:
        try:
            if hasattr(self, "world") and sys.exc_info()[0] is None:
                self._drain()
        finally:
            for (module, name), value in self._bounds.items():
                setattr(module, name, value)

    # ------------------------------------------------------------------------------------------------- commands

    @initialize(config=configs(), wishes=st.lists(wishes, min_size=1, max_size=20))
    def begin(self, config: QueueConfig, wishes: list[Wish]) -> None:
        self.config = config
        self.world = World(config=config)
        self.author = Author(config)
        self.model = SemanticsModel(config, self.world.now_ms)
        self._open()
        self.publish(wishes)
        self.commit()

    @rule(wishes=st.lists(wishes, min_size=1, max_size=5))
    def publish(self, wishes: list[Wish]) -> None:
        messages = [self.author.message(wish, self.world.now_ms) for wish in wishes]
        drafts = [draft_of(m, wish.size) for m, wish in zip(messages, wishes, strict=True)]
        blocks, order = blocks_of(drafts)
        call = Call([messages[n] for n in order] if order is not None else messages, blocks, [])
        self.calls.append(call)
        self.world.partition.publish(blocks, call.answers.append)

    @rule(limit=st.integers(1, 40), who=st.integers(0, CONSUMERS - 1), ms=st.sampled_from([0, 50, 400]), name=view_name)
    def take(self, limit: int, who: int, ms: int, name: str) -> None:
        view = self.world.partition.view(VIEWS[name])
        lease = view.take(limit, self.consumers[who], ms)
        if lease is None:
            self._see()
            ready = [m.number for m in self.model.ready(name)]
            is_strict = self.config.ordering == "strict" and name == "main"
            assert not ready or is_strict, f"{ready} are ready and none was handed out"
            return
        self.quiet_steps += 1
        self.consumers[who].leases.append(lease)
        by_seq = numbers_of(lease)
        numbers = list(by_seq.values())
        assert 1 <= len(numbers) <= limit
        self.model.taken(name, numbers, lease.token, who, self.world.now_ms + max(ms, LEASE_MS_MIN))
        if lease.receipts:
            attempts = {by_seq[seq]: attempt for seq, attempt in attempts_by_seq(lease).items()}
            assert attempts == {number: self.model.messages[number].attempt for number in numbers}
        self._check_columns(lease, by_seq)
        if lease.durable:
            self._issue(lease, numbers)
        else:
            self.undurable.append((lease, numbers))

    @rule(
        limit=st.integers(1, 9),
        who=st.integers(0, CONSUMERS - 1),
        name=view_name,
        lands=st.booleans(),
        then=st.sampled_from(["ack", "nack", "delay", "extend", "run out", "unsent", "go away"]),
        some=st.lists(st.integers(0, 8), min_size=1, max_size=3),
    )
    def work(self, limit: int, who: int, name: str, lands: bool, then: str, some: list[int]) -> None:
        """What consumers mostly do: take, and then something with what they got."""
        issued = len(self.issued)
        self.take(limit, who, 400, name)
        if lands:
            self.commit()
        if len(self.issued) == issued:
            return
        if then == "ack":
            self.ack(some, "")
        elif then in ("nack", "delay"):
            self.nack(some, 20 if then == "delay" else None, then, tried=True)
        elif then == "extend":
            self.extend(some, 400)
        elif then == "run out":
            self.time_passes(400)
        elif then == "unsent":
            self.leave_unsent(who, -1)
        else:
            self.go_away(who)

    @precondition(lambda self: self.issued)
    @rule(picks=st.lists(any_number, min_size=1, max_size=6), forge=st.sampled_from(["", "", "", "token"]))
    def ack(self, picks: list[int], forge: str) -> None:
        name, texts, receipts = self._picked(picks, forge)
        answers: list[Any] = []
        self.world.partition.view(VIEWS[name]).settle(by_token(texts), answers.append)
        self.asked.append(Asked(name, texts, receipts, answers))

    @precondition(lambda self: self.issued)
    @rule(
        picks=st.lists(any_number, min_size=1, max_size=6),
        delay_ms=st.sampled_from([None, None, 0, 20, 500]),
        reason=st.sampled_from([None, "busy"]),
        tried=st.sampled_from([True, True, False]),
    )
    def nack(self, picks: list[int], delay_ms: int | None, reason: str | None, tried: bool) -> None:
        name, texts, receipts = self._picked(picks, "")
        due_ms = self.world.now_ms + delay_ms if delay_ms else delay_ms
        answers: list[Any] = []
        view = self.world.partition.view(VIEWS[name])
        view.give_back(by_token(texts), due_ms, reason, answers.append, tried=tried)
        self.asked.append(Asked(name, texts, receipts, answers, "nacked" if tried else "untried", due_ms, reason))

    @precondition(lambda self: self.issued)
    @rule(picks=st.lists(any_number, min_size=1, max_size=6), ms=st.sampled_from([0, 50, 400]))
    def extend(self, picks: list[int], ms: int) -> None:
        name, texts, receipts = self._picked(picks, "")
        held = [self.model.holds(r) for r in receipts]
        answers: list[Any] = []
        self.world.partition.view(VIEWS[name]).extend(by_token(texts), ms, answers.append)
        for receipt, is_held in zip(receipts, held, strict=True):
            if is_held:
                self.model.messages[receipt[1]].deadline_ms = self.world.now_ms + ms
        if answers:
            assert [verdicts(texts, answers[0])] == [held]
        else:
            self.extends.append((answers, texts, held))

    @rule(who=st.integers(0, CONSUMERS - 1), which=any_number)
    def leave_unsent(self, who: int, which: int) -> None:
        leases = [lease for lease in self.consumers[who].leases if lease.rest is None and self._is_whole(lease)]
        if not leases:
            return
        lease = leases[which % len(leases)]
        for n in numbers_of(lease).values():
            self.model.unsent(self.model.messages[n])
        # Its bytes never left: nobody can have this receipt.
        self.issued = [one for one in self.issued if one[1][0] != lease.token]
        self.undurable = [(other, numbers) for other, numbers in self.undurable if other is not lease]
        self.world.partition.view(self._view_of(lease.token)).unsent(lease)

    @rule(who=st.integers(0, CONSUMERS - 1))
    def go_away(self, who: int) -> None:
        """What it was sent counts as an attempt; what still waited for the disk was never sent."""
        consumer = self.consumers[who]
        leases, consumer.leases = [lease for lease in consumer.leases if lease.receipts], []
        for lease in leases:
            view = self.world.partition.view(self._view_of(lease.token))
            for part in list(lease.parts()):
                numbers = numbers_of(part).values()
                if lease.durable:
                    self._decide_first({name for name, number in VIEWS.items() if number == view.number})
                held = [self.model.messages[number] for number in numbers]
                for m in [m for m in held if m.state == "leased" and m.token == lease.token]:
                    self.model.give_back(m, "returned") if lease.durable else self.model.unsent(m)
                view.give_back_lease(part) if lease.durable else view.unsent(part)
        self.undurable = [(lease, numbers) for lease, numbers in self.undurable if lease not in leases]

    @precondition(lambda self: self.model.in_state("main", *FREE, "leased"))
    @rule(which=any_number)
    def cancel(self, which: int) -> None:
        found = self._found(self.model.in_state("main", *FREE, "leased"), which)
        if found is None:
            return
        m, (_, shelf, base, index) = found
        answers: list[Any] = []
        assert self.world.main.cancel(shelf, base, index, answers.append) == self.model.cancel(m)
        if m.state == "settling":
            self.cancels.append(answers)

    @precondition(lambda self: self.quiet_steps >= QUIET_STEPS)
    @rule(name=view_name)
    def purge(self, name: str) -> None:
        answers: list[Any] = []
        self.world.partition.purge(answers.append, VIEWS[name])
        self.purges.append((name, answers))

    @rule()
    def sweep(self) -> None:
        """The rows of what was purged are deleted in the background, at any time."""
        delete_purged(self.world.engine)

    @precondition(lambda self: self.model.ready("dead"))
    @rule(which=any_number)
    def redrive(self, which: int) -> None:
        """A dead letter goes back to the queue, as if it were new."""
        found = self._found(self.model.ready("dead"), which)
        if found is None:
            return
        m, (_, shelf, base, index) = found
        view = self.world.partition.view(VIEW_DEAD)
        chunk = self.world.partition.read(base, shelf)
        assert chunk is not None
        lease = view.claim(chunk, 1 << index, Detached(), 1 << 40)
        assert lease is not None
        m.state, m.token, m.holder, m.deadline_ms = "leased", lease.token, -1, self.world.now_ms + (1 << 40)
        annex = _as_new(self.world.partition)
        again = m.next_life("main", expires_ms=annex["exp"] or 0, id=None, stamp=None)
        done: list[Any] = []
        self.moves.append(Move(m.number, lease.token, again, done))
        move(view, lease, partitions_of(self.world), {index: annex}, lambda *how: done.append(how), m.priority)

    @rule(ms=st.sampled_from([1, 15, 49, 50, 250, 400, 1000]))
    def time_passes(self, ms: int) -> None:
        self.world.now_ms += ms
        self._run_timer()

    # -------------------------------------------------------------------------------------------------- the disk

    @precondition(lambda self: not self.world.committer.is_in_flight)
    @rule()
    def prepare(self) -> None:
        """The reference decides what waits as the partition does, and the commit is on its way."""
        self._see()
        strange, before = self._strange_tokens(), walk(self.world.partition)
        kept = self._kept()
        if not self.world.committer.prepare():
            return
        moves = self._decide_moves(kept)
        checks = self._decide_acks([one for one in self.asked if one.outcome is None], strange)
        checks += [self._decide_nack(one) for one in self.asked if one.outcome is not None]
        gone = self._evicted(before)
        evictable = self.model.evictable
        self.model.begin()
        self.model.live += len(gone)
        for one in moves:
            self.model.publish([one.message], must_fit=True)
        later = self.calls
        while later and not self.model.must_wait(later[0].messages):
            checks.append(self._decide_call(later[0]))
            later = later[1:]
        assert len(gone) == evictable - self.model.evictable
        self.model.release()
        checks += [
            self._expect(answers, lambda got, h=held, t=texts: verdicts(t, got) == h)
            for answers, texts, held in self.extends
        ]
        checks += [self._expect(answers, lambda got: got == {}) for answers in self.cancels]
        for name in {name for name, _ in self.purges}:
            count = self.model.purge(name)
            checks += [
                self._expect(answers, lambda got, c=count: got == c) for one, answers in self.purges if one == name
            ]
        purged = {name for name, _ in self.purges}
        leases = [lease for lease, _ in self.undurable]
        self.landing = [*checks, lambda: self._landed(purged, leases)]
        self.calls, self.asked, self.extends, self.purges, self.cancels = later, [], [], [], []
        self.early = Early()

    @precondition(lambda self: self.world.committer.is_in_flight)
    @rule()
    def reach_the_disk(self) -> None:
        """The commit is durable, and the queue does not know it yet: its rows are ahead of its memory."""
        self.world.committer.reach_the_disk()

    @precondition(lambda self: self.world.committer.is_in_flight)
    @rule()
    def land(self) -> None:
        self.world.committer.land()
        landing, self.landing = self.landing, []
        for check in landing:
            check()
        self._run_timer()

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
        landed = landed or self.world.committer.is_on_disk
        self.world.crash(landed=landed)
        self._open()
        take_up_leases(self.world)
        self.model.now_ms = self.world.now_ms
        stores = self.config.lease_mode == "replicated"
        self.model.crash(landed=landed, stored=lambda m: stores and m.view == "main")
        self._forget_callers()

    @precondition(lambda self: self.quiet_steps >= QUIET_STEPS)
    @rule()
    def restart(self) -> None:
        """A clean stop and start: everything is written and leases are kept."""
        self._settle_down()
        kept = [
            KeptLease(
                REPLICA, lease.token, lease.state.base, lease.bits.to_bytes(32, "little"), lease.deadline_ms, *place
            )
            for view in self.world.partition.views.values()
            for lease in view.core.leases.values()
            if not lease.number
            for place in [(view.number, lease.state.shelf)]
        ]
        self.world.crash()
        self._open()
        take_up_leases(self.world, kept)
        self.model.now_ms = self.world.now_ms
        deadlines = {(m.token, m.number): m.deadline_ms for m in self.model.messages.values() if m.state == "leased"}
        self.model.crash(landed=False, stored=lambda m: True)
        for m in self.model.messages.values():
            if m.state == "leased" and not (self.config.lease_mode == "replicated" and m.view == "main"):
                m.deadline_ms = deadlines[m.token, m.number]
        self._forget_callers()

    def _settle_down(self) -> None:
        self.world.committer.request(self.world.partition)
        while self.world.committer.is_in_flight or self.world.committer.is_asked:
            self.land() if self.world.committer.is_in_flight else self.prepare()

    # --------------------------------------------------------------------------------------------------- checks

    @invariant()
    def is_as_the_reference_says(self) -> None:
        if hasattr(self, "world"):
            self._see()
            self._check_counts()
            self._check_expiry()
            assert self.world.quarantined == []

    # ---------------------------------------------------------------------------------------------------- the end

    def _drain(self) -> None:
        """Takes and acks all there is; then every confirmed message is accounted for, and no row is left."""
        for _ in range(40 + len(self.model.messages)):  # of one key may come one a round
            self._settle_down()
            for name in VIEWS:
                self._consume(name)
            self._settle_down()
            if not any(m.view != "gone" for m in self.model.messages.values()):
                break
            self.time_passes(1000)
            self.is_as_the_reference_says()
        self._check_counts()
        left = [(m.number, m.view, m.state) for m in self.model.messages.values() if m.view != "gone"]
        assert not left, f"{left} cannot be had"
        assert self.confirmed.keys() <= self.model.messages.keys()
        for _ in range(4):
            self.time_passes(LONG_MS)
            self._settle_down()
        self.sweep()
        assert not leftovers(self.world.engine)

    def _consume(self, name: str) -> None:
        issued = len(self.issued)
        for _ in range(100):
            before = len(self.consumers[0].leases)
            self.take(40, 0, 50, name)
            if len(self.consumers[0].leases) == before:
                break
        self._settle_down()
        while len(self.issued) > issued:
            new = [n for n, one in enumerate(reversed(self.issued[issued:])) if one[2] == name]
            if new:
                self.ack(new, "")
            break

    # -------------------------------------------------------------------------------------------------- receipts


TestQueueSemantics = QueueSemantics.TestCase
TestQueueSemantics.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    suppress_health_check=[HealthCheck.too_slow],
    report_multiple_bugs=False,
)


def test_an_ack_of_a_message_whose_return_is_being_written_is_decided_when_that_is_durable() -> None:
    state = QueueSemantics()
    wish = Wish(priority=0, key=None, delay_ms=0, ttl_ms=None, id=None, producer="", step=0, skew_ms=0, size=0)
    state.begin(config=QueueConfig(), wishes=[wish, wish])
    state.commit()
    state.take(limit=2, ms=0, name="main", who=0)
    state.nack(delay_ms=None, picks=[0], reason=None, tried=True)
    state.prepare()
    state.ack(forge="", picks=[0])
    state.time_passes(ms=250)
    state.commit()
    state.is_as_the_reference_says()
    state.teardown()
