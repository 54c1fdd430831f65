"""Protocols with one rule less. Each must be found out: one that survives is a hole in the simulation.

A core mutant is the real source with one place changed; where that is not found, the list is out of date and the test
says so. A shell mutant breaks what the cores ask of whoever drives them, under its name in the files here. With each
stands what finds it out: the seed of a world, or the name of a scenario.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from backend_store.core.host_lanes import adoption, agent, lending, merge, slot_log, stamping
from tests.simulation.lanes.process import Core


class Edit(NamedTuple):
    module: ModuleType
    found_by: int | str
    before: str
    after: str


CORE_MUTANTS: dict[str, Edit] = {
    "any holder adopts": Edit(
        adoption, 43, "for host in lane.in_sync if host in alive] or", "for host in lane.holders if host in alive] or"
    ),
    "remembers nobody when the minimum is gone": Edit(
        adoption,
        "the_last_two_in_sync_die_and_one_of_them_comes_back",
        "if len(wanted) < min_in_sync else set[str]()",
        "if False else set[str]()",
    ),
    "remembers who was dropped before the minimum was there again": Edit(
        adoption, 63, "if len(wanted) < min_in_sync else set[str]()", "if True else set[str]()"
    ),
    "changes a row by an older one": Edit(
        adoption,
        "an_ask_for_a_holder_comes_after_it_fell_behind_again",
        "lane.owner != by or lane.version != seen",
        "lane.owner != by",
    ),
    "gives a lane away for an epoch that is over": Edit(
        adoption,
        "a_handover_comes_after_its_owner_has_gone_on",
        "(lane.owner, lane.epoch) != (by, epoch)",
        "lane.owner != by",
    ),
    "times go back with the clock": Edit(stamping, 21, "if stamps[0] <= self.last_us:", "if False:"),
    "an adopter's times begin with its own clock": Edit(
        stamping,
        3,
        "        self.last_us = last_us\n        self._clock = HybridClock(last_us)",
        "        self.last_us = 0\n        self._clock = HybridClock()",
    ),
    "tells what is decided and not committed": Edit(
        slot_log,
        "a_seal_is_asked_about_before_it_is_committed",
        "        before = self.book\n",
        "        before = self.book\n        self.book = self.ahead\n",
    ),
    "lends what is lent": Edit(lending, 2, "is_held = offset in self._out or", "is_held = "),
    "lends what is about to be settled": Edit(lending, 2, "in self._out or offset in self._settling", "in self._out"),
    "an adopter lends at once": Edit(lending, 54, 'if self.mode == "memory" and last_epoch:', "if False:"),
    "waits less than the adopter before it would have": Edit(
        lending,
        "an_adopter_gives_back_the_lane_before_its_wait_is_over",
        "now_ms + owned_ms(handover.quiet_ms) if handover.quiet_ms else 0",
        "0",
    ),
    "inherits no leases": Edit(
        lending,
        10,
        "for offset in record.offsets:\n                    self._hold",
        "for offset in ():\n                    self._hold",
    ),
    "inherits no extended leases": Edit(
        lending,
        "a_lease_is_extended_and_its_owner_dies",
        "if hold is not None and hold.lease == record.lease:",
        "if False:",
    ),
    "trusts two clocks to go alike": Edit(
        lending,
        "two_clocks_go_wrong_by_a_hundredth_each",
        "return lease_ms + -(-lease_ms // DRIFT_DIVISOR)",
        "return lease_ms",
    ),
    "any receipt acks": Edit(lending, 4, "if hold is not None and hold.lease != receipt.lease:", "if False:"),
    "every ack wins": Edit(
        lending, 9, 'return "settled" if winner == receipt.lease else "already-acked"', 'return "settled"'
    ),
    "lends several of a key": Edit(lending, 4, "not is_held and not is_locked and", "not is_held and"),
    "lends a key's next message when its ack is decided": Edit(
        lending,
        "a_key_goes_on_before_the_ack_is_committed",
        "        if key is not None:\n            self._busy[key] += 1\n        return record",
        "        self._settling[offset] = None\n        return record",
    ),
    "lends when its session is over": Edit(
        lending, "an_owner_whose_session_is_over_is_asked_to_lend", "(in_memory and now_ms >= session_ends_ms)", "False"
    ),
    "lends when it has handed over": Edit(lending, 15, "if self.has_handed_over or (in_memory", "if (in_memory"),
    "takes back what was lent to another": Edit(
        lending, 12, "if hold is not None and hold.lease == lease:", "if hold is not None:"
    ),
    "counts from when the grant came": Edit(
        agent, 9, "until_ms = asked_ms + self._lease_ms", "until_ms = now_ms + self._lease_ms"
    ),
    "gives back what a copy of the grant was handed out from": Edit(
        agent, 9, "if grant.request not in self._forgotten:", "if self._forgotten.setdefault(grant.request):"
    ),
    "hands out what is over": Edit(
        agent, 16, "for one in self._unsent if one.until_ms > now_ms)", "for one in self._unsent)"
    ),
    "emits what only one lane has closed": Edit(
        merge, 1, "max(self.watermark_us, min(waited_for))", "max(self.watermark_us, *waited_for)"
    ),
    "a strict merge leaves lanes out": Edit(merge, 0, "if self._is_strict or now_ms", "if now_ms"),
    "stands where it has read": Edit(
        merge, 0, "MergePlace(self.watermark_us, {number: lane.done", "MergePlace(self.watermark_us, {number: lane.next"
    ),
    "takes a late message for one in time": Edit(
        merge, 4, "entry.message is not None and entry.time_us > self.watermark_us", "entry.message is not None"
    ),
    "takes its own silence for the lanes'": Edit(
        merge,
        "a_reader_stands_still_for_longer_than_the_window",
        "if now_ms - self._heard_ms >= self._window_ms:\n            for",
        "if False:\n            for",
    ),
    "measures lanes against the furthest": Edit(
        merge, "a_lane_runs_ahead_of_all_others", "times[(len(times) - 1) // 2]", "times[-1]"
    ),
}

SHELL_MUTANTS = {
    "appends ids wherever they arrive": 1,
    "passes on what it has appended": 5,
    "serves before its epoch's beginning is committed": 242,
    "answers a repetition at once": 24,
    "confirms before the commit": 0,
    "confirms an ack before its commit": 9,
    "grants before the lease is committed": 47,
    "hands over before the seal is committed": 47,
    "hands over no ids": 6,
    "forgets the time of the seal": 85,
    "reads what is not committed": 0,
}


def mutated(edit: Edit) -> Core:
    source = Path(str(edit.module.__file__)).read_text()
    assert source.count(edit.before) == 1, f"{edit.before!r} stands {source.count(edit.before)} times in {edit.module}"
    # What is made later imports what was made before, by its name.
    modules = {module: sys.modules[module.__name__] for module in Core()}
    made = []
    try:
        for module in modules:
            text = Path(str(module.__file__)).read_text()
            copy = ModuleType(module.__name__)
            sys.modules[module.__name__] = copy
            changed = text.replace(edit.before, edit.after) if module is edit.module else text
            exec(compile(changed, str(module.__file__), "exec"), copy.__dict__)
            made.append(copy)
    finally:
        sys.modules.update({module.__name__: real for module, real in modules.items()})
    return Core(*made)
