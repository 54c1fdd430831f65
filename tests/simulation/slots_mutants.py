"""Protocols with one rule less. Each must be found out by the simulation: one that survives is a hole in it.

A core mutant is the real source with one line changed; where the line is not found, the list is out of date and the
test says so. A shell mutant breaks what the core asks of whoever drives it, under its name in `slots_partition`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from backend_store.core.partitions import slot_history, slot_moves, slots
from tests.simulation.slots_process import Core


class Edit(NamedTuple):
    """`seed` is of a world that finds the mutant out, and soon."""

    module: ModuleType
    seed: int
    before: str
    after: str


CORE_MUTANTS: dict[str, Edit] = {
    "opens before everything is handed over": Edit(slot_moves, 8, "if page.next is not None:", "if False:"),
    "takes any page for the one it asked for": Edit(
        slot_moves,
        8,
        "return page.fetch == self.importing",
        "return self.importing is not None and page.fetch.move == self.importing.move",
    ),
    "does not wait for older messages": Edit(slot_moves, 1, "page.sealed_at, not self.waits)", "page.sealed_at, True)"),
    "is drained although it waits itself": Edit(
        slot_moves, 6, "return tenure.is_released and not unsettled(", "return not unsettled("
    ),
    "is drained whatever is left": Edit(
        slot_moves, 1, "return tenure.is_released and not unsettled(slot, tenure)", "return tenure.is_released"
    ),
    "goes on taking messages for what it sealed": Edit(
        slot_moves,
        1,
        "            if not tenures[-1].sealed_by:\n                self.taken",
        "            if True:\n                self.taken",
    ),
    "takes messages from callers with an older table": Edit(slot_moves, 30, "if version < self.newest:", "if False:"),
    "seals for a move of the past": Edit(
        slot_moves, 14, "sealed_by and tenures[-1].version < move.version", "sealed_by"
    ),
    "heeds any table": Edit(
        slot_moves,
        14,
        "if table.version < self.ahead.version or (self.table is not None and table.version <= self.table.version):",
        "if False:",
    ),
    "heeds tables older than its log": Edit(slot_moves, 9, "if table.version < self.ahead.version or", "if"),
    "forgets a tenure before it has left": Edit(
        slot_moves, 12, "return not any(move.version == tenure.sealed_by", "return True or any(move.version == 0"
    ),
    "forgets by a table from before the move": Edit(
        slot_moves, 9, "not tenure.sealed_by or table.version < tenure.sealed_by:", "not tenure.sealed_by:"
    ),
    "says it has opened before that is on the disk": Edit(
        slot_moves, 130, "_is_opened(self.book, move)]", "_is_opened(self.ahead, move)]"
    ),
    "takes what is forgotten for not drained": Edit(
        slot_moves, 9, "slot)) is None or _is", "slot)) is not None and _is"
    ),
    "retires with messages in it": Edit(slot_moves, 15, "not book.tenures and not live else", "not book.tenures else"),
    "retires with slots in it": Edit(slot_moves, 1, "and not book.tenures and not live", "and not live"),
    "takes unkeyed messages while it drains": Edit(
        slot_moves, 125, '1 << UNKEYED if book.role == "open"', '1 << UNKEYED if book.role != "retired"'
    ),
    "holds what lay there before": Edit(
        slot_history, 9, "            if offset >= tenure.opened_at:", "            if True:"
    ),
    "delivers what was scheduled beyond the seal": Edit(slot_history, 79, " or due_ms > tenure.sealed_ms):", "):"),
    "retires a former life": Edit(
        slots,
        144,
        'table.members.get(number) != Member("draining", since):',
        'table.members[number].role != "draining":',
    ),
    "routes to a target that has not opened": Edit(slots, 61, "return None if slot in self.moving else", "return"),
    "plans while slots are on the move": Edit(
        slots, 1, "    if table.moves:\n        left", "    if False:\n        left"
    ),
}

SHELL_MUTANTS = {
    "hands over before the seal is on the disk": 56,
    "hands over what was committed when the fetch came": 44,
    "hands over no ids": 9,
    "hands over no producers": 9,
    "counts acks not on the disk": 37,
    "tells a table that is not on the disk": 130,
    "forgets the source's time": 19,
    "a reader passes barriers": 28,
    "mixes tables on the way": 37,
}


def mutated(edit: Edit) -> Core:
    source = Path(str(edit.module.__file__)).read_text()
    assert source.count(edit.before) == 1, f"{edit.before!r} stands {source.count(edit.before)} times in {edit.module}"
    modules = {module: sys.modules[module.__name__] for module in (slots, slot_history, slot_moves)}
    made = []
    try:
        for module in modules:
            text = Path(str(module.__file__)).read_text()
            copy = ModuleType(module.__name__)
            # What is made later imports what was made before, by its name.
            sys.modules[module.__name__] = copy
            changed = text.replace(edit.before, edit.after) if module is edit.module else text
            exec(compile(changed, str(module.__file__), "exec"), copy.__dict__)
            made.append(copy)
    finally:
        sys.modules.update({module.__name__: real for module, real in modules.items()})
    return Core(*made)
