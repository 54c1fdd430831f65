"""HTTP handlers for key rotations: jobs that introduce a new master key or new data keys. For operators."""

from __future__ import annotations

from pathlib import Path

from backend_store.model import FieldError, Forbidden, NotFound, QueueNotFound
from gateway.api.http import Answer, Call, json_answer
from gateway.api.shapes.bodies import JobView, RotationBody
from gateway.context import Gateway
from gateway.encryption.rotation import Rotation, Rotations
from gateway.limits import ROTATION_QUEUES_MAX
from push.operations.checks import field as invalid_field


def view(job: Rotation) -> JobView:
    return JobView(id=job.id, state=job.state, done=job.done, total=job.total, error=job.error)


async def start(gateway: Gateway, call: Call) -> Answer:
    rotations = _rotations(gateway, call)
    given: RotationBody = await call.fields(RotationBody)
    if given.master_file is None and given.queues is None and not given.all_queues:
        raise invalid_field("/queues", "choose what to rotate: `master_file`, `queues` or `all_queues`")
    if given.master_file is not None and not call.is_local:
        detail = "a key file can only be read on the server's machine: use `pushq rotate-keys --master FILE`"
        raise Forbidden(detail)
    if given.queues is not None and len(given.queues) > ROTATION_QUEUES_MAX:
        detail = (
            f"queues must have at most {ROTATION_QUEUES_MAX} entries, not {len(given.queues)}; use `all_queues` for all"
        )
        raise invalid_field("/queues", detail)
    job = await rotations.start(
        master_file=Path(given.master_file) if given.master_file is not None else None,
        queues=[_uid(gateway, call, number, name) for number, name in enumerate(given.queues or ())] or None,
        all_queues=given.all_queues,
    )
    return json_answer(view(job), 202, ((b"location", f"/v1/rotations/{job.id}".encode()),))


def _uid(gateway: Gateway, call: Call, number: int, name: str) -> int:
    definition = gateway.store.metadata.queues.get((call.principal.tenant, name))
    if definition is None:
        detail = f"there is no queue {name[:200]!r}"
        raise QueueNotFound(detail, errors=(FieldError(f"/queues/{number}", detail),))
    if not definition.config.encrypted:
        raise invalid_field(f"/queues/{number}", f"queue {name!r} is not encrypted and has no key to rotate")
    return definition.uid


async def get(gateway: Gateway, call: Call) -> Answer:
    return json_answer(view(_find(gateway, call)))


async def cancel(gateway: Gateway, call: Call) -> Answer:
    """Cancels a rotation; what it did stays."""
    job = _find(gateway, call)
    await job.cancel()
    return json_answer(view(job))


def _find(gateway: Gateway, call: Call) -> Rotation:
    rotation_id = call.params[0]
    found = _rotations(gateway, call).get(rotation_id)
    if found is None:
        raise NotFound(f"unknown rotation {rotation_id[:100]!r}, or it has expired")
    call.query()
    return found


def _rotations(gateway: Gateway, call: Call) -> Rotations:
    if not call.principal.access.is_operator:
        raise Forbidden(f"rotating keys needs the scope operator, which {call.principal.name!r} lacks")
    if gateway.encryption is None:
        raise NotFound("encryption is not enabled on this server")
    return gateway.encryption.rotations
