"""Writes the audit log of administrative acts: one row before an act begins, rewritten with its outcome before it is
answered.

So no act is done without a row, whenever the process ends. An act refused for lack of rights, or because it met an
unexpected state, has a row that says so. Other refused requests are not acts; they are counted in the usage minutes.
"""

from __future__ import annotations

from typing import Any, Final, Protocol
from urllib.parse import parse_qs, quote

import msgspec

from backend_store.client import AuditLog, Store, timestamp
from backend_store.model import ClusterAway, PushqError, QueueNotFound
from gateway.api.http import Answer, Call
from gateway.context import Gateway
from gateway.identity.authentication import Principal
from gateway.usage.schema import SCHEMA_VERSION, AuditRow, Change
from push.delivery.lookup_retry import found
from push.problems import KINDS

_encode: Final = msgspec.json.Encoder().encode
_ACTS: Final = ("manage", "admin", "operator")
"""Prefixes of the scopes of operations that are acts."""
_SERVER_ERRORS: Final = 500
_CLUSTER_CHARS_MAX: Final = 100
_REFUSED: Final = (403, 409, 412)
_UNSEEN: Final = frozenset({"secret_sha256", "previous_sha256", "key"})
_MAKING: Final = ("/v1/keys", "/v1/cluster/moves")
_PASSING: Final = frozenset({"state", "since", "left", "share", "cluster", "moves"})


class Performed(Protocol):
    """What the audit needs to know of an API operation."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def scope(self) -> str: ...
    @property
    def name(self) -> str: ...


def _target(call: Call) -> str:
    """The request's path, with the cluster that it names: backends of two clusters may have the same name."""
    path: str = call.scope["path"]
    if not path.startswith("/v1/cluster/"):
        return path
    named = parse_qs(call.scope["query_string"].decode("latin-1")).get("cluster")
    return path if named is None else f"{path}?cluster={quote(named[0][:_CLUSTER_CHARS_MAX])}"


def is_act(operation: Performed) -> bool:
    return operation.method != "GET" and operation.scope.startswith(_ACTS)


class Act:
    """One administrative act, from before it begins to its outcome."""

    def __init__(self, gateway: Gateway, operation: Performed, call: Call, trace_id: str | None):
        self._audit: AuditLog = gateway.store.audit
        self._gateway = gateway
        self._operation = operation
        self._call = call
        self._before = self._now()
        client = call.scope.get("client")
        principal: Principal = call.principal
        self._row = AuditRow(
            SCHEMA_VERSION,
            gateway.store.id,
            self._audit.begin(),
            timestamp(gateway.clock_ms()),
            principal.tenant,
            principal.id,
            principal.name,
            operation.name,
            _target(call),
            "unknown",
            None,
            trace_id,
            client[0] if client and not call.is_local else None,
            [],
        )

    async def begin(self) -> None:
        """Returns when the row is stored; only then may the act begin."""
        await self._audit.put(self._row.seq, _encode(self._row), has_ended=False)

    async def end(self, answer: Answer | None, error: BaseException | None) -> None:
        """Returns when the outcome is stored."""
        outcome, status = "ok", answer.status if answer is not None else None
        if isinstance(error, PushqError):
            outcome, status = error.code, KINDS[error.code].status
            if status < _SERVER_ERRORS:
                await self._refused(outcome, status)
                return
        elif error is not None:
            outcome = "unknown"  # it was cancelled, or failed because of a bug: some of it may be done
        done = await found(self._changes) or _made(self._operation, answer)
        row = msgspec.structs.replace(self._row, outcome=outcome, status=status, changes=done)
        await self._audit.put(row.seq, _encode(row), has_ended=True)

    async def _refused(self, outcome: str, status: int) -> None:
        row, acts = self._row, self._gateway.refused_acts
        if status in _REFUSED and acts.is_written(row.tenant, row.principal, self._gateway.clock_ms()):
            row = msgspec.structs.replace(row, outcome=outcome, status=status)
            await self._audit.put(row.seq, _encode(row), has_ended=True)
        else:
            await self._audit.forget(row.seq)

    def _now(self) -> dict[str, Any]:
        return state_of(self._gateway.store, self._operation.path, self._call.principal.tenant, self._call.params)

    def _changes(self) -> list[Change]:
        return changes(self._before, self._now())


def _made(operation: Performed, answer: Answer | None) -> list[Change]:
    """The fields of what an act created, if only its answer has the name: a key, or the move of a queue. Leaves out a
    key's secret, and the progress of a move."""
    if answer is None or operation.method != "POST" or operation.path not in _MAKING:
        return []
    made: dict[str, Any] = msgspec.json.decode(answer.body)
    return changes({}, {name: value for name, value in made.items() if name not in _UNSEEN | _PASSING})


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    """The fields that differ. None stands for a missing field."""
    return [
        Change(name, _json(before, name), _json(after, name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _json(values: dict[str, Any], name: str) -> str | None:
    return _encode(values[name]).decode() if name in values else None


def state_of(store: Store, path: str, tenant: str, params: list[str]) -> dict[str, Any]:
    """The state that an act may change and the audit may show: a queue's config, a tenant's quotas, a key without its
    secret."""
    found: Any = None
    if path.startswith("/v1/queues/{queue}") and params:
        try:
            found = store.queue(tenant, params[0]).config
        except QueueNotFound:
            found = None
        except ClusterAway:  # since this gateway began: its definition is known all the same
            known = store.metadata.queues.get((tenant, params[0]))
            found = known.config if known is not None else None
    elif path.startswith("/v1/tenants/") and params:
        found = store.metadata.tenants.get(params[0])
    elif path.startswith("/v1/keys/") and params:
        found = store.metadata.keys.get(params[0])
    if not isinstance(found, msgspec.Struct):
        return {}
    values = {name: getattr(found, name) for name in found.__struct_fields__ if name not in _UNSEEN}
    return {name: msgspec.to_builtins(value) for name, value in values.items()}
