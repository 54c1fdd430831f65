"""The reference queue with all its settings: what each of them promises, as a simple list of messages.

The model makes no choices: the real queue hands out, drops and evicts, and the model says whether it may. What one
commit makes true is a copy of all facts, so a crash is a step back to the last copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from backend_store.model import QueueConfig, Stamp
from tests.support.semantics_facts import FREE, Facts, Message, Receipt, Waiting, is_before, rank, stamp_of

HISTORY_MAX = 16
EXPIRY_STEP_MS = 250
EXPIRY_MS_MAX = 1000
CLOCK_AHEAD_MS = 500
LOOKS_MAX = 3
"""Each check of a chunk is written before the next one, so this many may pass until its last message is gone."""


class SemanticsModel:
    def __init__(self, config: QueueConfig, now_ms: int):
        self.config = config
        self.now_ms = now_ms
        self.facts = Facts()
        self.disk = Facts()
        self.prepared: Facts | None = None
        self.commits = 0
        self.live = 0
        """Messages of the queue, as counted by its limit in the current cycle."""
        self.added = 0
        """Those added in this cycle."""
        self.evictable = 0
        self.winners: set[Receipt] = set()
        self.lives: dict[Receipt, int] = {}
        """The life of its message that a receipt refers to."""
        self.served: Counter[bool] = Counter()
        """Messages handed out while lower priorities waited (True), and lower ones while higher waited (False)."""

    @property
    def messages(self) -> dict[int, Message]:
        return self.facts.messages

    def in_state(self, view: str, *states: str) -> list[Message]:
        return [m for m in self.messages.values() if m.view == view and m.state in states]

    # ------------------------------------------------------------------------------------------------ handing out

    def is_expired(self, m: Message) -> bool:
        return m.view == "main" and 0 < m.expires_ms <= self.now_ms

    def is_worn_out(self, m: Message) -> bool:
        limited = m.view == "main" and self.config.dead_letter_queue is not None
        return limited and m.attempt >= self.config.max_attempts

    def is_doomed(self, m: Message) -> bool:
        """Whether nobody will get it any more, even if that is not decided yet."""
        return self.is_expired(m) or self.is_worn_out(m)

    def ready(self, view: str) -> list[Message]:
        return [m for m in self.in_state(view, "ready") if not self.is_doomed(m)]

    def taken(self, view: str, numbers: Sequence[int], token: str, holder: int, deadline_ms: int) -> None:
        """A lease; in a queue that delivers at most once, also the message's end."""
        batch = [self.messages[number] for number in numbers]
        for m in batch:
            assert (m.view, m.state) == (view, "ready"), f"{m.number} was handed out while it is {m.state} in {m.view}"
            assert m.due_ms <= self.now_ms and m.scheduled_ms <= self.now_ms, f"{m.number} was handed out early"
            assert not self.is_doomed(m), f"{m.number} was handed out after its life had ended"
        self._check_order(view, batch)
        for m in batch:
            m.is_touched, m.due_ms = True, 0
            if self.config.delivery == "at_most_once" and view == "main":
                self._settle(m, "acked")
                continue
            m.state, m.token, m.holder, m.deadline_ms = "leased", token, holder, deadline_ms
            m.attempt += 1
            self.lives[token, m.number] = m.life

    def _check_order(self, view: str, batch: list[Message]) -> None:
        numbers = [m.number for m in batch]
        if self.config.ordering == "strict" and view == "main":
            for m in batch:
                self._check_key(m, numbers)
            return
        rest = [m for m in self.ready(view) if m.number not in numbers]
        higher = [m for m in rest if not batch[0].is_head and rank(m) > rank(batch[0]) and not m.scheduled_ms]
        lower = [m for m in rest if rank(m) < rank(batch[0])]
        if higher:
            self.served[False] += len(batch)
            assert self.served[False] <= self.served[True] / 19 + 1, f"{higher[0].number} should precede {numbers}"
        elif lower:
            self.served[True] += len(batch)
        for m in batch:
            before = [r.number for r in rest if is_before(r, m)]
            assert m.is_touched or not before, f"{m.number} was handed out before {before}"

    def _check_key(self, m: Message, batch: list[int]) -> None:
        """A key has one holder, and nothing is handed out before earlier messages are settled for good."""
        for other in self.messages.values():
            if other.number in batch or other.view != "main" or other.key != m.key:
                continue
            assert other.state not in ("leased", "returned"), f"{m.number} went out while {other.number} was held"
            is_earlier = other.place < m.place and not (other.scheduled_ms or m.scheduled_ms)
            if other.is_head != m.is_head:  # a late one goes first, but for what was handed out before
                is_earlier = other.is_head and not m.is_touched
            # What nobody held when it ended is passed over; an ack of it, if it is late, need not have landed.
            is_over = self.is_doomed(other) or (other.state == "settling" and other.was in FREE)
            is_over = is_over or other.end in ("expired", "max_attempts")
            assert not is_earlier or other.state == "held" or is_over, f"{m.number} overtook {other.number} of its key"

    # -------------------------------------------------------------------------------------------------- coming back

    def holds(self, receipt: Receipt) -> bool:
        m = self.messages.get(receipt[1])
        return m is not None and m.view != "gone" and m.state == "leased" and m.token == receipt[0]

    def unsent(self, m: Message) -> None:
        m.state, m.attempt = "ready", m.attempt - 1

    def give_back(self, m: Message, outcome: str, due_ms: int | None = None, reason: str | None = None) -> None:
        """If no time is given, it returns after the back-off; at once if its consumer went away, or had not begun to
        handle it.
        """
        if outcome == "untried":
            m.attempt -= 1
        else:
            m.history = [*m.history, (m.attempt, self.now_ms, outcome, reason)][-HISTORY_MAX:]
        if self.is_doomed(m):
            self._settle(m, "expired" if self.is_expired(m) else "max_attempts")
            return
        has_failed = outcome not in ("returned", "untried")
        if due_ms is None and has_failed and m.view == "main" and self.config.retry_backoff_ms:
            longest = self.config.retry_backoff_ms_max or 1 << 60
            due_ms = self.now_ms + min(self.config.retry_backoff_ms * 2 ** (m.attempt - 1), longest)
        m.state, m.due_ms = "returned", due_ms or 0

    def _settle(self, m: Message, end: str) -> None:
        m.was, m.state, m.end = m.state, "settling", end

    def ack(self, view: str, receipt: Receipt) -> bool:
        """The holder's ack wins, or any ack while nobody holds the message."""
        m = self.messages.get(receipt[1])
        if receipt in self.winners:
            return True
        if m is None or m.view != view or m.life != self.lives.get(receipt) or m.state == "settling":
            return False
        if m.state == "leased" and m.token != receipt[0]:
            return False
        self._settle(m, "acked")
        self.winners.add(receipt)
        return True

    def cancel(self, m: Message) -> bool:
        if m.view != "main" or m.state not in FREE:
            return False
        self._settle(m, "cancelled")
        return True

    def vanished(self, m: Message) -> None:
        """The queue ended a message by itself."""
        assert self.is_doomed(m), f"{m.number}, {m.state} in {m.view}, is missing"
        self._settle(m, "expired" if self.is_expired(m) else "max_attempts")

    # ------------------------------------------------------------------------------------------------------- time

    def tick(self, now_ms: int) -> list[Message]:
        """Returns the leases that ran out."""
        self.now_ms = now_ms
        lost = [m for m in self.messages.values() if m.state == "leased" and m.deadline_ms <= now_ms]
        for m in lost:
            self.give_back(m, "timed_out")
        self._wake(self.facts)
        for m in self.in_state("main", *FREE):
            step_ms = -(-m.expires_ms // EXPIRY_STEP_MS) * EXPIRY_STEP_MS
            if 0 < step_ms <= now_ms:
                m.looks = {**m.looks, self.commits: now_ms}
        return lost

    def overdue(self) -> list[Message]:
        """What should have happened by now."""
        leased = [m for m in self.messages.values() if m.state == "leased" and m.deadline_ms <= self.now_ms]
        delayed = [m for m in self.messages.values() if m.state == "delayed" and m.due_ms <= self.now_ms]
        return leased + delayed + [m for m in self.in_state("main", "scheduled") if m.scheduled_ms <= self.now_ms]

    def stale(self) -> list[int]:
        """What should have expired by now."""
        seen = [m for m in self.in_state("main", *FREE) if len(m.looks) > LOOKS_MAX]
        return [m.number for m in seen if max(m.looks.values()) - min(m.looks.values()) > EXPIRY_MS_MAX]

    def _wake(self, facts: Facts) -> None:
        for m in facts.messages.values():
            if (m.state == "delayed" and m.due_ms <= self.now_ms) or (
                m.state == "scheduled" and m.scheduled_ms <= self.now_ms
            ):
                m.state = "ready"

    # ----------------------------------------------------------------------------------------------------- commits

    def begin(self) -> Facts:
        """A commit is prepared: it makes decisions so far true, and what `publish` and others add."""
        self.live, self.added = self.disk.live("main") - len(self.in_state("main", "settling")), 0
        after = self.prepared = self.facts.copy()
        for m in [m for m in after.messages.values() if m.state == "settling"]:
            self._end(after, m)
        return after

    def _end(self, after: Facts, m: Message) -> None:
        end, config = m.end, self.config
        if end == "acked":
            after.acked += m.view == "main"
        else:
            after.ended[end] += 1
        letter = {"reason": end, "attempts": m.attempt, "history": [list(row) for row in m.history]}
        is_kept = end == "max_attempts" or (end == "overflow" and config.overflow.startswith("dead_letter"))
        if is_kept and config.dead_letter_queue is not None:
            then = m.next_life("dead", letter=letter, is_late=m.is_late)
        elif end == "late" and config.late_messages == "late_queue":
            then = m.next_life("late", is_late=True)
        elif end == "late":
            then = m.next_life("main", is_head=True, is_late=True, expires_ms=m.expires_ms, place=after.next_place())
        else:
            then = m.next_life("gone", end=end)
        after.messages[m.number] = then
        # For the other messages its turn is still to come; a later life of it, once redriven, has its own.
        order = after.order
        order.waiting = [w._replace(number=-1) if w.number == m.number else w for w in order.waiting]

    def publish(self, call: Sequence[Message], *, must_fit: bool = False) -> list[Any]:
        """The result of each message: None if stored, the number of the message that it repeats, or "full"."""
        after = self.prepared
        assert after is not None
        answers: list[Any] = []
        mine: dict[bytes, Any] = {}
        room = self._make_room(after, call, must_fit=must_fit)
        room = None if must_fit and self.config.overflow != "dead_letter_newest" else room
        for m in call:
            if m.id in mine:
                self._arrive(after, m, is_known=True)  # its number still counts
                answers.append(mine[m.id])
                continue
            known = self._known(after, m)
            is_known = known is not None
            is_over = not is_known and room is not None and room <= 0
            room = room if room is None or is_known else room - 1
            newest = self.config.overflow == "dead_letter_newest"
            if is_over and not newest:
                answers.append("full")
                mine |= {m.id: "full"} if m.id else {}
                continue
            after.messages[m.number] = m
            repeated = self._arrive(after, m, is_known=is_known)
            answer = known if is_known else repeated
            answers.append(answer)
            mine |= {m.id: m.number if answer is None else answer} if m.id else {}
            if answer is not None:
                after.messages.pop(m.number)
                continue
            self.live += 1
            self.added += 1
            if m.id:
                after.ids[m.id] = m.number, self.now_ms
            if is_over:
                m.end = "overflow"
            if m.end:
                self._end(after, m)
        return answers

    def _known(self, after: Facts, m: Message) -> int | None:
        """The number of the message that had its id within the window."""
        number, at_ms = after.ids.get(m.id or b"", (None, 0))
        return number if self.now_ms - at_ms < self.config.dedupe_window_ms else None

    @property
    def evicts(self) -> bool:
        return self.config.overflow in ("drop_oldest", "dead_letter_oldest")

    @property
    def in_hands(self) -> int:
        """Messages that cannot make room, as consumers hold them."""
        return len(self.in_state("main", "leased", "returned"))

    def must_wait(self, call: Sequence[Message]) -> bool:
        """Whether a call must wait for the next commit: it fits only if messages of this commit may be evicted, too."""
        most = self.config.max_messages
        if most is None or not self.evicts or not self.added:
            return False
        beside = self.in_hands + len(call)
        may_fit = beside <= most or self.config.dedupe != "none"  # some messages may turn out to be repeats
        return self.live + len(call) > most and may_fit and most < beside + self.added

    def _make_room(self, after: Facts, call: Sequence[Message], *, must_fit: bool) -> int | None:
        """How many of the messages fit, once the queue has made as much room as it can."""
        most = self.config.max_messages
        if most is None:
            return None
        wanted = len({m.id or m.number for m in call if self._known(after, m) is None})
        over = max(0, self.live + wanted - most)
        if over and self.evicts:
            if self.in_hands + wanted > most and not must_fit:
                return 0
            evicted = min(over, self.evictable)
            self.evictable, self.live, over = self.evictable - evicted, self.live - evicted, over - evicted
        return max(0, wanted - over)

    def _arrive(self, after: Facts, m: Message, *, is_known: bool) -> int | None:
        """Gives a message its place, or lets it wait for its turn. Returns the message that it repeats, by its
        producer's number."""
        order, stamp = after.order, m.stamp
        if self.config.sequencing == "arrival":
            m.place = after.next_place()
            m.state = "scheduled" if m.scheduled_ms else "ready"
            return None
        m.state = "held"
        if self.config.sequencing == "clock":
            if stamp is None or not 0 < stamp.time_us <= (self.now_ms + CLOCK_AHEAD_MS) * 1000 + 999:
                m.stamp = Stamp(self.now_ms * 1000, stamp.producer if stamp else "", stamp.number if stamp else 0)
            elif stamp < order.watermark:
                m.end = "late"
                return None
            if not is_known:
                order.waiting.append(Waiting(self.now_ms, stamp_of(m), m.number))
            return None
        if stamp is None:
            self._release(after, m.number)
            return None
        taken = order.accepted.setdefault(stamp.producer, {})
        if stamp.number in taken:
            return taken[stamp.number]
        taken[stamp.number] = -1 if is_known else m.number
        if stamp.number <= order.last.get(stamp.producer, 0):
            m.end = "" if is_known else "late"
        else:
            order.waiting.append(Waiting(self.now_ms, stamp, taken[stamp.number]))
        self._follow(after, stamp.producer)
        return None

    def _release(self, after: Facts, number: int) -> None:
        m = after.messages.get(number)
        if m is not None and m.state == "held":
            m.state, m.place = "ready", after.next_place()

    def _follow(self, after: Facts, producer: str, upto: int = 0) -> None:
        """Lets the numbers up to `upto` take their turn, and those that follow without a gap."""
        order = after.order
        numbers = order.accepted[producer]
        for number in sorted(numbers):
            last = order.last.get(producer, 0)
            if last < number and (number <= upto or number == last + 1):
                order.last[producer] = number
                order.waiting = [w for w in order.waiting if w.stamp[1:] != (producer, number)]
                self._release(after, numbers[number])

    def release(self) -> None:
        """Releases the messages whose time has come."""
        after = self.prepared
        assert after is not None
        order, due_ms = after.order, self.now_ms - self.config.sort_window_ms
        if self.config.sequencing == "producer":
            while order.waiting and order.waiting[0].arrived_ms <= due_ms:
                stamp = order.waiting[0].stamp
                self._follow(after, stamp.producer, stamp.number)
        elif self.config.sequencing == "clock":
            due = sorted((w for w in order.waiting if w.stamp.time_us // 1000 <= due_ms), key=lambda w: w.stamp)
            order.waiting = [w for w in order.waiting if w not in due]
            for each in due:
                order.watermark = each.stamp
                self._release(after, each.number)

    def purge(self, view: str) -> int:
        after = self.prepared
        assert after is not None
        gone = [m for m in after.messages.values() if m.view == view]
        for m in gone:
            after.messages[m.number] = m.next_life("gone", end="purged")
        return len(gone)

    def is_being_purged(self, m: Message) -> bool:
        """Whether a commit in flight purges it: once that is on disk, the sweeper may have deleted its rows."""
        after = self.prepared.messages.get(m.number) if self.prepared is not None else None
        return after is not None and after.end == "purged"

    def land(self, *, purged: bool) -> None:
        after, self.prepared = self.prepared, None
        assert after is not None
        self.commits += 1
        self.disk = after
        then = after.copy()
        for m in then.messages.values():
            now = self.messages.get(m.number)
            if now is None or now.life != m.life:
                self.messages[m.number] = m
            elif now.state == m.state == "returned":
                now.state = "delayed" if now.due_ms else "ready"
            elif now.state == "held" and m.state == "ready":
                now.state, now.place = "ready", m.place
            elif now.was == "held" and m.state == "ready":
                now.was = "ready"  # it ended while its turn came
            elif now.was == m.state == "returned":
                now.was = "ready"  # it was acked while its return was being written
        for m in self.messages.values():
            if m.state == "scheduled" and m.scheduled_ms <= self.now_ms:
                m.state = "ready"
        self.facts = replace(then, messages=self.messages)
        if purged:
            self._forget_order()

    def _forget_order(self) -> None:
        order = self.facts.order
        for producer, numbers in order.accepted.items():
            order.last[producer] = max([order.last.get(producer, 0), *numbers])
        order.waiting.clear()

    def crash(self, *, landed: bool, stored: Callable[[Message], bool]) -> None:
        """`stored`: whether a message's lease is on disk."""
        if landed and self.prepared is not None:
            self.disk = self.prepared
        self.prepared, self.winners = None, set()
        self.facts = self.disk.copy()
        for m in self.messages.values():
            if m.state == "leased" and stored(m):
                same = [o.deadline_ms for o in self.messages.values() if o.state == "leased" and o.token == m.token]
                m.deadline_ms, m.holder = max(same), -1
            elif m.state in ("leased", "returned", "delayed"):
                m.state = "delayed" if m.due_ms > self.now_ms else "ready"
            m.looks = {}
        self._wake(self.facts)
        order = self.facts.order
        order.waiting = [w for w in order.waiting if w.number > 0 and self.messages[w.number].state == "held"]
        waiting = {w.number for w in order.waiting}
        for producer, numbers in order.accepted.items():
            last = order.last.get(producer, 0)
            order.accepted[producer] = {n: m for n, m in numbers.items() if n <= last or m in waiting}

    # ------------------------------------------------------------------------------------------------------ counts

    def counts(self, view: str) -> tuple[int, int, int]:
        """(ready, in flight, delayed) as counted by the queue: ended messages count until that is durable."""
        settling = Counter(m.was for m in self.in_state(view, "settling"))
        in_flight = len(self.in_state(view, "leased", "returned")) + settling["leased"] + settling["returned"]
        delayed = len(self.in_state(view, "delayed", "scheduled", "held")) + settling["held"]
        return self.disk.live(view) - in_flight - delayed, in_flight, delayed

    def evicted(self, gone: Collection[Message], order: Callable[[Message], Any]) -> None:
        """The lowest priority goes first, and its oldest message, among those that nobody holds. `order`: positions."""
        free = self.in_state("main", *FREE)
        first = sorted(free, key=order)[: len(gone)]
        numbers = sorted(m.number for m in gone)
        assert numbers == sorted(m.number for m in first), f"{numbers} were evicted instead of {first}"
        for m in gone:
            self._settle(m, "overflow")
        self.evictable = len(free)
