"""The consumer groups of a stream with several partitions: a group has a row in each of them.

The first partition says which groups there are. Commands are asked of all partitions in one breath, and one commit has
them all; what is left to be brought in line is a partition that is new, or that comes back with rows of a former life.
"""

from __future__ import annotations

from backend_store.model import PushqError
from backend_store.node.group import Group
from backend_store.node.groups import Groups
from backend_store.node.partitions import Partitions


def align(queue: Partitions) -> None:
    """Has every partition know the groups of the first: those that are new to it begin at its beginning, so that they
    miss nothing."""
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
    """Nobody asked for it."""
