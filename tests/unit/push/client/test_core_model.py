"""Whatever the network does, every publish and every ack ends exactly once, nothing unconfirmed is forgotten, and no
number is used for two messages that may both be stored."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from push.client.core import Subscribed
from push.client.core.effects import Effects, Phase
from push.client.errors import FieldError, Problem, PushqError, SessionClosed
from push.client.frames import Ack, AnyClientFrame, Error, Extend, Ok, Publish, PublishedItem, SettleResult, Subscribe
from tests.unit.push.client.world import World, bodies, numbers


class OneOutcomeEach(World):
    """Counts the outcomes that `World` would overwrite."""

    def __init__(self) -> None:
        super().__init__(publish_timeout_s=50, settle_timeout_s=50, publish_frame_messages_max=3, silence_grace_s=1e6)
        self.outcomes: Counter[object] = Counter()

    def note(self, effects: Effects) -> None:
        self.outcomes.update(outcome.ticket for outcome in effects.published)
        self.outcomes.update(settled.item.ticket for settled in effects.settled)
        super().note(effects)


class ClientMachine(RuleBasedStateMachine):
    """Publishes, acks, answers of every kind and cuts, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = OneOutcomeEach()
        self.state = self.world.core.subscribe(Subscribed(queue="q", credit=10, visibility_timeout_ms=8_000))
        self.unanswered: list[AnyClientFrame] = []
        self.publishes: set[str] = set()
        self.acks: set[str] = set()
        self.names = 0
        self.subs = 0
        self.stored: dict[tuple[str, int], str] = {}
        """The played server's queues: number → message. A number that comes again is a repeat."""
        self.numbers: dict[tuple[str, str], int] = {}

    @precondition(lambda self: self.world.core.phase is Phase.OFFLINE)
    @rule(is_resumed=some.booleans())
    def open(self, is_resumed: bool) -> None:
        self.world.open("same" if is_resumed else self._name("session"))

    @precondition(lambda self: self.world.core.phase is Phase.OPEN)
    @rule(code=some.sampled_from([None, 1006, 4000, 4001]), is_stored=some.booleans())
    def cut(self, code: int | None, is_stored: bool) -> None:
        """The server did, or did not do, what it had no time to answer."""
        for frame in self.unanswered:
            if is_stored and isinstance(frame, Publish):
                self._store(frame)
        self.world.cut(code)
        self.unanswered.clear()

    @rule(count=some.integers(1, 5), queue=some.sampled_from(["one", "two", "plain"]))
    def publish(self, count: int, queue: str) -> None:
        for _ in range(count):
            name = self._name("message")
            self.world.publish(name, queue=queue)
            self.publishes.add(name)

    @rule()
    def take(self) -> None:
        for frame in self.world.take_all():
            if isinstance(frame, Subscribe):
                self.subs += 1
                self.world.feed(Ok(id=frame.id, sub=self.subs))
            else:
                self.unanswered.append(frame)

    @precondition(lambda self: self.unanswered)
    @rule(outcome=some.sampled_from(["ok", "one full", "busy", "refused"]), which=some.integers(0, 99))
    def answer(self, outcome: str, which: int) -> None:
        frame = self.unanswered.pop(which % len(self.unanswered))
        if outcome in ("busy", "refused"):
            code, status = ("overloaded", 503) if outcome == "busy" else ("invalid-request", 400)
            errors = (FieldError(f"/messages/{which % 3}/key"),) if outcome == "refused" else ()
            if isinstance(frame, Publish | Ack | Extend):
                self.world.feed(Error(id=frame.id, problem=Problem(code=code, status=status, errors=errors)))
        elif isinstance(frame, Publish):
            items = [PublishedItem(id=body, seq=n) for n, body in enumerate(bodies(frame))]
            full = which % len(items) if outcome == "one full" else None
            if full is not None:
                items[full] = PublishedItem(error=Problem(code="queue-full", status=507))
            self._store(frame, but=full)
            sequencing = "arrival" if frame.queue == "plain" else "producer"
            self.world.feed(Ok(id=frame.id, messages=items, sequencing=sequencing))
        elif isinstance(frame, Ack | Extend):
            results = [SettleResult(receipt, outcome == "ok") for receipt in frame.receipts]
            self.world.feed(Ok(id=frame.id, results=results))

    @precondition(lambda self: self.state.sub is not None)
    @rule(count=some.integers(1, 4))
    def deliver(self, count: int) -> None:
        assert self.state.sub is not None
        self.world.deliver(*(self._name("delivery") for _ in range(count)), sub=self.state.sub)

    @rule()
    def ack_what_is_there(self) -> None:
        while (delivery := self.state.take(self.world.now)) is not None:
            self.world.settle(delivery)
            self.acks.add(f"ack {delivery.message.id}")

    @rule(seconds=some.floats(0.1, 30))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @invariant()
    def no_outcome_comes_twice(self) -> None:
        assert all(count == 1 for count in self.world.outcomes.values()), self.world.outcomes

    @invariant()
    def the_window_counts_what_has_no_outcome(self) -> None:
        open_ones = self.publishes - self.world.outcomes.keys()
        assert self.world.core.publisher.unconfirmed == len(open_ones)

    @invariant()
    def the_next_wakeup_lies_ahead(self) -> None:
        self.world.pass_time(0)
        assert self.world.core.next_wakeup(self.world.now) > self.world.now

    @invariant()
    def numbers_follow_the_order_of_publishing(self) -> None:
        for queue in ("one", "two"):
            in_order = [int(body.split()[1]) for (where, _), body in sorted(self.stored.items()) if where == queue]
            assert in_order == sorted(in_order)

    @invariant()
    def numbers_have_no_more_gaps_than_messages_that_failed(self) -> None:
        for queue, upcoming in self.world.numbering.next_numbers.items():
            taken = {number for where, number in self.stored if where == queue}
            failed = self.world.results.values()
            spare = sum(isinstance(result, PushqError) for result in failed) + self.world.core.publisher.unconfirmed
            assert upcoming - 1 <= len(taken) + spare or queue == "plain"

    def teardown(self) -> None:
        self.world.note(self.world.core.stop(SessionClosed("over")))
        assert self.publishes | self.acks == self.world.outcomes.keys()
        self.no_outcome_comes_twice()

    def _store(self, frame: Publish, *, but: int | None = None) -> None:
        """What a queue sequenced by producer does: a number it has is a repeat, and must be the same message."""
        for index, (body, number) in enumerate(zip(bodies(frame), numbers(frame), strict=True)):
            if number is None:
                assert frame.queue == "plain", "a sequenced queue's messages have numbers"
            elif index != but:
                assert self.stored.setdefault((frame.queue, number), body) == body
                assert self.numbers.setdefault((frame.queue, body), number) == number

    def _name(self, kind: str) -> str:
        self.names += 1
        return f"{kind} {self.names}"


TestClient = ClientMachine.TestCase
