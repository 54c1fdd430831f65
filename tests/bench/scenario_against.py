"""Plain queues of our server beside those of another checkout: what a change costs those who do not use it.

The clients are ours on both sides, so the other server must still speak the same protocol.
"""

from __future__ import annotations

from pathlib import Path

from tests.bench.rows import Row
from tests.bench.turns import OpenSide, pairs
from tests.bench.world import World


class NoCheckout(Exception):
    """There is no server in that folder."""


def checkout(folder: Path) -> Path:
    """Raises `NoCheckout`."""
    if not (folder / "gateway" / "__main__.py").is_file():
        raise NoCheckout(f"{folder} has no gateway/__main__.py: give a checkout, as `git worktree add` makes it")
    return folder.resolve()


async def against(world: World, open_side: OpenSide) -> Row:
    assert world.against is not None, "it is not chosen without another checkout"
    return await pairs(world, open_side, open_side, usual_tree=world.against)
