"""Ready messages of a lane in strict order: sequential within a key, parallel across keys.

A key is *locked* while messages of it are drawn, all of one chunk, until the end of the last of them is on disk. Its
later messages are moved aside once, into its line, and the lane reads on, so a hot key does not block others. When a
key is unlocked, its next messages may be drawn at once. A draw has messages of many keys of one chunk, so that a lease
costs as little per message as without order.

A key's state refers to a `Spot`: the chunk from which its next messages may be drawn, or in which it is locked.
Messages without a key share the key None.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from backend_store.core.leases.leases import ChunkState
from backend_store.core.limits import KEYED_CROWD_MIN, KEYED_LOADED_FIRST_MAX, KEYED_PATIENCE_MS
from backend_store.core.log.bits import lowest
from backend_store.core.log.sublogs import SORTING
from backend_store.core.partitions.slots import slot_of
from backend_store.core.ready.key_index import Key, Spot, Spots
from backend_store.core.ready.key_queues import KeyQueues, Spill

_LOCKED = object()


class StrictRuns:
    """The ready messages of a lane in strict order. A `Runs`, with further methods for messages parked on disk."""

    def __init__(self, key_run_max: int, *, is_patient: bool = False):
        """`is_patient`: the caller uses `reads_on_ms` when there is nothing to draw."""
        self.key_run_max = key_run_max
        self._is_patient = is_patient
        self._fresh: deque[tuple[ChunkState, int]] = deque()
        """Pushed messages whose keys are not sorted in yet: that is done when nothing else may be drawn."""
        self._spots = Spots()
        self._open: OrderedDict[Spot, None] = OrderedDict()
        """Spots with ready messages, in the order in which they are drawn from."""
        self._at: dict[Key, Spot | None] = {}
        """Known keys: ready or locked at a spot. None: the next messages must be read from disk, or wait for others."""
        self._also: dict[Key, list[Spot]] = {}
        """Further spots that lock a key, which happens only with leases and retries that outlived a restart."""
        self._restored: dict[int, int] = {}
        """Messages held since a restart, of chunks that the lane has not sorted in since."""
        self._lines = KeyQueues()
        self._idle: dict[int, ChunkState] = {}
        self._disk_waits = 0
        """Draws since one was put off that needs the disk."""
        self._crowd = KEYED_CROWD_MIN
        self._unlocked = 0
        self._closed: Mapping[int, int] = {}
        """Slot → offset from which on its messages wait for older ones in another partition, or elsewhere here."""
        self._behind: dict[int, dict[Key, None]] = {}
        """Slot → keys whose next messages wait for that reason."""
        self._held_back: tuple[int, int] | None = None
        """While the lane does not read on: (`_unlocked`, time in ms) when that began."""

    def __len__(self) -> int:
        """Returns how many chunks are not sorted in; with memory full the waiting runs, to keep new chunks away."""
        return self._lines.count if self._lines.is_memory_full else len(self._fresh)

    def __bool__(self) -> bool:
        self._look()
        return bool(self._open) or self._lines.wanted is not None

    @property
    def wants_more(self) -> bool:
        """Whether nothing may be drawn, and a later chunk could have a key that is not locked."""
        return self._is_starved and not (self._is_patient and self._is_crowded)

    @property
    def _is_starved(self) -> bool:
        self._look()
        return not (self._open or self._lines.is_memory_full or self._lines.is_full or self._lines.wanted)

    @property
    def _is_crowded(self) -> bool:
        """Whether half of the locked keys have more messages waiting, as those of the next chunk will have, too.

        Reading on at once would bring a few more keys, and scatter the ready messages over ever more chunks: with 1,000
        keys at full speed a draw then has three messages instead of thirty, and each draw is a lease. So the lane reads
        on when some keys are unlocked, or after a moment in which none was, because those may be slow for ever.
        """
        waiting = len(self._lines.by_key)
        return waiting >= self._crowd and 2 * waiting >= len(self._at)

    def reads_on_ms(self, now_ms: int) -> int | None:
        """Returns when to check `wants_more` again, if nothing is freed until then; None: it does not wait."""
        if not self._is_starved or not self._is_crowded:
            self._held_back = None
            return None
        if self._held_back is None or self._held_back[0] != self._unlocked:
            self._held_back = self._unlocked, now_ms
        until = self._held_back[1] + KEYED_PATIENCE_MS
        if now_ms < until:
            return until
        self._crowd = 2 * len(self._lines.by_key)
        self._held_back = None
        return None

    def clear(self) -> None:
        self._fresh.clear()
        self._spots.clear()
        self._open.clear()
        self._at.clear()
        self._also.clear()
        self._restored.clear()
        # Numbers continue, so that rows written before do not belong to any later line.
        self._lines = KeyQueues(self._lines.last_number)
        self._idle.clear()
        self._behind.clear()
        self._disk_waits = 0
        self._crowd = KEYED_CROWD_MIN
        self._held_back = None

    # ----------------------------------------------------------------------------------------------------- push

    def push(self, state: ChunkState, bits: int) -> None:
        self._fresh.append((state, bits))

    @property
    def late_chunks(self) -> int:
        """Chunks in memory with late messages that are ready, drawn, or wait in a line."""
        return self._spots.late

    def push_late(self, state: ChunkState, bits: int) -> None:
        """Adds late messages, each before those of its key that were not drawn yet, and behind earlier late ones. Those
        of a locked key wait until it is unlocked.
        """
        self._restored.pop(state.base, None)
        bits &= state.free
        if not bits:
            return
        spot = self._spots.of(state)
        for key, own in spot.split(bits).items():
            # Where they wait for messages elsewhere, these may wait for older ones here, which then must not be behind.
            bound = self._closed[slot_of(key or "")] if self._closed and self._waits(key, state.base) else 0
            is_locked = self._is_locked(key)
            if not is_locked:
                self._withdraw(key)
            self._lines.insert_late(key, spot, own, bound)
            if not is_locked:
                self._go_on((key,))
        if spot.ready:
            self._open.move_to_end(spot, last=False)

    def _look(self) -> None:
        while self._fresh and not self._open:
            self._sort_in(*self._fresh.popleft())

    def _sort_in(self, state: ChunkState, bits: int) -> None:
        """Makes messages of unknown keys ready, and adds the others to their keys' lines."""
        bits &= state.free
        if self._restored:
            self._restored.pop(state.base, None)
        if not bits:
            return
        spot = self._spots.of(state)
        at = self._at
        bits_of = spot.split(bits)
        known = bits_of.keys() & at.keys()
        if self._closed:
            known |= self._keep_behind(bits_of.keys() - known, state.base)
        if known:
            bits ^= self._lines.extend(spot, bits_of, known)
            at.update(dict.fromkeys(bits_of.keys() - known, spot))
        else:
            at.update(dict.fromkeys(bits_of, spot))
        if bits:
            spot.ready |= bits
            self._open[spot] = None
        if known and self._behind:
            self._go_before(known, state.base)

    # ----------------------------------------------------------------------------------------------------- draw

    def missing(self) -> int | None:
        spot = self._front()
        return spot.state.base if spot is not None and spot.state.chunk is None else None

    def _front(self) -> Spot | None:
        """Returns the spot of the next draw: the first one, but for a while loaded chunks before one to be read."""
        self._look()
        while self._open:
            front = first = next(iter(self._open))
            if first.state.chunk is None and self._disk_waits < KEYED_LOADED_FIRST_MAX:
                near = islice(self._open, KEYED_LOADED_FIRST_MAX)
                front = next((spot for spot in near if spot.state.chunk is not None), first)
            gone = front.ready & ~front.state.free
            if not gone:
                return front
            self._pass_over(front, gone)
            self._look()
        return None

    def draw(self, limit: int) -> tuple[ChunkState, int] | None:
        spot = self._front()
        if spot is None or limit <= 0:
            return None
        is_first = next(iter(self._open)) is spot and self._lines.wanted is None
        self._disk_waits = 0 if is_first else self._disk_waits + 1
        drawn = lowest(spot.ready, limit)
        if drawn & spot.repeated:
            drawn = self._cut(spot, drawn, limit)
        spot.ready &= ~drawn
        spot.held |= drawn
        if not spot.ready:
            del self._open[spot]
        return spot.state, drawn

    def _cut(self, spot: Spot, drawn: int, limit: int) -> int:
        """Limits a draw to `key_run_max` messages of each key; other ready ones of these keys go to their lines."""
        bits_of, most = spot.bits_of, self.key_run_max
        keys = set(spot.keys_at(drawn & spot.repeated))
        if drawn.bit_count() > most and any((bits_of[key] & drawn).bit_count() > most for key in keys):
            drawn = self._fill(spot, limit)
            keys = set(spot.keys_at(drawn & spot.repeated))
        for key in keys:
            rest = bits_of[key] & spot.ready & ~drawn
            if rest:
                self._lines.prepend(key, spot, rest)
                spot.ready ^= rest
        return drawn

    def _fill(self, spot: Spot, limit: int) -> int:
        """Returns a draw with at most `key_run_max` messages of each key, filled up from the rest of the chunk."""
        drawn, left = 0, spot.ready
        while limit > 0 and left:
            part = lowest(left, limit)
            for key in set(spot.keys_at(part)):
                own = spot.bits_of[key] & spot.ready
                too_many = own ^ lowest(own, self.key_run_max)
                part &= ~too_many
                left &= ~too_many
            drawn |= part
            left ^= part
            limit -= part.bit_count()
        return drawn

    def _pass_over(self, spot: Spot, gone: int) -> None:
        """Removes ready messages that were settled or leased without a draw; their keys continue with the next ones."""
        spot.ready ^= gone
        self._go_on([key for key in set(spot.keys_at(gone)) if not spot.bits_of[key] & spot.ready])
        if not spot.ready:
            self._open.pop(spot, None)
        self._drop_if_idle(spot)

    # --------------------------------------------------------------------------------------- unlock and put back

    def freed(self, state: ChunkState, bits: int) -> None:
        """Unlocks keys. A message that waits for a retry is freed when it is due, so its key stays locked until then.

        Messages that were not drawn are ignored, so the caller may pass all bits that a commit settled.
        """
        spot = self._spots.get(state.base)
        bits = bits & spot.held if spot is not None else 0
        if spot is None or not bits:
            return
        spot.held ^= bits
        if self._restored and not state.present:
            self._restored.pop(state.base, None)
        keys = spot.keys_at(bits & ~spot.repeated)
        if again := bits & spot.repeated:
            keys = [*keys, *(key for key in set(spot.keys_at(again)) if not spot.bits_of[key] & spot.held)]
        if self._also:
            keys = [key for key in keys if not self._is_still_locked(key, spot)]
        self._unlocked += 1
        if 4 * len(self._lines.by_key) < self._crowd:
            self._crowd = KEYED_CROWD_MIN
        self._go_on(keys)
        self._drop_if_idle(spot)

    def _is_still_locked(self, key: Key, spot: Spot) -> bool:
        others = self._also.get(key)
        if not others:
            return False
        if self._at[key] is spot:
            self._at[key] = others.pop()
        else:
            others.remove(spot)
        if not others:
            del self._also[key]
        return True

    def _go_on(self, keys: Iterable[Key]) -> None:
        """Makes the next messages of keys ready that have none ready or held, and forgets keys without messages."""
        at, lines = self._at, self._lines
        by_key = lines.by_key
        for key in keys:
            line = by_key.get(key)
            if line is None:
                del at[key]
                continue
            if self._closed and self._is_behind(key):
                continue
            if lines.parked or line[0][0].is_shrunk:
                self._look_further(key)
                continue
            spot, bits = line.pop(0) if len(line) > 1 else by_key.pop(key)[0]
            at[key] = spot
            lines.left(spot)
            if spot.ready:
                spot.ready |= bits
            else:
                spot.ready = bits
                self._open[spot] = None

    def _look_further(self, key: Key) -> None:
        """Does the work of `_go_on` for a line that continues on disk, or a chunk that has forgotten settled keys."""
        lines = self._lines
        while key in lines.by_key:
            if self._closed and self._is_behind(key):
                return
            part = lines.pop(key)
            if part is None:
                self._at[key] = None
                return
            spot, bits = part
            if bits := bits & spot.bits_of.get(key, 0):
                self._at[key] = spot
                self._open.setdefault(spot)
                spot.ready |= bits
                return
            self._drop_if_idle(spot)
        del self._at[key]

    def put_back(self, state: ChunkState, bits: int) -> None:
        """Puts messages back after `freed`, each before all others of its key.

        Messages of a chunk that the lane has yet to read come with its push: others may be before them.
        """
        bits = self._without_early(state, bits)
        spot = self._spots.of(state)
        assert not bits & spot.held, f"messages of the chunk at {state.base} were put back before they were freed"
        for key, own in spot.split(bits).items():
            if self._spots.late and self._rejoin(key, spot, own):
                continue
            if self._is_locked(key):
                self._lines.prepend(key, spot, own)
                continue
            if self._closed and self._waits(key, state.base):
                self._lines.prepend(key, spot, own)
                if self._at.get(key) is None:
                    self._go_on((key,))
                continue
            if self._at.get(key) is not spot:
                self._withdraw(key)
            ready = spot.bits_of[key] & spot.ready
            first, *later = state.in_turns(ready | own)
            for part in reversed(later):
                self._lines.prepend(key, spot, part)
            self._at[key] = spot
            spot.ready = spot.ready & ~ready | first
        if spot.ready:
            self._open[spot] = None
            self._open.move_to_end(spot, last=False)

    def _rejoin(self, key: Key, spot: Spot, bits: int) -> bool:
        """Puts messages back behind earlier ones of their chunk that wait behind late ones, as some do after a restart.
        Returns False if there are none.
        """
        at = self._at.get(key)
        if at is None or not at.state.late or self._is_locked(key):
            return self._lines.rejoin(key, spot, bits)
        self._withdraw(key)
        has_found = self._lines.rejoin(key, spot, bits)
        self._go_on((key,))
        return has_found

    def _without_early(self, state: ChunkState, bits: int) -> int:
        """Removes messages that come back, after a restart, before their chunk is sorted in: they wait for that."""
        early = bits & self._restored.get(state.base, 0)
        for number, (fresh, waiting) in enumerate(self._fresh if early else ()):
            if fresh is state:
                self._fresh[number], *later = [(fresh, part) for part in state.in_turns(waiting | early)]
                for place, part in enumerate(later, number + 1):
                    self._fresh.insert(place, part)
                return bits ^ early
        if early and state.shelf == SORTING:
            # Their row of the release order is yet to be read, unless a turn has them.
            return bits & ~early | state.had_turns & early
        return bits

    def hold(self, state: ChunkState, bits: int) -> None:
        """Locks the keys of messages drawn before a restart: their lease was kept, or their retry is delayed."""
        spot = self._spots.of(state)
        bits &= ~spot.held
        for key in spot.split(bits):
            if not self._is_locked(key):
                self._withdraw(key)
                self._at[key] = spot
            elif self._at[key] is not spot and spot not in self._also.setdefault(key, []):
                self._also[key].append(spot)
        spot.held |= bits
        self._restored[state.base] = self._restored.get(state.base, 0) | bits

    def _is_locked(self, key: Key) -> bool:
        spot = self._at.get(key)
        return spot is not None and bool(spot.bits_of.get(key, 0) & spot.held)

    def _withdraw(self, key: Key) -> None:
        """Moves a key's ready messages back to the beginning of its line, because others go first."""
        spot = self._at.get(key)
        if spot is None:
            self._lines.unwant(key)
            return
        ready = spot.bits_of[key] & spot.ready
        if ready:
            self._lines.prepend(key, spot, ready)
            spot.ready ^= ready
            if not spot.ready:
                del self._open[spot]

    # ------------------------------------------------------------------------------------------ other partitions

    def close(self, slots: Mapping[int, int]) -> None:
        """Lets the slots' messages wait from these offsets on. Slots that waited before and are not named continue."""
        before, self._closed = self._closed, slots
        for slot in [slot for slot in self._behind if slots.get(slot) != before.get(slot)]:
            keys = self._behind.pop(slot)
            self._go_on([key for key in keys if self._at.get(key, _LOCKED) is None])
        if any(base < before.get(slot, base + 1) for slot, base in slots.items()):
            self._call_off()

    def _call_off(self) -> None:
        """Takes back ready messages of slots that were closed, so that they wait, too."""
        lowest = min(self._closed.values())
        for spot in [one for one in self._open if one.state.base >= lowest]:
            keys = [key for key in set(spot.keys_at(spot.ready)) if self._waits(key, spot.state.base)]
            for key in keys:
                ready = spot.bits_of[key] & spot.ready
                spot.ready ^= ready
                self._lines.prepend(key, spot, ready)
            if not spot.ready:
                del self._open[spot]
            self._go_on(keys)

    def _waits(self, key: Key, base: int) -> bool:
        """Whether a key's messages in the chunk at `base` must wait."""
        return base >= self._closed.get(slot_of(key or ""), base + 1)

    def _keep_behind(self, keys: Collection[Key], base: int) -> set[Key]:
        """Returns those of new keys whose messages in the chunk at `base` must wait; they are known from now on."""
        found = set()
        for key in keys:
            if self._waits(key, base):
                self._at[key] = None
                self._behind.setdefault(slot_of(key or ""), {})[key] = None
                found.add(key)
        return found

    def _is_behind(self, key: Key) -> bool:
        """Whether a key's next messages must wait. For messages on disk that is decided when they are in memory.

        A scheduled message may be in line behind waiting ones though it is older: it goes first, or all would wait for
        ever, because the others wait for it.
        """
        slot, base = slot_of(key or ""), self._lines.first_base(key)
        bound = self._closed.get(slot)
        if base is None or bound is None or base < bound or self._lines.pull(key, bound):
            return False
        self._at[key] = None
        self._behind.setdefault(slot, {})[key] = None
        return True

    def _go_before(self, keys: Iterable[Key], base: int) -> None:
        """Lets keys continue whose messages all had to wait, if they now have some in a chunk that need not wait."""
        for key in keys:
            slot = slot_of(key or "")
            behind = self._behind.get(slot, {})
            if key in behind and base < self._closed[slot]:
                del behind[key]
                self._go_on((key,))

    # ------------------------------------------------------------------------------------------------- the disk

    @property
    def wants_spill(self) -> bool:
        """Whether memory is full of waiting messages and nothing may be drawn, so that a commit should spill some."""
        return not self and self._lines.is_memory_full and not self._lines.is_full

    def take_spill(self, now_ms: int) -> Spill | None:
        """Returns rows of Table.PARKED for the next commit. Called with each commit; nearly always returns None."""
        return self._lines.take_spill(now_ms, is_needed=self.wants_spill)

    def spilled(self) -> None:
        """Handles that the rows of the last `take_spill` are on disk."""
        for spot in self._lines.spilled():
            self._drop_if_idle(spot)

    def take_idle(self) -> list[ChunkState]:
        """Returns chunks whose waiting messages are all on disk: the view may forget them if it does not need them."""
        idle, self._idle = self._idle, {}
        fresh = {state.base for state, _ in self._fresh}
        return [state for base, state in idle.items() if base not in self._spots and base not in fresh]

    @property
    def wanted(self) -> tuple[int, int] | None:
        """(number, position) of the row to read next, once nothing else may be drawn or others have had their turn."""
        if not self._lines.rows:
            return None
        front = self._front()
        return self._lines.wanted if front is None or self._disk_waits >= KEYED_LOADED_FIRST_MAX else None

    def unpark(self, number: int, state: ChunkState | None, bits: int) -> None:
        """Takes the wanted row with its chunk's state; None if the chunk is gone."""
        self._disk_waits = 0
        spot = None if state is None else self._spots.of(state)
        key = self._lines.unpark(number, spot, bits)
        if key in self._at and self._at[key] is None:
            self._go_on((key,))

    def _drop_if_idle(self, spot: Spot) -> None:
        if self._spots.drop_if_idle(spot) and self._lines.rows and spot.state.free:
            self._idle[spot.state.base] = spot.state
