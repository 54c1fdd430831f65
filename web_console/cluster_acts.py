"""Forms about the cluster: requests to its manager."""

from __future__ import annotations

from typing import Any, Final

from web_console.forms import Done, Form, typed
from web_console.visit import Visit
from web_console.wording import counted

_MOVES_SAID_MAX: Final = 5


async def drain(visit: Visit, form: Form) -> Done:
    node = form.get("item", "")
    await visit.ask("PUT", f"/v1/cluster/nodes/{node}/drain")
    return Done(f"{node} is draining: other backends take over its shards; the table below shows progress")


async def end_drain(visit: Visit, form: Form) -> Done:
    node = form.get("item", "")
    await visit.ask("DELETE", f"/v1/cluster/nodes/{node}/drain")
    return Done(f"{node} can lead shards again")


async def remove(visit: Visit, form: Form) -> Done:
    node = form.get("item", "")
    typed(form, node)
    left = (await visit.ask("PUT", f"/v1/cluster/nodes/{node}/removal")).json()["copies"]
    return Done(f"{node} is being removed; {counted(left, 'replica')} to move first")


async def end_removal(visit: Visit, form: Form) -> Done:
    node = form.get("item", "")
    await visit.ask("DELETE", f"/v1/cluster/nodes/{node}/removal")
    return Done(f"{node} stays in the cluster")


async def rebalance(visit: Visit, form: Form) -> Done:
    is_dry = form.get("how") == "show"
    moves = (await visit.ask("POST", "/v1/cluster/rebalance", {"dry_run": is_dry})).json()["moves"]
    if not moves:
        return Done("Already balanced: nothing to move")
    said = "; ".join(_move(move) for move in moves[:_MOVES_SAID_MAX])
    more = f"; and {len(moves) - _MOVES_SAID_MAX} more" if len(moves) > _MOVES_SAID_MAX else ""
    verb = "Would make" if is_dry else "Making"
    end = "; nothing was moved" if is_dry else ""
    return Done(f"{verb} {counted(len(moves), 'move')}: {said}{more}{end}")


def _move(move: dict[str, Any]) -> str:
    """`shard 0: copy from a to b (why)`"""
    ends = "".join(f" {word} {node}" for word, node in (("from", move["source"]), ("to", move["to"])) if node)
    return f"shard {move['shard']}: {move['kind']}{ends} ({move['why']})"
