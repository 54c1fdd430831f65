"""The queue side by side with its reference: what was asked of both, what both must answer, where they must agree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from hypothesis.stateful import RuleBasedStateMachine

from backend_store.core.leases.leases import Lease
from backend_store.core.leases.receipts import read_token
from backend_store.core.log.sublogs import priority_of
from backend_store.core.ready import backlog, priorities
from backend_store.model import Original, QueueConfig, QueueFull
from tests.support.contest import Early, decide
from tests.support.semantics_facts import FREE, Message, Receipt
from tests.support.semantics_model import SemanticsModel
from tests.support.semantics_seen import VIEWS, Place, numbers_of, value_at, walk
from tests.support.semantics_wishes import Author, Call, offsets
from tests.support.world import SECRET, Consumer, World, receipts_by_seq, verdicts

CONSUMERS = 3
QUIET_STEPS = 3
"""Minimum number of commits and deliveries between two restarts: a queue that only restarts decides nothing."""
SMALL = {(backlog, "CHUNKS_LOADED_BYTES_MAX"): 600, (priorities, "READY_RUNS_AHEAD"): 2}
"""Limits small enough to be reached, so that chunks leave memory while in use, and a backlog stays on disk."""
TICKS_MAX = 3
"""Timer calls at one moment: a queue that waits for its commit asks again at once."""


class Asked(NamedTuple):
    """Receipts of one view that await a response; `outcome` is that of a nack."""

    view: str
    texts: list[str]
    receipts: list[Receipt]
    answers: list[Any]
    outcome: str | None = None
    due_ms: int | None = None
    reason: str | None = None


class Move(NamedTuple):
    number: int
    token: str
    message: Message
    moved: list[Any]


class Bench(RuleBasedStateMachine):
    """The machine without rules, which the test adds."""

    config: QueueConfig
    world: World
    model: SemanticsModel
    author: Author

    def __init__(self) -> None:
        super().__init__()
        self._bounds = {(module, name): getattr(module, name) for module, name in SMALL}
        for (module, name), value in SMALL.items():
            setattr(module, name, value)
        self.consumers = [Consumer() for _ in range(CONSUMERS)]
        self.issued: list[tuple[str, Receipt, str]] = []
        """Every receipt ever issued: as text, as named by the reference, and its view."""
        self.undurable: list[tuple[Lease, list[int]]] = []
        """Leases whose messages are sent when the disk has caught up."""
        self.calls: list[Call] = []
        self.asked: list[Asked] = []
        self.early = Early()
        self.extends: list[tuple[list[Any], list[str], list[bool]]] = []
        self.purges: list[tuple[str, list[Any]]] = []
        self.moves: list[Move] = []
        self.cancels: list[list[Any]] = []
        self.landing: list[Callable[[], None]] = []
        self.confirmed: dict[int, int] = {}
        """Number → offset, from the response to the publish."""
        self.repeats: list[tuple[Message, int, Any]] = []
        """Responses of this commit that name an original: (the repeat, the number of the original, the response)."""
        self.by_id: dict[bytes, set[int]] = {}
        """Numbers of the messages with an id."""
        self.seen: dict[int, int] = {}
        """Number → offset where first seen, for messages whose response was lost in a crash."""
        self.sent_for_good: list[int] = []
        self.timer_ms: int | None = None
        self.quiet_steps = 0

    def _check_columns(self, lease: Lease, by_seq: dict[int, int]) -> None:
        assert lease.chunk is not None
        columns = lease.chunk.messages.columns or {}
        for seq, number in by_seq.items():
            m, index = self.model.messages[number], seq - lease.state.base
            assert value_at(columns, "key", index) == m.key
            dead = value_at(columns, "dead", index)
            if m.view == "dead":
                assert {name: dead[name] for name in ("reason", "attempts", "history")} == m.letter
            else:
                assert dead is None
            assert bool(value_at(columns, "late", index)) == m.is_late

    def _issue(self, lease: Lease, numbers: list[int]) -> None:
        """Sends the lease to its consumer."""
        if lease.receipts:
            texts = receipts_by_seq(lease).values()
            found = numbers_of(lease)
            name = next(name for name, view in VIEWS.items() if view == self._view_of(lease.token))
            self.issued += [(text, (lease.token, n), name) for text, n in zip(texts, found.values(), strict=True)]
        else:
            assert not set(numbers) & set(self.sent_for_good), "a message was sent twice"
            self.sent_for_good += numbers

    def _view_of(self, token: str) -> int:
        fields = read_token(SECRET, token)
        assert fields is not None
        return fields.view

    def _is_whole(self, lease: Lease) -> bool:
        given = [r for _, r, _ in self.issued if r[0] == lease.token]
        given += [(lease.token, n) for other, numbers in self.undurable if other is lease for n in numbers]
        is_asked_for = any(receipt[0] == lease.token for one in self.asked for receipt in one.receipts)
        return lease.receipts and bool(given) and all(self.model.holds(r) for r in given) and not is_asked_for

    def _arm(self, deadline_ms: int | None) -> None:
        if deadline_ms is not None:
            self.timer_ms = deadline_ms if self.timer_ms is None else min(self.timer_ms, deadline_ms)

    def _run_timer(self) -> None:
        """Acts as a node does: calls the queue only when it has asked for that."""
        partition, now_ms = self.world.partition, self.world.now_ms
        self.model.now_ms = now_ms
        for _ in range(TICKS_MAX):
            if self.timer_ms is None or self.timer_ms > now_ms:
                break
            self.timer_ms = None
            before = [len(c.lost_receipts) for c in self.consumers]
            self._decide_first(
                {m.view for m in self.model.messages.values() if m.state == "leased" and m.deadline_ms <= now_ms}
            )
            partition.tick(now_ms)
            self._arm(partition.next_wakeup_ms())
            lost = self.model.tick(now_ms)
            reported = [text for c, n in zip(self.consumers, before, strict=True) for text in c.lost_receipts[n:]]
            known = {r: text for text, r, _ in self.issued}
            kept = [(m.token, m.number) for m in lost if m.holder >= 0]
            assert len(reported) == len(kept), f"{kept} ran out, {reported} are reported"
            assert set(reported) >= {known[r] for r in kept if r in known}
        assert not self.model.overdue(), "nothing has asked for a wake-up"

    def _open(self) -> None:
        """Starts a process."""
        self.timer_ms = self.world.partition.next_wakeup_ms()
        self.world.partition.on_deadline = lambda _, deadline_ms: self._arm(deadline_ms)

    def _expect(self, answers: list[Any], is_right: Callable[[Any], bool]) -> Callable[[], None]:
        def check() -> None:
            assert len(answers) == 1 and is_right(answers[0]), f"the response was {answers}"

        return check

    def _decide_moves(self, kept: int | None) -> list[Move]:
        """`kept`: messages that remain, next to which the moved ones must fit; None if they need no room."""
        moves, self.moves = self.moves, []
        going: list[Move] = []
        for one in moves:
            limit, dead = self.config.max_messages, self.model.messages[one.number]
            is_full = limit is not None and kept is not None and kept + len(going) + 1 > limit
            if not self.model.holds((one.token, one.number)):
                continue  # purged in the meantime
            if is_full:
                dead.state = "ready"
                assert [messages for messages, _ in one.moved] == [0]
                continue
            self.model.lives[one.token, one.number] = dead.life
            self.model.ack("dead", (one.token, one.number))
            one.message.life = dead.life + 1
            going.append(one)
        return going

    def _decide_acks(self, acks: list[Asked], strange: set[str]) -> list[Callable[[], None]]:
        early = self.early

        def ack(n: int, receipt: Receipt) -> bool:
            return early.acked(acks[n].answers, receipt, partial(self.model.ack, acks[n].view))

        wanted = decide([one.receipts for one in acks], strange, ack)
        return [self._expect_verdicts(one, verdict) for one, verdict in zip(acks, wanted, strict=True)]

    def _decide_first(self, views: Collection[str]) -> None:
        """Leases of these views are about to end: earlier requests about them take effect first, and are answered with
        the next commit."""
        strange = self._strange_tokens() if views and self.asked else set()
        here = [one for one in self.asked if one.view in views]
        for one in here:
            if one.outcome is None:
                self.early.ack(one.answers, one.receipts, strange, partial(self.model.ack, one.view))
        for one in here:
            if one.outcome is not None:
                self.early.nack(one.answers, partial(self._given_back, one))

    def _strange_tokens(self) -> set[str]:
        """Requested tokens that match no lease in memory."""
        view = self.world.partition.view
        asked = {(one.view, token) for one in self.asked for token, _ in one.receipts}
        return {token for name, token in asked if view(VIEWS[name]).core.is_strange(token)}

    def _decide_nack(self, asked: Asked) -> Callable[[], None]:
        return self._expect_verdicts(asked, self.early.nack(asked.answers, partial(self._given_back, asked)))

    def _given_back(self, asked: Asked) -> list[bool]:
        wanted = [self.model.holds(r) for r in asked.receipts]
        for receipt, is_held in zip(asked.receipts, wanted, strict=True):
            if is_held:
                m = self.model.messages[receipt[1]]
                self.model.give_back(m, asked.outcome or "nacked", asked.due_ms, asked.reason)
        return wanted

    def _expect_verdicts(self, asked: Asked, wanted: list[bool]) -> Callable[[], None]:
        return self._expect(asked.answers, lambda got: verdicts(asked.texts, got) == wanted)

    def _kept(self) -> int | None:
        """Messages that remain, next to which those of a step must fit."""
        if self.config.overflow == "reject":
            return self.model.disk.live("main") - len(self.model.in_state("main", "settling"))
        return self.model.in_hands if self.model.evicts else None

    def _evicted(self, before: Mapping[int, Place]) -> list[Message]:
        """The messages that the cycle evicted, which are missing now. `before`: the previous positions."""
        if self.config.max_messages is None:
            return []
        seen = walk(self.world.partition)
        gone = [m for m in self.model.in_state("main", *FREE) if m.number not in seen]

        def order(m: Message) -> tuple[int, int]:
            place = before[m.number]
            return priority_of(place.shelf), place.base + place.bit

        self.model.evicted(gone, order)
        return gone

    def _decide_call(self, call: Call) -> Callable[[], None]:
        expected = self.model.publish(call.messages)
        for m in call.messages:
            if m.id:
                self.by_id.setdefault(m.id, set()).add(m.number)

        def check() -> None:
            assert len(call.answers) == 1
            places = offsets(call)
            for m, wanted, got in zip(call.messages, expected, places, strict=True):
                if wanted == "full":
                    assert isinstance(got, QueueFull), f"{m.number} found no room, but the response was {got}"
                elif wanted is None:
                    assert isinstance(got, int) and got >= 0, f"the response for {m.number} was {got}"
                    self.confirmed[m.number] = got
            for m, wanted, got in zip(call.messages, expected, places, strict=True):
                if isinstance(wanted, int):
                    self.repeats.append((m, wanted, got))

        return check

    def _check_original(self, m: Message, wanted: int, got: Any) -> None:
        """It must name the first message, by its number or id; -1 if nobody knows its position any more."""
        assert isinstance(got, Original), f"{m.number} repeats {wanted}, but the response was {got}"
        firsts = {wanted, *(self.by_id.get(m.id, ()) if m.id else ())}
        offsets = {one: self.confirmed.get(one, self.seen.get(one, -1)) for one in firsts}
        if got.offset >= 0 and offsets[wanted] < 0:
            # Nobody was told the position of the first one: the response was lost in a crash, and the message purged.
            others = {number for number, offset in (self.seen | self.confirmed).items() if offset == got.offset}
            assert not others - firsts, f"{m.number} repeats one of {offsets}: {got} is {others}"
            return
        assert got.offset < 0 or got.offset in offsets.values(), f"{m.number} repeats one of {offsets}: {got}"

    def _landed(self, purged: set[str], leases: list[Lease]) -> None:
        repeats, self.repeats = self.repeats, []
        for repeat in repeats:
            self._check_original(*repeat)
        self.model.land(purged="main" in purged)
        if "main" in purged:
            assert not any(lease.bits for lease, _ in self.undurable)
            self.undurable = []
        for lease, numbers in [one for one in self.undurable if one[0] in leases]:
            self.undurable.remove((lease, numbers))
            assert lease.durable
            self._issue(lease, numbers)
        assert not any(lease.durable for lease, _ in self.undurable)

    def _forget_callers(self) -> None:
        for consumer in self.consumers:
            consumer.leases.clear()
        self.calls, self.asked, self.extends, self.purges, self.cancels = [], [], [], [], []
        self.early = Early()
        self.moves, self.landing, self.undurable = [], [], []
        self.quiet_steps = 0

    def _see(self) -> None:
        """Messages that the queue ended by itself: no others may be missing, and no ended ones present."""
        seen = walk(self.world.partition)
        for number, place in seen.items():
            if place.view == "main" and not (number in self.model.messages and self.model.messages[number].is_late):
                self.seen.setdefault(number, place.base + place.bit)
        for m in self.model.messages.values():
            is_there = m.view != "gone" and m.state != "settling"
            if is_there and m.number not in seen:
                if not self.model.is_being_purged(m):
                    self.model.vanished(m)
            elif is_there:
                assert seen[m.number].view == m.view
            else:
                assert m.number not in seen, f"{m.number} is back after it was {m.end}"
        assert seen.keys() <= self.model.messages.keys()

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
        """Expired messages must be removed in time."""
        if not self.world.committer.is_in_flight and not self.world.committer.is_asked:
            assert not self.model.stale(), f"{self.model.stale()} have expired but are still present"

    def _picked(self, picks: list[int], forge: str) -> tuple[str, list[str], list[Receipt]]:
        """Receipts of one view by number, the youngest first; a forged one has no token in the reference."""
        chosen = [self.issued[-1 - n % len(self.issued)] for n in dict.fromkeys(n % len(self.issued) for n in picks)]
        name = chosen[0][2]
        receipts = [(text, r) for text, r, view in chosen if view == name]
        if forge == "token":
            receipts = [(text[:5] + ("A" if text[5] != "A" else "B") + text[6:], ("", r[1])) for text, r in receipts]
        return name, [text for text, _ in receipts], [r for _, r in receipts]

    def _found(self, messages: list[Message], which: int) -> tuple[Message, Place] | None:
        """One of the messages, and its position. A purge in progress may already have deleted its row."""
        places = walk(self.world.partition)
        there = [m for m in messages if m.number in places]
        if not there:
            return None
        m = there[which % len(there)]
        return m, places[m.number]
