"""The reference model of partitioned queues: what may happen to a message, whichever partition has it.

The model makes no choices. The real queues hand out, move and end messages, and the model says whether they may:
nothing confirmed is lost, no id is stored twice, and the keys of a strict queue keep their order. If a crash swallowed
a response, it looks at the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from backend_store.core.leases.leases import Lease
from backend_store.core.log.sublogs import VIEW_MAIN
from backend_store.model import Original, Published, PushqError, QueueConfig, QueueFull, QueueNotFound
from backend_store.node.partitions import places_of
from tests.support.partitions_facts import Fact, Seen

Lying = Mapping[int, Seen]


class Accepted(NamedTuple):
    """A message whose id counts, and the times between which that began."""

    fact: Fact
    asked_ms: int
    answered_ms: int


class Step(NamedTuple):
    """Acks and publishes of one step, which happen together or not at all."""

    inputs: list[Fact]
    outputs: list[Fact]


class PartitionsModel:
    def __init__(self, configs: Mapping[str, QueueConfig]):
        self.configs = dict(configs)
        self.facts: dict[int, Fact] = {}
        self.now_ms = 0
        self.must_fit: dict[str, int] = dict.fromkeys(configs, 0)
        """Messages that a queue had to accept, however full it was."""
        self.has_redriven = False
        self.is_leaving = False
        """The first queue was deleted, and its messages move to another queue."""
        self._orders = 0
        self._places: dict[tuple[str, int, int], int] = {}
        """Every position ever assigned: (queue, partition, offset) → number."""
        self._accepted: dict[tuple[str, bytes], list[Accepted]] = {}
        self._first_out: dict[tuple[str, str | None], int] = {}
        """(queue, key) → the order of the last message handed out for the first time."""
        self._repeats: list[tuple[Fact, tuple[int, int]]] = []
        """Responses that name an original whose own response is still pending."""

    def new(self, home: str) -> Fact:
        number = len(self.facts) + 1
        fact = self.facts[number] = Fact(number, home)
        return fact

    def sent(self, fact: Fact) -> None:
        """Its publish was sent."""
        self._orders += 1
        fact.state, fact.order, fact.asked_ms = "asked", self._orders, self.now_ms

    def is_strict(self, queue: str) -> bool:
        return queue in self.configs and self.configs[queue].ordering == "strict"

    # ------------------------------------------------------------------------------------------------------ publishes

    def answered(self, facts: Sequence[Fact], result: Published | PushqError, blocks: Sequence[Any]) -> None:
        """The response to a publish; the messages are in the order of its blocks."""
        if isinstance(result, PushqError):
            for fact in facts:
                self._refused(fact, result)
            return
        places, others = places_of(result, blocks), result.others or {}
        for number, (fact, place) in enumerate(zip(facts, places, strict=True)):
            other = others.get(number)
            if isinstance(other, PushqError):
                self._refused(fact, other)
            elif other is None:
                self._stored(fact, place)
        for number, fact in enumerate(facts):
            other = others.get(number)
            if isinstance(other, Original):
                assert other.offset >= 0, f"{fact.number} repeats a message without a position"
                self._repeated(fact, (result.partition if other.partition is None else other.partition, other.offset))

    def _refused(self, fact: Fact, error: PushqError) -> None:
        is_late = self.is_leaving and isinstance(error, QueueNotFound)
        assert isinstance(error, QueueFull) or is_late, f"{fact.number} was refused: {error}"
        fact.state = "refused"

    def _stored(self, fact: Fact, place: tuple[int, int]) -> None:
        fact.state, fact.place = "stored", place
        self.lies(fact, Seen(fact.home, VIEW_MAIN, *place))
        self._accept(fact, self.now_ms)

    def _accept(self, fact: Fact, answered_ms: int) -> None:
        if fact.hash is None:
            return
        before = self._accepted.setdefault((fact.home, fact.hash), [])
        window_ms = self.configs[fact.home].dedupe_window_ms
        double = [one.fact.number for one in before if answered_ms - one.asked_ms < window_ms]
        assert not double, f"{fact.number} was stored although {double} with its id exist within the window"
        before.append(Accepted(fact, fact.asked_ms, answered_ms))

    def _repeated(self, fact: Fact, place: tuple[int, int]) -> None:
        fact.state = "repeat"
        self._repeats.append((fact, place))

    def _check_repeats(self) -> None:
        """A repeat must name the position of a message with its id, no older than the window."""
        waiting = []
        for fact, place in self._repeats:
            number = self._places.get((fact.home, *place))
            if number is None:
                waiting.append((fact, place))
                continue
            first = self.facts[number]
            assert first.hash == fact.hash, f"{fact.number} was reported as a repeat of {number}, which has another id"
            known = [one for one in self._accepted.get((fact.home, fact.hash or b""), ()) if one.fact is first]
            window_ms = self.configs[fact.home].dedupe_window_ms
            is_old = bool(known) and fact.asked_ms - known[0].answered_ms > window_ms
            assert not is_old, f"{fact.number} was reported as a repeat of {number}, which is out of the window"
        self._repeats = waiting

    # ------------------------------------------------------------------------------------------------- what is where

    def lies(self, fact: Fact, seen: Seen) -> None:
        """A position was assigned or seen; it must never be that of two messages."""
        place = seen.queue, seen.partition, seen.offset
        known = self._places.setdefault(place, fact.number)
        assert known == fact.number, f"{place} was assigned to {known} and to {fact.number}"

    def look(self, lying: Lying, step: Iterable[Step] = ()) -> None:
        """Compares with the messages' actual positions, while nothing is being written."""
        for number, seen in lying.items():
            self._is_there(self.facts[number], seen)
        for fact in self.facts.values():
            if fact.state == "stored" and fact.number not in lying:
                assert self._may_be_gone(fact), f"{fact} is lost"
                fact.state = "over"
            elif fact.state == "stored":
                fact.may_be_over = False
        self._check_repeats()

    def _is_there(self, fact: Fact, seen: Seen) -> None:
        assert fact.state not in ("refused", "repeat", "over"), f"{fact} is in {seen}"
        if fact.state == "unknown":
            fact.state = "stored"
            if seen.view == VIEW_MAIN and seen.queue == fact.home:
                fact.place = seen.partition, seen.offset
                self._accept(fact, self.now_ms)
        if fact.state == "stored":
            self.lies(fact, seen)
        self._see(fact, seen)

    def _see(self, fact: Fact, seen: Seen) -> None:
        fact.seen = seen
        where = Seen(fact.home, VIEW_MAIN, *fact.place) if fact.place is not None else None
        if not fact.is_moved and where is not None and seen != where:
            # It was moved from where its producer put it, and its earlier state is over.
            fact.is_moved, fact.token, fact.due_ms = True, "", 0

    def _may_be_gone(self, fact: Fact) -> bool:
        if fact.may_be_over:
            return True
        config = self.configs[fact.home]
        moved = fact.seen is not None and (fact.seen.queue, fact.seen.view) != (fact.home, VIEW_MAIN)
        if moved and not self.has_redriven:
            return False
        # A redriven message has its whole lifetime again, however long that is.
        lives_on = fact.is_moved and config.message_ttl_ms is not None
        return lives_on or 0 < fact.expires_ms <= self.now_ms or config.overflow == "drop_oldest"

    def crashed(self, lying: Lying, steps: Sequence[Step]) -> None:
        """Pending requests get no response: what is stored now has happened."""
        for inputs, outputs in steps:
            outputs = [fact for fact in outputs if not 0 < fact.expires_ms <= self.now_ms]
            stored = [fact.number for fact in outputs if fact.number in lying]
            acked = [fact.number for fact in inputs if fact.number not in lying]
            assert len(stored) in (0, len(outputs)), f"only {stored} of a step's {outputs} were stored"
            assert not stored or len(acked) == len(inputs), f"{stored} were stored, but {inputs} not acked"
        for fact in self.facts.values():
            if fact.state == "asked":
                fact.state = "unknown"
        self.look(lying)
        for fact in self.facts.values():
            if fact.state == "unknown":
                fact.state = "over"

    # ---------------------------------------------------------------------------------------------------- handed out

    def taken(self, queue: str, facts: Sequence[Fact], lease: Lease, lying: Lying) -> None:
        """A lease. `lying`: current positions."""
        for fact in facts:
            self._see(fact, lying[fact.number])
            assert fact.state == "stored", f"{fact} was handed out"
            assert not fact.is_held(self.now_ms), f"{fact} was handed out to a second consumer"
            assert fact.due_ms <= self.now_ms, f"{fact} was handed out before its retry was due"
            if not fact.is_moved:
                assert fact.scheduled_ms <= self.now_ms, f"{fact} was handed out before its time"
                assert not 0 < fact.expires_ms <= self.now_ms, f"{fact} was handed out after its time"
        if self.is_strict(queue):
            for fact in facts:
                self._check_key(queue, fact, facts, lying)
        for fact in facts:
            fact.token, fact.lease, fact.deadline_ms = lease.token, lease, lease.deadline_ms
            fact.due_ms, fact.was_out = 0, True

    def _check_key(self, queue: str, fact: Fact, batch: Sequence[Fact], lying: Lying) -> None:
        """A key has one holder, and nothing is handed out before earlier messages are settled."""
        is_plain = not (fact.is_moved or fact.scheduled_ms)
        for number, seen in lying.items():
            other = self.facts[number]
            if seen.queue != queue or seen.view != VIEW_MAIN or other.key != fact.key or other in batch:
                continue
            assert not other.is_held(self.now_ms), f"{fact} was handed out while {other} is held"
            if is_plain and not (other.is_moved or other.scheduled_ms or other.home != queue):
                assert other.order > fact.order, f"{fact} was handed out before {other}"
        if is_plain and not fact.was_out:
            last = self._first_out.get((queue, fact.key), 0)
            assert last < fact.order, f"{fact} was handed out after {last}"
            self._first_out[queue, fact.key] = fact.order

    def acked(self, fact: Fact, token: str, *, ok: bool) -> None:
        """The verdict on a receipt."""
        if ok:
            assert fact.token == token or not fact.is_held(self.now_ms), f"{fact} was acked by {token}"
            fact.state, fact.token = "over", ""
            return
        assert not (fact.token == token and fact.is_held(self.now_ms)), f"{fact} was held, but could not be acked"

    def given_back(self, fact: Fact, token: str, *, ok: bool, due_ms: int) -> None:
        """`due_ms`: its delay counts from the request, however long the disk takes."""
        if ok:
            fact.token, fact.due_ms = "", due_ms
            return
        assert not (fact.token == token and fact.is_held(self.now_ms)), f"{fact} was held, but not given back"

    # ---------------------------------------------------------------------------------------------------- afterwards

    def left(self) -> list[Fact]:
        return [fact for fact in self.facts.values() if fact.state in ("asked", "stored", "unknown")]
