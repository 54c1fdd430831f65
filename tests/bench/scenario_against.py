"""Plain queues of our server compared with those of another checkout: what a change costs those who do not use it.

Both sides use our clients, so the other server must speak the same protocol.
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
        raise NoCheckout(f"{folder} has no gateway/__main__.py: name a checkout, as made by `git worktree add`")
    return folder.resolve()


async def against(world: World, open_side: OpenSide) -> Row:
    assert world.against is not None, "the scenario needs another checkout"
    return await pairs(world, open_side, open_side, usual_tree=world.against)
