"""HTTP handlers for messages that backends keep in quarantine: show, publish again, drop. For operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend_store.model import Forbidden, NotFound
from gateway.api.http import Answer, Call, json_answer
from gateway.api.shapes.recovery import RecoveryDrop, RecoveryPublish
from gateway.context import Gateway

if TYPE_CHECKING:
    from gateway.clusters.recovery import Recovery


async def get(gateway: Gateway, call: Call) -> Answer:
    return json_answer(await _recovery(gateway, call).survey())


async def show(gateway: Gateway, call: Call) -> Answer:
    return json_answer(await _recovery(gateway, call).show(call.params[0]))


async def publish(gateway: Gateway, call: Call) -> Answer:
    recovery = _recovery(gateway, call)
    wanted = await call.fields(RecoveryPublish)
    return json_answer(await recovery.publish(call.params[0], wanted))


async def drop(gateway: Gateway, call: Call) -> Answer:
    recovery = _recovery(gateway, call)
    wanted = await call.fields(RecoveryDrop)
    return json_answer(await recovery.drop(call.params[0], wanted.messages))


def _recovery(gateway: Gateway, call: Call) -> Recovery:
    if not call.principal.access.is_operator:
        raise Forbidden(f"recovery needs the scope operator, which the key {call.principal.name!r} lacks")
    call.query()
    if gateway.recovery is None:
        raise NotFound(
            "this server has no cluster to recover messages from: use a gateway with store.backends and "
            "cluster.coordinator = etcd://HOST:PORT"
        )
    return gateway.recovery
