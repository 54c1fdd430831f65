"""HTTP handlers for queues: create, list, show, change, delete."""

from __future__ import annotations

import heapq
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from contextlib import suppress
from dataclasses import asdict
from typing import Any, cast
from urllib.parse import urlencode

import msgspec

from backend_store.client import Queue, timestamp
from backend_store.model import (
    COMPANION,
    ClusterAway,
    Conflict,
    Forbidden,
    MessageTooLarge,
    PushqError,
    QueueConfig,
    QueueDefinition,
    QueueNotFound,
    Replication,
)
from gateway.api.conditions import changed_meanwhile, check_conditions
from gateway.api.http import Answer, Call, Header, decode, integer, json_answer
from gateway.api.shapes.queues import PartitionsView, PartitionView, QueuePage, QueueStatsView, QueueView
from gateway.api.validate import check_new_queue_name, check_no_companion
from gateway.clusters.overview import ClustersView
from gateway.context import Gateway
from gateway.identity.authorization import may_administer, owner_of
from gateway.limits import CONFIG_BYTES_MAX, PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX
from gateway.publishing.nesting import too_deep
from gateway.queues.config import changed_config, queue_config, shown_config
from gateway.queues.links import Find, check_links
from push.operations.checks import field as invalid_field

_UNKNOWN = Replication()
"""Replication of a queue whose cluster is away."""


def view(queue: Queue, clusters: ClustersView | None = None, *, is_listed: bool = False) -> QueueView:
    found = _defined(queue.definition, clusters, queue.replication)
    found.stats = QueueStatsView(**asdict(queue.stats()))
    found.partitions = _partitions(queue, is_listed=is_listed)
    return found


def _defined(definition: QueueDefinition, clusters: ClustersView | None, place: Replication = _UNKNOWN) -> QueueView:
    return QueueView(
        name=definition.name,
        config=shown_config(definition.config, definition.name, place),
        created_at=timestamp(definition.created_at_ms),
        owner=definition.tenant,
        cluster=msgspec.UNSET if clusters is None else clusters.cluster_of(definition),
    )


def _listed(gateway: Gateway, tenant: str, name: str) -> QueueView:
    """A queue in a list; without numbers if its cluster is away, which must not hide the others."""
    try:
        queue = gateway.store.queue(tenant, name)
    except ClusterAway:  # away since this gateway started: only the definition is known
        return _defined(gateway.store.metadata.queues[tenant, name], gateway.clusters)
    try:
        return view(queue, gateway.clusters, is_listed=True)
    except ClusterAway:
        return _defined(queue.definition, gateway.clusters)


def _partitions(queue: Queue, *, is_listed: bool) -> PartitionsView | msgspec.UnsetType:
    layout = queue.layout
    if layout is None:
        return msgspec.UNSET
    states = [each.state for each in layout]
    moving = sum(each.slots_arriving for each in layout)
    items = [PartitionView(**asdict(each)) for each in layout]
    return PartitionsView(states.count("open"), states.count("draining"), moving, msgspec.UNSET if is_listed else items)


def etag(queue: Queue) -> str:
    """The ETag of a queue: changes with its config, and if the queue is deleted and created again."""
    return f'"{queue.definition.uid}-{queue.definition.version}"'


def _shown(gateway: Gateway, queue: Queue, status: int = 200) -> Answer:
    return json_answer(view(queue, gateway.clusters), status, ((b"etag", etag(queue).encode()),))


async def put(gateway: Gateway, call: Call) -> Answer:
    name, principal = call.params[0], call.principal
    if not principal.access.may("manage", name):
        raise Forbidden(f"the key {principal.name!r} lacks the scope manage:{name}")
    check_new_queue_name(name)
    config = queue_config(await _settings(call), name)
    find = _finder(gateway, principal.tenant)
    if find(name) is None:  # an existing queue is returned or in conflict, whatever became of its links
        check_links(name, config, find)
        _check_target(call, config, None)
    queue, created = await gateway.store.create_queue(principal.tenant, name, config)
    return _shown(gateway, queue, 201 if created else 200)


async def get(gateway: Gateway, call: Call) -> Answer:
    queue = gateway.desk.queue(call.principal, call.params[0], "view")
    call.query()
    return _shown(gateway, queue)


async def list_queues(gateway: Gateway, call: Call) -> Answer:
    """Queues that the caller may view, by name."""
    query = call.query("limit", "cursor")
    limit = integer(query, "limit", PAGE_ITEMS_DEFAULT, low=1, high=PAGE_ITEMS_MAX)
    assert limit is not None
    after, tenant, access = decode_cursor(query.get("cursor")), call.principal.tenant, call.principal.access
    names = heapq.nsmallest(
        limit + 1,
        (name for _, name in gateway.store.names(tenant) if name > after and access.may("view", name)),
    )
    following = encode_cursor(names[limit - 1]) if len(names) > limit else None
    items = [_listed(gateway, tenant, name) for name in names[:limit]]
    return json_answer(QueuePage(items, following), headers=link_to_next("/v1/queues", limit, following))


async def patch(gateway: Gateway, call: Call) -> Answer:
    name = call.params[0]
    queue = gateway.desk.queue(call.principal, owner_of(name), "manage")
    check_no_companion(name)
    _check_match(queue, call)
    known = queue.definition  # the matched one: a change made while the body arrives makes it stale
    changes = await _settings(call)
    if gateway.store.queue(queue.tenant, name).definition.uid != known.uid:
        raise _stale(queue)  # deleted and created again while the body arrived: its version starts again
    config = changed_config(known.config, changes, name)
    check_links(name, config, _finder(gateway, queue.tenant), known=known.config)
    _check_target(call, config, known.config)
    changed = await gateway.store.update_queue(queue.tenant, name, config, known.version)
    if changed is None:
        raise _stale(queue)
    return _shown(gateway, changed)


async def _settings(call: Call) -> dict[str, Any]:
    """The settings in a request's body. Raises `MessageTooLarge` and `InvalidRequest`."""
    body = await call.json_bytes()
    if len(body) > CONFIG_BYTES_MAX:
        raise MessageTooLarge(f"the config must have at most {CONFIG_BYTES_MAX} bytes, not {len(body)}")
    given: dict[str, Any] = decode(body, dict)
    if too_deep([body]):
        raise invalid_field("", "the config is nested too deeply")
    return given


def _finder(gateway: Gateway, tenant: str) -> Find:
    def find(name: str) -> QueueConfig | None:
        try:
            return gateway.store.queue(tenant, name).config if owner_of(name) == name else None
        except QueueNotFound:
            return None

    return find


def _check_match(queue: Queue, call: Call) -> None:
    if call.header(b"if-match") is None:
        detail = f"send the ETag of GET /v1/queues/{queue.name} as If-Match, to avoid overwriting other changes"
        raise PushqError(detail, code="precondition-required")
    check_conditions(call, etag(queue), f"queue {queue.name!r}")


def _stale(queue: Queue) -> PushqError:
    return changed_meanwhile(f"queue {queue.name!r}")


async def delete(gateway: Gateway, call: Call) -> Answer:
    tenant, name = _deletable(gateway, call)
    query = call.query("confirm", "discard", "move_to")
    if query.get("confirm") != name:
        raise invalid_field("/query/confirm", f"to delete queue {name!r}, repeat its name: ?confirm={name}")
    target = query.get("move_to")
    if (target is None) == (query.get("discard") != "true"):
        raise invalid_field(
            "/query/discard", "choose what happens to the messages: ?discard=true or ?move_to=<another queue>"
        )
    _check_unnamed(gateway, tenant, name)
    discarded: int | None = 0
    gone: Queue | None
    if target is None:
        discarded = _held(gateway, tenant, name)
        gone = cast(Queue | None, await gateway.store.delete_queue(tenant, name))
    else:
        queue = gateway.store.queue(tenant, name)
        _check_move(gateway, queue, target)
        gone = await gateway.store.move_queue(tenant, name, target)
    for one in (gone, *gone.companions) if gone is not None else ():
        gateway.hub.queue_deleted(one)
    return json_answer({"name": name, "discarded": discarded, "moved_to": target})


def _held(gateway: Gateway, tenant: str, name: str) -> int | None:
    """Number of messages deleted with a queue. None while its cluster is away, which drops them when it is back."""
    try:
        stats = gateway.store.queue(tenant, name).stats()
    except ClusterAway:
        return None
    return stats.ready + stats.in_flight + stats.delayed


def _check_target(call: Call, config: QueueConfig, known: QueueConfig | None) -> None:
    """Raises `Forbidden` unless the caller may publish to the dead-letter queue it names: dead letters are
    publishes."""
    target = config.dead_letter_queue
    if target in (None, COMPANION) or (known is not None and known.dead_letter_queue == target):
        return
    principal = call.principal
    if not principal.access.may("publish", target):
        raise Forbidden(f"the key {principal.name!r} lacks the scope publish:{target}, which its dead letters need")


def _check_unnamed(gateway: Gateway, tenant: str, name: str) -> None:
    """Raises `Conflict` if other queues name this one, or messages are moving to it: they would have no target."""
    for definition in gateway.store.metadata.of_tenant(tenant):
        if definition.name != name:
            for setting in ("dead_letter_queue", "colocate_with"):
                if getattr(definition.config, setting) == name:
                    raise Conflict(
                        f"queue {definition.name!r} uses {name!r} as its {setting}; change or delete it first"
                    )
    for moved in gateway.store.metadata.moved.going_to(tenant, name):
        if not moved.is_empty:
            left = moved.definition.name
            raise Conflict(f"messages of the deleted queue {left!r} are still moving to {name!r}")


def _check_move(gateway: Gateway, queue: Queue, target: str) -> None:
    try:
        found = gateway.store.queue(queue.tenant, target)
    except QueueNotFound:
        raise invalid_field("/query/move_to", f"there is no queue {target!r} to move messages to") from None
    if found is queue or found.is_companion:
        raise invalid_field(
            "/query/move_to", f"messages of {queue.name!r} cannot move to {target!r}; choose another queue"
        )
    if queue.config.kind == "stream":
        raise invalid_field("/query/move_to", "messages of a stream cannot be moved: use ?discard=true")


def _deletable(gateway: Gateway, call: Call) -> tuple[str, str]:
    """(tenant, name) of a queue that the caller may delete now. Raises `QueueNotFound`, `Forbidden`,
    `InvalidRequest`."""
    principal, name = call.principal, owner_of(call.params[0])
    with suppress(ClusterAway):  # it exists, and is deleted when its cluster is back
        gateway.store.queue(principal.tenant, name)
    by_hand = f"use `pushq queue delete {name} --data DIR` on the server's machine"
    if not may_administer(principal.access, "queue deletion"):
        raise Forbidden(f"deleting a queue needs the scope admin; {by_hand}, with an admin key")
    if not (call.is_local or gateway.settings.queues.allow_delete_over_http):
        raise Forbidden(f"queues.allow_delete_over_http is off; {by_hand}")
    check_no_companion(call.params[0])
    return principal.tenant, name


# ------------------------------------------------------------------------------------------------------ paging


def encode_cursor(name: str) -> str:
    return urlsafe_b64encode(name.encode()).rstrip(b"=").decode()


def decode_cursor(text: str | None) -> str:
    """The name after which the page begins. Raises `InvalidRequest`."""
    if text is None:
        return ""
    try:
        name = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (Base64Error, ValueError):
        name = ""
    if encode_cursor(name) != text:  # the decoder skips invalid characters
        raise invalid_field("/query/cursor", "invalid cursor: pass `next` unchanged")
    return name


def link_to_next(path: str, limit: int, cursor: str | None, **more: str) -> tuple[Header, ...]:
    """The `Link` header to the next page (RFC 8288)."""
    if cursor is None:
        return ()
    query = urlencode({**more, "limit": limit, "cursor": cursor})
    return ((b"link", f'<{path}?{query}>; rel="next"'.encode()),)
