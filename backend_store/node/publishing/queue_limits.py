"""Applies a queue's limits to each publish, before its messages get offsets.

`max_messages` and `max_bytes` count what all partitions hold. A queue that makes room ends its oldest messages that are
not leased: first in the partition that the new ones are for, then in the others, fullest first. It ends as many as the
new ones need. A call that would not fit even then is refused as a whole, and nothing is ended for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from backend_store.core.log.chunk import ENTRY_HEADER_BYTES
from backend_store.core.log.records import PartitionState
from backend_store.core.log.sublogs import SORTING, shelf_of
from backend_store.model import CHUNK_BYTES_MAX, CHUNK_MESSAGES_MAX, Block, QueueConfig, QueueFull
from backend_store.node.limits import EVICTION_READS_PER_COMMIT
from backend_store.words import counted

if TYPE_CHECKING:
    from backend_store.node.partition import Partition
    from backend_store.node.views.view import View

_EVICTING = ("drop_oldest", "dead_letter_oldest")


class Amount(NamedTuple):
    """Messages and bytes; as an excess, 0 where there is no limit."""

    messages: int
    size: int

    def plus(self, other: Amount) -> Amount:
        return Amount(self.messages + other.messages, self.size + other.size)


NOTHING = Amount(0, 0)


def has_limits(config: QueueConfig) -> bool:
    return config.max_messages is not None or config.max_bytes is not None


class QueueLimits:
    """What one queue holds while one of its partitions decides a cycle's publishes."""

    def __init__(
        self,
        state: PartitionState,
        config: QueueConfig,
        main: View | None,
        siblings: Sequence[Partition],
        *,
        freed: Amount = NOTHING,
    ):
        """`state`: the partition after this commit, except for what ends with it. `freed`: leased messages that the
        asking transaction is about to settle."""
        self.config = config
        self.evicts = config.overflow in _EVICTING and main is not None
        self.is_stuck = False
        """One commit's limit of reads was reached before there was room: the next commit continues."""
        self._main = main
        self._siblings = siblings
        self._freed = freed
        ending = Amount(*main.core.ending()) if main is not None else NOTHING
        self._messages = state.live - ending.messages - freed.messages
        self._size = state.live_bytes - ending.size - freed.size
        self._added = NOTHING
        self._open: dict[int, tuple[int, int]] = {}
        """Shelf → (messages, bytes) of the chunk that this cycle's next block there may join."""
        self._held: Amount | None = None
        self._reads = 0

    @property
    def holds(self) -> Amount:
        """What the queue will hold with this commit, as far as decided."""
        messages, size = self._messages + self._added.messages, self._size + self._added.size
        if self._main is not None:
            size -= self._main.core.ended_bytes
        for sibling in self._siblings:
            messages += sibling.live
            size += sibling.live_bytes
        return Amount(messages, size)

    @property
    def held(self) -> Amount:
        """Leased messages, which cannot be ended. Nothing is leased or settled within a cycle."""
        if self._held is None:
            mains = [self._main, *(sibling.main for sibling in self._siblings)]
            found = [Amount(*main.core.in_hands()) for main in mains if main is not None]
            self._held = Amount(
                sum(one.messages for one in found) - self._freed.messages,
                sum(one.size for one in found) - self._freed.size,
            )
        return self._held

    def over(self, need: Amount) -> Amount:
        """By how much the limits would be exceeded with `need` more."""
        messages, size = self.holds
        return self._above(messages + need.messages, size + need.size)

    def _above(self, messages: int, size: int) -> Amount:
        most, most_bytes = self.config.max_messages, self.config.max_bytes
        messages = messages - most if most is not None and messages > most else 0
        return Amount(messages, size - most_bytes if most_bytes is not None and size > most_bytes else 0)

    # ------------------------------------------------------------------------------------------------- one call

    def need(self, blocks: Iterable[Block], holes: int = 0) -> Amount:
        """What blocks add, including headers of new chunks; `holes` of their messages do not count."""
        messages, size, _ = self._packed(blocks)
        return Amount(messages - holes, size)

    def add(self, block: Block, messages: int) -> None:
        """A block is stored, `messages` of which are no holes."""
        _, size, self._open = self._packed((block,))
        self._added = self._added.plus(Amount(messages, size))

    def _packed(self, blocks: Iterable[Block]) -> tuple[int, int, dict[int, tuple[int, int]]]:
        """Messages and bytes of blocks appended after this cycle's, laid out as `plan_chunks` does, and the open chunks
        then."""
        ends, messages, size = dict(self._open), 0, 0
        sorts = self.config.kind == "work" and self.config.sequencing != "arrival"
        for block in blocks:
            shelf = SORTING if sorts else shelf_of(block.priority, is_scheduled=block.due_ms > 0)
            count, filled = ends.get(shelf, (0, 0))
            length = len(block.data)
            if not count or count + block.count > CHUNK_MESSAGES_MAX or filled + length > CHUNK_BYTES_MAX:
                count = filled = 0
                size += ENTRY_HEADER_BYTES
            ends[shelf] = count + block.count, filled + length
            messages += block.count
            size += length
        return messages, size, ends

    def fitting(self, blocks: Sequence[Block], missing: Sequence[int]) -> int:
        """How many of a call's messages fit now, counted from the first. `missing`: those that need no room."""
        over = self.over(self.need(blocks, len(missing)))
        wanted = sum(block.count for block in blocks) - len(missing)
        if not over.size:
            return max(0, wanted - over.messages)
        config, holds, gone = self.config, self.holds, set(missing)
        assert config.max_bytes is not None
        left, first, fit, before = config.max_bytes - holds.size, 0, 0, NOTHING
        for number, block in enumerate(blocks):
            there = sum(1 for n in range(first, first + block.count) if n not in gone)
            first += block.count
            if not there:
                continue
            after = self.need(blocks[: number + 1])
            own = after.size - before.size
            mine = there if own <= left else max(0, left * block.count // own)
            fit += min(there, mine)
            if mine < there:
                break
            left, before = left - own, after
        return max(0, min(fit, wanted - over.messages))

    def may_fit(self, need: Amount) -> bool:
        """Whether `need` would fit if everything not leased were ended, now or with the next commit."""
        beside = self.held.plus(need)
        return not any(self._above(*beside))

    def must_wait(self, need: Amount, *, may_shrink: bool) -> bool:
        """Whether a call that does not fit now would fit once this cycle's own messages are stored and can be ended.
        `may_shrink`: some of the call may turn out to be repeats, so it may fit although it is too much.
        """
        if not self.evicts:
            return False
        coming = self._added
        for sibling in self._siblings:
            coming = coming.plus(Amount(*sibling.coming))
        if not coming.messages:
            return False
        beside = self.held.plus(coming).plus(need)
        return any(self._above(*beside)) and (may_shrink or self.may_fit(need))

    def refusal(self, need: Amount | None = None, *, fitting: int = 0) -> QueueFull:
        """Why a publish is refused. `need`: given for a publish that does not fit whatever is ended. `fitting`: how
        many of the call's messages are stored."""
        config, limits = self.config, []
        if config.max_messages is not None:
            limits.append(counted(config.max_messages, "message"))
        if config.max_bytes is not None:
            limits.append(counted(config.max_bytes, "byte"))
        limit = f"its limit is {' and '.join(limits)}"
        if need is None:
            held = counted(self.holds.messages + fitting, "message")
            return QueueFull(f"the queue has {held}; {limit}: consume, purge, or raise the limit")
        coming = f"{counted(need.messages, 'message')} of {counted(need.size, 'byte')}"
        return QueueFull(
            f"{coming} cannot fit next to the {self.held.messages} in flight, and nothing was dropped to make room; "
            f"{limit}: publish less at once, or raise the limit"
        )

    # ---------------------------------------------------------------------------------------------- making room

    def make(self, need: Amount) -> None:
        """Ends what must go before `need` more is stored."""
        if self._main is not None:
            while (ended := self._end(self._main, need)) is not None:
                self._messages -= ended.messages
                self._size -= ended.size
                if not any(self.over(need)):
                    return
        for sibling in sorted(self._siblings, key=lambda one: (-one.live, one.index)):
            while sibling.main is not None and self._end(sibling.main, need) is not None:
                sibling.request()  # the sibling's own commit records what it ended
                if not any(self.over(need)):
                    return

    def _end(self, main: View, need: Amount) -> Amount | None:
        """Ends some of a partition's oldest messages, of one chunk. None: there are none, or the limit of reads is
        reached."""
        left = EVICTION_READS_PER_COMMIT - self._reads
        if left <= 0:
            self.is_stuck = True
            return None
        ended, reads = main.eviction.end_oldest(lambda: self.over(need), left)
        self._reads += reads
        self.is_stuck = self.is_stuck or (ended is None and reads >= left)
        return Amount(*ended) if ended is not None else None
