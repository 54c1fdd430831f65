"""Every mix of queue settings against the reference queue: any order of calls, commits that never land, crashes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend_store.client.redrive import _as_new
from backend_store.core import backlog, lanes
from backend_store.core.bits import indexes
from backend_store.core.chunk import KIND_JSON, Chunk, Draft, blocks_of, holes
from backend_store.core.kept import Detached, KeptLease
from backend_store.core.leases import Lease
from backend_store.core.limits import LEASE_MS_MIN
from backend_store.core.receipts import SUFFIXES, by_token, read_token
from backend_store.core.shelves import DEAD, LATE, SCHEDULED, SORTING, VIEW_DEAD, VIEW_LATE, VIEW_MAIN
from backend_store.model import Block, Original, Published, PushqError, QueueConfig, QueueFull, Stamp
from backend_store.node.sweeper import GARBAGE, _parse, ranges
from backend_store.node.transfer import move
from backend_store.node.view import View
from backend_store.storage.engine import Batch, Table
from backend_store.storage.keys import log_range
from gateway.queue_rules import broken_rules
from tests.support.semantics_model import FREE, Message, Receipt, SemanticsModel
from tests.support.world import REPLICA, SECRET, Consumer, World, attempts_by_seq, receipts_by_seq, verdicts

EXAMPLES = 200
STEPS = 60
CONSUMERS = 3
QUIET_STEPS = 3
"""Commits and deliveries between two ends of the process: a queue that only restarts decides nothing."""
SMALL = {(backlog, "CHUNKS_LOADED_BYTES_MAX"): 600, (lanes, "READY_RUNS_AHEAD"): 2}
"""Bounds small enough to be reached: chunks leave memory while they are in use, and a backlog stays on disk."""
VIEWS = {"main": VIEW_MAIN, "dead": VIEW_DEAD, "late": VIEW_LATE}
SHELVES = {
    "main": (*range(10), *range(SCHEDULED, SCHEDULED + 10), SORTING),
    "dead": (DEAD,),
    "late": (LATE,),
}
EMPTY_AT_THE_END = (
    Table.LOG,
    Table.LANES,
    Table.MARKS,
    Table.RETRY,
    Table.DUE,
    Table.EXPIRY,
    Table.ORDER,
    Table.BY_ID,
    Table.LEASES,
    Table.PARKED,
)
LONG_MS = 60_000
TICKS_MAX = 3
"""Looks of a timer at one moment: a queue that waits for its commit asks again at once."""

any_number = st.integers(0, 1 << 20)
view_name = st.sampled_from(["main", "main", "main", "dead", "late"])
Verdicts = dict[str, int] | PushqError


class Place(NamedTuple):
    """Where a message lies."""

    view: str
    shelf: int
    base: int
    index: int


class Wish(NamedTuple):
    """What a producer wants of a message, as far as the queue's config has it."""

    priority: int
    key: str | None
    delay_ms: int
    ttl_ms: int | None
    id: bytes | None
    producer: str
    step: int
    """How far its number lies from the next one."""
    skew_ms: int
    size: int


class Call(NamedTuple):
    """A publish that waits, its messages in the order in which the blocks have them."""

    messages: list[Message]
    blocks: list[Block]
    answers: list[Any]


class Asked(NamedTuple):
    """Receipts of one view that wait for an answer."""

    view: str
    texts: list[str]
    receipts: list[Receipt]
    answers: list[Any]
    is_ack: bool = True
    due_ms: int | None = None
    reason: str | None = None


class Move(NamedTuple):
    number: int
    token: str
    message: Message
    moved: list[Any]


wishes = st.builds(
    Wish,
    priority=st.integers(0, 2),
    key=st.sampled_from([None, "a", "b", "c"]),
    delay_ms=st.sampled_from([0, 0, 0, 0, 20, 100, 700]),
    ttl_ms=st.sampled_from([None, None, None, None, 30, 300, 900]),
    id=st.sampled_from([None, None, b"a" * 16, b"b" * 16, b"c" * 16]),
    producer=st.sampled_from(["", "p", "p", "q"]),
    step=st.sampled_from([0, 0, 0, 0, 1, 2, -1, -2]),
    skew_ms=st.sampled_from([0, 0, 0, -5, -50, -400, -2000, 50, 400, 700]),
    size=st.sampled_from([0, 0, 0, 3, 200, 17_000]),
)


@st.composite
def configs(draw: st.DrawFn) -> QueueConfig:
    """Any mix that makes sense."""
    given: dict[str, Any] = {"sequencing": draw(st.sampled_from(["arrival", "arrival", "producer", "clock"]))}
    given["ordering"] = draw(st.sampled_from(["best_effort", "best_effort", "strict"]))
    if given["sequencing"] != "arrival":
        given["sort_window_ms"] = draw(st.sampled_from([50, 300]))
        given["late_messages"] = draw(st.sampled_from(["late_queue", "head"]))
    elif given["ordering"] == "best_effort":
        given["priorities"] = draw(st.integers(1, 3))
    if given["sequencing"] == "arrival":
        given["delay_ms"] = draw(st.sampled_from([0, 0, 0, 50]))
    given["message_ttl_ms"] = draw(st.sampled_from([None, None, None, 600]))
    if draw(st.booleans()):
        given["dead_letter_queue"] = None
    if draw(st.integers(0, 4)) == 0:
        given["delivery"] = "at_most_once"
    else:
        given["lease_mode"] = draw(st.sampled_from(["memory", "replicated"]))
        if "dead_letter_queue" not in given:
            given["max_attempts"] = draw(st.integers(1, 3))
        if draw(st.booleans()):
            given["retry_backoff_ms"] = draw(st.sampled_from([10, 150]))
            given["retry_backoff_ms_max"] = draw(st.sampled_from([None, 200]))
    if draw(st.booleans()):
        given["dedupe"] = "id"
        given["dedupe_window_ms"] = draw(st.sampled_from([100, 1000]))
    if draw(st.integers(0, 2)) == 0:
        given["max_messages"] = draw(st.integers(1, 12))
        dead_letters = [] if "dead_letter_queue" in given else ["dead_letter_oldest", "dead_letter_newest"]
        given["overflow"] = draw(st.sampled_from(["reject", "drop_oldest", *dead_letters]))
    config = QueueConfig(**given)
    assert not list(broken_rules(config, ()))
    return config


class QueueSemantics(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._bounds = {(module, name): getattr(module, name) for module, name in SMALL}
        for (module, name), value in SMALL.items():
            setattr(module, name, value)
        self.consumers = [Consumer() for _ in range(CONSUMERS)]
        self.published: list[Message] = []
        self.numbers: dict[str, int] = {}
        """The next number of each producer."""
        self.issued: list[tuple[str, Receipt, str]] = []
        """Every receipt that ever left: as text, as the reference names it, and its view."""
        self.undurable: list[tuple[Lease, list[int]]] = []
        """Leases whose bytes wait for the disk."""
        self.calls: list[Call] = []
        self.asked: list[Asked] = []
        self.extends: list[tuple[list[Any], list[str], list[bool]]] = []
        self.purges: list[tuple[str, list[Any]]] = []
        self.moves: list[Move] = []
        self.cancels: list[list[Any]] = []
        self.landing: list[Callable[[], None]] = []
        self.confirmed: dict[int, int] = {}
        """Number → offset, as the publish was answered."""
        self.sent_for_good: list[int] = []
        self.timer_ms: int | None = None
        self.quiet_steps = 0

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
        self.model = SemanticsModel(config, self.world.now_ms)
        self._open()
        self.publish(wishes)
        self.commit()

    @rule(wishes=st.lists(wishes, min_size=1, max_size=5))
    def publish(self, wishes: list[Wish]) -> None:
        messages = [self._message(wish) for wish in wishes]
        drafts = [_draft(m, wish.size) for m, wish in zip(messages, wishes, strict=True)]
        blocks, order = blocks_of(drafts)
        call = Call([messages[n] for n in order] if order is not None else messages, blocks, [])
        self.calls.append(call)
        self.world.partition.publish(blocks, call.answers.append)

    def _message(self, wish: Wish) -> Message:
        config, now_ms = self.config, self.world.now_ms
        m = Message(len(self.published) + 1, priority=wish.priority % config.priorities)
        self.published.append(m)
        m.key = wish.key
        m.id = wish.id if config.dedupe == "id" else None
        if config.sequencing == "arrival" and (delay_ms := wish.delay_ms or config.delay_ms):
            m.scheduled_ms = now_ms + delay_ms
        lives_ms = wish.ttl_ms if wish.ttl_ms is not None else config.message_ttl_ms
        m.expires_ms = now_ms + lives_ms if lives_ms else 0
        if config.sequencing == "producer" and wish.producer:
            number = self.numbers.get(wish.producer, 1)
            m.stamp = Stamp(0, wish.producer, max(1, number + wish.step))
            self.numbers[wish.producer] = max(number, m.stamp.number + 1)
        elif config.sequencing == "clock" and wish.producer:
            m.stamp = Stamp((now_ms + wish.skew_ms) * 1000, wish.producer, 0)
        return m

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
        by_seq = _numbers(lease)
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

    def _check_columns(self, lease: Lease, by_seq: dict[int, int]) -> None:
        assert lease.chunk is not None
        columns = lease.chunk.messages.columns or {}
        for seq, number in by_seq.items():
            m, index = self.model.messages[number], seq - lease.state.base
            assert _at(columns, "key", index) == m.key
            dead = _at(columns, "dead", index)
            if m.view == "dead":
                assert {name: dead[name] for name in ("reason", "attempts", "history")} == m.letter
            else:
                assert dead is None
            assert bool(_at(columns, "late", index)) == (m.view == "late" or m.is_head)

    def _issue(self, lease: Lease, numbers: list[int]) -> None:
        """The bytes leave."""
        if lease.receipts:
            texts = receipts_by_seq(lease).values()
            found = _numbers(lease)
            name = next(name for name, view in VIEWS.items() if view == self._view_of(lease.token))
            self.issued += [(text, (lease.token, n), name) for text, n in zip(texts, found.values(), strict=True)]
        else:
            assert not set(numbers) & set(self.sent_for_good), "a message was sent twice"
            self.sent_for_good += numbers

    def _view_of(self, token: str) -> int:
        fields = read_token(SECRET, token)
        assert fields is not None
        return fields.view

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
            self.nack(some, 20 if then == "delay" else None, then)
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
    )
    def nack(self, picks: list[int], delay_ms: int | None, reason: str | None) -> None:
        name, texts, receipts = self._picked(picks, "")
        due_ms = self.world.now_ms + delay_ms if delay_ms else delay_ms
        answers: list[Any] = []
        self.world.partition.view(VIEWS[name]).give_back(by_token(texts), due_ms, reason, answers.append)
        self.asked.append(Asked(name, texts, receipts, answers, False, due_ms, reason))

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
        for n in _numbers(lease).values():
            self.model.unsent(self.model.messages[n])
        # Its bytes never left: nobody can have this receipt.
        self.issued = [one for one in self.issued if one[1][0] != lease.token]
        self.undurable = [(other, numbers) for other, numbers in self.undurable if other is not lease]
        self.world.partition.view(self._view_of(lease.token)).unsent(lease)

    def _is_whole(self, lease: Lease) -> bool:
        given = [r for _, r, _ in self.issued if r[0] == lease.token]
        given += [(lease.token, n) for other, numbers in self.undurable if other is lease for n in numbers]
        is_asked_for = any(receipt[0] == lease.token for one in self.asked for receipt in one.receipts)
        return lease.receipts and bool(given) and all(self.model.holds(r) for r in given) and not is_asked_for

    @rule(who=st.integers(0, CONSUMERS - 1))
    def go_away(self, who: int) -> None:
        """What it was sent counts as an attempt; what still waited for the disk was never sent."""
        consumer = self.consumers[who]
        leases, consumer.leases = [lease for lease in consumer.leases if lease.receipts], []
        for lease in leases:
            view = self.world.partition.view(self._view_of(lease.token))
            for part in list(lease.parts()):
                numbers = _numbers(part).values()
                for m in [self.model.messages[number] for number in numbers]:
                    self.model.give_back(m, "returned") if lease.durable else self.model.unsent(m)
                view.give_back_lease(part) if lease.durable else view.unsent(part)
        self.undurable = [(lease, numbers) for lease, numbers in self.undurable if lease not in leases]

    @precondition(lambda self: self.model.in_state("main", *FREE, "leased"))
    @rule(which=any_number)
    def cancel(self, which: int) -> None:
        messages = self.model.in_state("main", *FREE, "leased")
        m = messages[which % len(messages)]
        _, shelf, base, index = self._walk()[m.number]
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
        engine = self.world.engine
        for mark, _ in engine.scan(Table.META, GARBAGE, GARBAGE[:-1] + b"0", 1 << 30):
            batch = Batch()
            batch.delete(Table.META, mark)
            for part in ranges(*_parse(mark[len(GARBAGE) :])):
                for key, row in engine.scan(part.table, part.start, part.end, 1 << 30):
                    if part.covers(key, row):
                        batch.delete(part.table, key)
            engine.commit(batch, lambda: None)

    @precondition(lambda self: self.model.ready("dead"))
    @rule(which=any_number)
    def redrive(self, which: int) -> None:
        """A dead letter goes back to the queue, as if it were new."""
        dead = self.model.ready("dead")
        m = dead[which % len(dead)]
        _, shelf, base, index = self._walk()[m.number]
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
        move(view, lease, self.world.partition, {index: annex}, lambda *how: done.append(how), m.priority)

    @rule(ms=st.sampled_from([1, 15, 49, 50, 250, 400, 1000]))
    def time_passes(self, ms: int) -> None:
        self.world.now_ms += ms
        self._run_timer()

    def _arm(self, deadline_ms: int | None) -> None:
        if deadline_ms is not None:
            self.timer_ms = deadline_ms if self.timer_ms is None else min(self.timer_ms, deadline_ms)

    def _run_timer(self) -> None:
        """As a node does: it looks only when the queue has asked for it."""
        partition, now_ms = self.world.partition, self.world.now_ms
        self.model.now_ms = now_ms
        for _ in range(TICKS_MAX):
            if self.timer_ms is None or self.timer_ms > now_ms:
                break
            self.timer_ms = None
            before = [len(c.lost_receipts) for c in self.consumers]
            partition.tick(now_ms)
            self._arm(partition.next_wakeup_ms())
            lost = self.model.tick(now_ms)
            told = [text for c, n in zip(self.consumers, before, strict=True) for text in c.lost_receipts[n:]]
            known = {r: text for text, r, _ in self.issued}
            kept = [(m.token, m.number) for m in lost if m.holder >= 0]
            assert len(told) == len(kept), f"{kept} ran out, {told} were told"
            assert set(told) >= {known[r] for r in kept if r in known}
        assert not self.model.overdue(), "nobody asked to be woken"

    def _open(self) -> None:
        """A process begins."""
        self.timer_ms = self.world.partition.next_wakeup_ms()
        self.world.partition.on_deadline = lambda _, deadline_ms: self._arm(deadline_ms)

    # -------------------------------------------------------------------------------------------------- the disk

    @precondition(lambda self: not self.world.committer.is_in_flight)
    @rule()
    def prepare(self) -> None:
        """The reference decides what waits as the partition does, and the commit is on its way."""
        self._see()
        live = self.model.disk.live("main")
        if not self.world.committer.prepare():
            return
        moves = self._decide_moves(live)
        checks = [self._decide_asked(one) for one in sorted(self.asked, key=lambda one: not one.is_ack)]
        gone = self._evicted()
        evictable = self.model.evictable
        self.model.begin()
        for one in moves:
            self.model.publish([one.message], must_fit=True)
        checks += [self._decide_call(call) for call in self.calls]
        assert len(gone) == evictable - self.model.evictable or self.config.ordering == "strict"
        self.model.release()
        checks += [self._expect(answers, lambda got, h=held, t=texts: verdicts(t, got) == h) for answers, texts, held in self.extends]
        checks += [self._expect(answers, lambda got: got == {}) for answers in self.cancels]
        for name in {name for name, _ in self.purges}:
            count = self.model.purge(name)
            checks += [
                self._expect(answers, lambda got, c=count: got == c) for one, answers in self.purges if one == name
            ]
        purged = {name for name, _ in self.purges}
        leases = [lease for lease, _ in self.undurable]
        self.landing = [*checks, lambda: self._landed(purged, leases)]
        self.calls, self.asked, self.extends, self.purges, self.cancels = [], [], [], [], []

    def _expect(self, answers: list[Any], is_right: Callable[[Any], bool]) -> Callable[[], None]:
        def check() -> None:
            assert len(answers) == 1 and is_right(answers[0]), f"the answer was {answers}"

        return check

    def _decide_moves(self, live: int) -> list[Move]:
        moves, self.moves = self.moves, []
        going: list[Move] = []
        for one in moves:
            limit, dead = self.config.max_messages, self.model.messages[one.number]
            is_full = limit is not None and self.config.overflow == "reject" and live + len(going) + 1 > limit
            if not self.model.holds((one.token, one.number)):
                continue  # purged meanwhile
            if is_full:
                dead.state = "ready"
                assert [messages for messages, _ in one.moved] == [0]
                continue
            self.model.lives[one.token, one.number] = dead.life
            self.model.ack("dead", (one.token, one.number))
            one.message.life = dead.life + 1
            going.append(one)
        return going

    def _decide_asked(self, asked: Asked) -> Callable[[], None]:
        view, texts, receipts, answers, is_ack, due_ms, reason = asked
        if is_ack:
            tokens = list(dict.fromkeys(token for token, _ in receipts))
            in_turn = sorted(receipts, key=lambda r: tokens.index(r[0]))
            won = {r: bool(r[0]) and self.model.ack(view, r) for r in in_turn}
            wanted = [won[r] for r in receipts]
        else:
            wanted = [self.model.holds(r) for r in receipts]
            for receipt, is_held in zip(receipts, wanted, strict=True):
                if is_held:
                    self.model.give_back(self.model.messages[receipt[1]], "nacked", due_ms, reason)
        return self._expect(answers, lambda got: verdicts(texts, got) == wanted)

    def _evicted(self) -> list[Message]:
        """What the cycle ended to make room, as it is missing now."""
        if self.config.max_messages is None:
            return []
        seen = self._walk()
        gone = [m for m in self.model.in_state("main", "ready") if m.number not in seen]
        self.model.evicted(gone)
        return gone

    def _decide_call(self, call: Call) -> Callable[[], None]:
        expected = self.model.publish(call.messages)

        def check() -> None:
            assert len(call.answers) == 1
            offsets = _offsets(call)
            for m, wanted, got in zip(call.messages, expected, offsets, strict=True):
                if wanted == "full":
                    assert isinstance(got, QueueFull), f"{m.number} found no room and was answered {got}"
                elif wanted is None:
                    assert isinstance(got, int) and got >= 0, f"{m.number} was answered {got}"
                    self.confirmed[m.number] = got
            for m, wanted, got in zip(call.messages, expected, offsets, strict=True):
                if isinstance(wanted, int):
                    assert got == Original(self.confirmed.get(wanted, -1)), f"{m.number} repeats {wanted}: {got}"

        return check

    @precondition(lambda self: self.world.committer.is_in_flight)
    @rule()
    def land(self) -> None:
        self.world.committer.land()
        landing, self.landing = self.landing, []
        for check in landing:
            check()
        self._run_timer()

    def _landed(self, purged: set[str], leases: list[Lease]) -> None:
        self.model.land(purged="main" in purged)
        if "main" in purged:
            assert not any(lease.bits for lease, _ in self.undurable)
            self.undurable = []
        for lease, numbers in [one for one in self.undurable if one[0] in leases]:
            self.undurable.remove((lease, numbers))
            assert lease.durable
            self._issue(lease, numbers)
        assert not any(lease.durable for lease, _ in self.undurable)

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
        self._open()
        self._take_up_leases([])
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
            KeptLease(REPLICA, lease.token, lease.state.base, lease.bits.to_bytes(32, "little"), lease.deadline_ms, *place)
            for view in self.world.partition.views.values()
            for lease in view.core.leases.values()
            if not lease.number
            for place in [(view.number, lease.state.shelf)]
        ]
        self.world.crash()
        self._open()
        self._take_up_leases(kept)
        self.model.now_ms = self.world.now_ms
        self.model.disk = self.model.facts.copy()
        deadlines = {(m.token, m.number): m.deadline_ms for m in self.model.messages.values() if m.state == "leased"}
        self.model.crash(landed=False, stored=lambda m: True)
        for m in self.model.messages.values():
            if m.state == "leased" and not (self.config.lease_mode == "replicated" and m.view == "main"):
                m.deadline_ms = deadlines[m.token, m.number]
        self._forget_callers()

    def _take_up_leases(self, kept: list[KeptLease]) -> None:
        """As a node does at its start: those with a row of their own, then those of a clean stop."""
        partition = self.world.partition
        stored = []
        for row in partition.reader.leases():
            fields = read_token(SECRET, row.token)
            assert fields is not None
            stored.append(
                KeptLease(
                    REPLICA, row.token, row.base, row.bits, row.deadline_ms, row.view, fields.shelf, row.number
                )
            )
        for lease in [*stored, *kept]:
            partition.view(lease.view).restore(lease, Detached())

    def _settle_down(self) -> None:
        self.world.committer.request(self.world.partition)
        while self.world.committer.is_in_flight or self._waits():
            self.land() if self.world.committer.is_in_flight else self.prepare()

    def _waits(self) -> bool:
        return self.world.committer.is_asked

    def _forget_callers(self) -> None:
        for consumer in self.consumers:
            consumer.leases.clear()
        self.calls, self.asked, self.extends, self.purges, self.cancels = [], [], [], [], []
        self.moves, self.landing, self.undurable = [], [], []
        self.quiet_steps = 0

    # --------------------------------------------------------------------------------------------------- checks

    def _walk(self) -> dict[int, Place]:
        """Where every message lies, by what is stored and what is decided."""
        found: dict[int, Place] = {}
        for name, shelves in SHELVES.items():
            for shelf in shelves:
                for chunk in self._chunks(shelf):
                    for index in indexes(self._present(VIEWS[name], chunk)):
                        number = int(chunk.messages.bodies[index])
                        assert number not in found, f"{number} lies in two places"
                        found[number] = Place(name, shelf, chunk.base, index)
        return found

    def _chunks(self, shelf: int) -> Iterator[Chunk]:
        chunk = self.world.partition.read(0, shelf)
        while chunk is not None:
            yield chunk
            chunk = self.world.partition.read(chunk.base + 1, shelf)

    def _present(self, number: int, chunk: Chunk) -> int:
        view: View | None = self.world.partition.views.get(number)
        state = view.core.state(chunk.base) if view is not None else None
        if state is not None:
            return state.present
        return ((1 << chunk.count) - 1) & ~self.world.partition.progress(chunk.base, number).settled & ~holes(chunk)

    def _see(self) -> None:
        """What the queue ended by itself: nobody else may be missing, and nobody there who is over."""
        seen = self._walk()
        for m in self.model.messages.values():
            is_there = m.view != "gone" and m.state != "settling"
            if is_there and m.number not in seen:
                self.model.vanished(m)
            elif is_there:
                assert seen[m.number].view == m.view
            else:
                assert m.number not in seen, f"{m.number} is back, it was {m.end}"
        assert seen.keys() <= self.model.messages.keys()

    @invariant()
    def is_as_the_reference_says(self) -> None:
        if hasattr(self, "world"):
            self._see()
            self._check_counts()
            self._check_expiry()
            assert self.world.quarantined == []

    def _check_counts(self) -> None:
        partition = self.world.partition
        for name, number in VIEWS.items():
            view = partition.view(number)
            live, in_flight, delayed = view.tally.live, view.core.in_flight, view.core.delayed
            counts, expected = (live - in_flight - delayed, in_flight, delayed), self.model.counts(name)
            assert counts == expected, f"{name}: (ready, in flight, delayed) are {counts}, expected {expected}"
        assert partition.state.acked_total == self.model.disk.acked
        assert partition.state.ended == +self.model.disk.ended

    def _check_expiry(self) -> None:
        """What expired is gone in time."""
        if not self.world.committer.is_in_flight and not self._waits():
            assert not self.model.stale(), f"{self.model.stale()} expired and are still there"

    # ---------------------------------------------------------------------------------------------------- the end

    def _drain(self) -> None:
        """Takes and acks all there is; then every confirmed message is accounted for, and no row is left."""
        for _ in range(40):
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
        for table in EMPTY_AT_THE_END:
            rows = self.world.engine.scan(table, *log_range(REPLICA), 100)
            assert not rows, f"{len(rows)} rows of {table} are left: {rows[0]}"

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

    def _picked(self, picks: list[int], forge: str) -> tuple[str, list[str], list[Receipt]]:
        """Receipts of one view by number, the youngest first; a forged one has no token in the reference."""
        chosen = [self.issued[-1 - n % len(self.issued)] for n in dict.fromkeys(n % len(self.issued) for n in picks)]
        name = chosen[0][2]
        receipts = [(text, r) for text, r, view in chosen if view == name]
        if forge == "token":
            receipts = [(text[:5] + ("A" if text[5] != "A" else "B") + text[6:], ("", r[1])) for text, r in receipts]
        return name, [text for text, _ in receipts], [r for _, r in receipts]


def _numbers(lease: Lease) -> dict[int, int]:
    """The numbers of a lease's messages by their seq; the test keeps the chunk."""
    assert lease.chunk is not None
    bodies = lease.chunk.messages.bodies
    return {lease.state.base + n: int(bodies[n]) for n in indexes(lease.bits)}


def _at(columns: dict[str, list[Any]], name: str, index: int) -> Any:
    return columns[name][index] if name in columns else None


def _draft(m: Message, size: int) -> Draft:
    columns: dict[str, Any] = {"key": m.key} if m.key is not None else {}
    body = b"%d" % m.number + b" " * size
    id_ = f"m{m.number}"
    return Draft(KIND_JSON, body, {**columns, "id": id_}, m.priority, m.scheduled_ms, m.expires_ms, m.stamp, m.id)


def _offsets(call: Call) -> list[Any]:
    """What each message of a call was answered: its offset, its original, or why it was refused."""
    (answer,) = call.answers
    count = len(call.messages)
    if isinstance(answer, PushqError):
        return [answer] * count
    assert isinstance(answer, Published) and answer.count == count
    flat: list[Any] = []
    base = int(answer.base)
    for number, block in enumerate(call.blocks):
        first = base if answer.bases is None else answer.bases[number]
        flat += range(first, first + block.count)
        base += block.count
    for index, other in (answer.others or {}).items():
        flat[index] = other
    return flat


TestQueueSemantics = QueueSemantics.TestCase
TestQueueSemantics.settings = settings(
    max_examples=settings().max_examples if settings.get_current_profile_name() == "long" else EXAMPLES,
    stateful_step_count=STEPS,
    suppress_health_check=[HealthCheck.too_slow],
    report_multiple_bugs=False,
)
