"""Keeps the consumer groups of a stream's partitions aligned: a group has a row in each partition.

The first partition decides which groups exist. A command goes to all partitions at once, and one commit has it in all.
Alignment is needed only for a partition that is new, or returns with rows of an earlier life.
"""

from __future__ import annotations

from backend_store.model import PushqError
from backend_store.node.partitions import Partitions
from backend_store.node.views.group import Group
from backend_store.node.views.groups import Groups


def align(queue: Partitions) -> None:
    """Gives every partition the groups of the first. A group new to a partition starts at its beginning, so that it
    misses nothing."""
    first, *others = (partition.groups for partition in queue.all)
    for groups in others:
        if first is not None and groups is not None:
            _follow(first, groups)


def _follow(first: Groups, groups: Groups) -> None:
    modes = {group.name: group.mode for group in first.all()}
    own = {group.name: group.mode for group in groups.all()}
    for name, mode in own.items():
        if modes.get(name) != mode:
            groups.delete(name, _ignore)
    for name, mode in modes.items():
        if own.get(name) != mode:
            groups.adopt(name, mode)


def _ignore(result: Group | PushqError) -> None:
    """For commands without a caller."""
