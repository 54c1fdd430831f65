"""Runs an API operation for an admitted caller: meters it when it has ended, and writes an audit row if it is an
administrative act.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from starlette.types import ASGIApp

from backend_store.client import unbounded_task
from backend_store.model import PushqError, Unavailable
from backend_store.tracing import TRACE
from gateway.api.http import Answer, Call, ClientGone
from gateway.context import Gateway
from gateway.observability.audit import Act, is_act
from push.delivery.lookup_retry import LookingUp, found, handled
from push.traces import kept_trace

if TYPE_CHECKING:
    from gateway.api.table import Operation
    from push.spans import Begun

GONE: Final = "client-gone"
"""The outcome of a request whose client disconnected."""
_ABSENT: Final = frozenset({"queue-not-found", "not-found"})


async def perform(gateway: Gateway, operation: Operation, call: Call, trace_id: str | None) -> Answer | ASGIApp:
    """Returns the handler's answer. Raises what the handler raises. Look-ups are at least as fresh as the request: the
    caller has set its context, see `push.delivery.lookup_retry`.
    """
    began, outcome, answer = time.perf_counter(), "internal", None
    span: Begun | None = None
    if (spans := gateway.hub.spans) is not None:
        caller = kept_trace(call.header(b"traceparent"), call.header(b"tracestate"))
        asked_of = call.params[0] if operation.has_queue else ""
        span = spans.begun(operation.name, asked_of, call.principal.tenant, parent=caller)
        TRACE.set(caller if span is None else span.trace)  # each request has a task, and so a context of its own
    try:
        if is_act(operation):
            answer = await _written_down(gateway, operation, call, trace_id)
        else:
            try:
                answer = await operation.handler(gateway, call)
            except LookingUp:
                answer = await handled(lambda: operation.handler(gateway, call))
        outcome = "ok"
        return answer
    except PushqError as error:
        outcome = error.code
        raise
    except ClientGone:
        outcome = GONE
        raise
    except asyncio.CancelledError:
        outcome = Unavailable.code  # its deadline passed, or the server shuts down
        raise
    finally:
        # Names of queues that do not exist are arbitrary and must not become usage rows.
        queue = call.params[0] if operation.has_queue and outcome not in _ABSENT else ""
        seconds = time.perf_counter() - began
        gateway.usage.meter.count(
            call.principal.tenant,
            call.principal.id,
            queue,
            operation.name,
            "http",
            outcome,
            messages=call.messages,
            bytes_in=call.bytes_in,
            bytes_out=len(answer.body) if isinstance(answer, Answer) else 0,
            seconds=seconds,
        )
        if span is not None:
            span.answered(queue, call.messages, None if outcome in ("ok", GONE) else outcome, call.batch)


async def _written_down(gateway: Gateway, operation: Operation, call: Call, trace_id: str | None) -> Answer | ASGIApp:
    act = await found(lambda: Act(gateway, operation, call, trace_id))
    await act.begin()
    try:
        answer = await handled(lambda: operation.handler(gateway, call))
    except BaseException as error:
        await _ended(act, None, error)
        raise
    await _ended(act, answer if isinstance(answer, Answer) else None, None)
    return answer


async def _ended(act: Act, answer: Answer | None, error: BaseException | None) -> None:
    """Writes the outcome down even if the caller's deadline has passed: else the row would say unknown, and the caller
    would be told that nothing was done."""
    await asyncio.shield(unbounded_task(act.end(answer, error), name="outcome of an act"))
