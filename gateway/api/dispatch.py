"""Dispatches a request below `/v1`, from its headers to its answer: authentication → throttling → routing → handler.

Errors become problem answers here and nowhere else. Checks run in the order the protocol promises: 401, 404, 403, 400.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from math import inf
from typing import Any, Final
from urllib.parse import parse_qs

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend_store.client import ASKED, waited_until
from backend_store.model import Forbidden, InvalidRequest, NotFound, OutcomeUnknown, PushqError, Unauthenticated
from gateway.admission.overload import EVENTS, SETTLING, refusal_of_call
from gateway.admission.request_bodies import RequestBodies
from gateway.admission.throttle import Account
from gateway.api import cors, messages
from gateway.api.execute import perform
from gateway.api.http import Answer, Call, ClientGone, Header, problem_answer, write
from gateway.api.router import Match, Router
from gateway.api.table import OPERATIONS, Operation, kind_of
from gateway.api.timeouts import HEADER as TIMEOUT_HEADER
from gateway.api.timeouts import READS, Late, begin, in_time, stated_ms, wait_s
from gateway.context import Gateway
from gateway.identity.authentication import Principal
from gateway.listener.fast_path import write_at_once
from gateway.publishing.idempotency_keys import HEADER as KEY_HEADER
from push.delivery.lookup_retry import LookingUp, answered, asks, found
from throttling.census import NOBODY, Who

log = structlog.get_logger("pushq.gateway")

LOCAL: Final = "pushq.local"
"""Key in the ASGI scope of requests that came over `DIR/admin.sock`."""


class Api:
    """The ASGI application for all plain HTTP below `/v1`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._router: Router[Operation] = Router((o.method, o.path, o) for o in OPERATIONS)
        self.answers: Counter[tuple[str, str, int]] = Counter()
        """(method, path, status) → answers."""
        self._late = Late()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        raw_path: bytes = scope.get("raw_path") or b""
        # An escaped slash within a path segment, as a message id may have one. `find` is cheaper than `in`, which
        # raises an error internally first, because it tries to read its operand as a number.
        has_slash = raw_path.find(b"%") >= 0 and raw_path.lower().find(b"%2f") >= 0
        match = self._router.find(scope["path"], quoted=raw_path.decode("latin-1") if has_slash else None)
        account: Account | None = None
        doing: asyncio.Task[Answer | ASGIApp] | None = None
        began = time.monotonic()
        asked = asks(self._waits_s(scope["method"], headers, match))
        try:
            is_question = scope["method"] == "OPTIONS" and cors.is_preflight("OPTIONS", headers)
            if is_question and self._allows_origin(headers):
                answer: Answer | ASGIApp = cors.preflight(headers)
            else:
                is_stream = match is not None and match.path == EVENTS and scope["method"] == "GET"
                if is_stream:
                    self._let_in(scope, headers)
                try:
                    caller = self._caller(scope, headers, match)
                except LookingUp:
                    caller = await found(lambda: self._caller(scope, headers, match))
                account = Account(self._gateway.throttle, _who(scope, caller), _queue(match))
                if is_stream and b"authorization" in headers and isinstance(caller, Principal):
                    self._pace(account.who)
                _note_account(caller)
                is_timed = TIMEOUT_HEADER in headers and not _ends_by_itself(scope["method"], match)
                if is_timed and scope["method"] not in READS:
                    self._late.check(account.who.principal)
                handling = self._handle(scope, receive, headers, match, caller, account)
                if not is_timed:
                    answer = await handling
                else:
                    doing = begin(handling)
                    answer = await in_time(scope["method"], doing, waited_until())
        except PushqError as error:
            answer = problem_answer(error, _trace_id(headers))
        except ClientGone:
            return
        except asyncio.CancelledError:
            if not self._gateway.hub.draining:
                raise
            answer = problem_answer(_cut_off(scope["method"], match), _trace_id(headers))
        except Exception:
            answer = _our_mistake(scope)
        finally:
            if asked is not None:
                answered(asked)
        charged = Account(self._gateway.throttle, Who(address=_address(scope)), None) if account is None else account
        told = charged.headers()
        if b"origin" in headers and self._allows_origin(headers):
            told = (*told, *cors.granted(headers[b"origin"]))
        try:
            await self._answer(scope, receive, send, answer, told, match)
            if doing is not None and account is not None and not doing.done():
                await self._late.over(doing, account.who.principal)
        finally:
            if self._gateway.settings.logs.access:
                _log_access(scope, answer, match, account, time.monotonic() - began)

    def _waits_s(self, method: str, headers: dict[bytes, bytes], match: Match[Operation] | None) -> float:
        operation = match.methods.get(method) if match is not None else None
        is_publish = operation is not None and operation.takes_key
        if not is_publish and TIMEOUT_HEADER not in headers:
            return inf
        return wait_s(headers, publish_ms=self._gateway.hub.publish_ms if is_publish else None)

    async def _handle(
        self,
        scope: Scope,
        receive: Receive,
        headers: dict[bytes, bytes],
        match: Match[Operation] | None,
        caller: Principal | Unauthenticated,
        account: Account,
    ) -> Answer | ASGIApp:
        refused = await account.request("admin" if match is None else kind_of(scope["method"], match.path))
        if not isinstance(caller, Principal):
            raise caller
        if refused is not None:
            raise refused
        if match is None:
            raise self._not_found(scope["path"])
        operation = _operation(scope["method"], match)
        if operation is None:
            return Answer(204, headers=((b"allow", _allowed(match)),), content_type=None)
        if KEY_HEADER in headers and not operation.takes_key:
            raise InvalidRequest("the header Idempotency-Key is only supported for publishes; remove it")
        if TIMEOUT_HEADER in headers and not operation.takes_timeout:
            raise InvalidRequest("the header Pushq-Timeout-Ms is not supported for streaming responses; remove it")
        if TIMEOUT_HEADER in headers and not _ends_by_itself(scope["method"], match):
            stated_ms(headers)
        call = Call(
            scope,
            receive,
            headers,
            caller,
            match.params,
            body_bytes_max=self._gateway.settings.limits.request_bytes_max,
            is_local=LOCAL in scope,
            account=account,
            held=self._held(operation, caller, scope),
            until=waited_until(),
        )
        try:
            return await perform(self._gateway, operation, call, _trace_id(headers))
        finally:
            call.held.release()

    async def require_operator(self, scope: Scope) -> None:
        """Checks the caller of a page outside `/v1` that is about all tenants. Raises the error that an API call would
        be answered with."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        caller = await found(lambda: self._caller(scope, headers, None))
        refused = await Account(self._gateway.throttle, _who(scope, caller), None).request("admin")
        if not isinstance(caller, Principal):
            raise caller
        if refused is not None:
            raise refused
        if not caller.access.is_operator:
            raise Forbidden(
                f"{scope['path']} covers all tenants and needs the scope operator, which {caller.name!r} lacks; use "
                "/v1/metrics for a single tenant"
            )

    # ---------------------------------------------------------------------------------------------------- checks

    def _let_in(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Admits an event stream before its caller is authenticated, because it is a socket. New sockets are paced per
        principal; one with a ticket per address, because reading a ticket spends it. A request with neither gets no
        socket, and takes no place in the pace."""
        refusal = self._gateway.hub.refusal()
        if refusal is not None:
            raise refusal
        if b"authorization" not in headers and b"ticket=" in scope["query_string"]:
            self._pace(Who(address=_address(scope)))

    def _pace(self, who: Who) -> None:
        refusal = self._gateway.hub.intake.refusal_by_pace(who)
        if refusal is not None:
            raise refusal

    def _held(self, operation: Operation, caller: Principal, scope: Scope) -> RequestBodies:
        """Room for the request's body. Raises `Overloaded` for an operation that is not accepted at this load level."""
        intake = self._gateway.hub.intake
        if intake.level and LOCAL not in scope:
            refusal = refusal_of_call(intake, operation.method, operation.path)
            if refusal is not None:
                raise refusal
        return RequestBodies(intake, caller.tenant, is_settling=(operation.method, operation.path) in SETTLING)

    def _caller(
        self, scope: Scope, headers: dict[bytes, bytes], match: Match[Operation] | None
    ) -> Principal | Unauthenticated:
        """The caller, or why it is not authenticated: by header, or by ticket where a browser cannot send a header."""
        authorization = headers.get(b"authorization")
        try:
            if authorization is not None:
                scheme, _, token = authorization.partition(b" ")
                if scheme.lower() != b"bearer":
                    return Unauthenticated("the Authorization header must be `Bearer <API key or JWT>`")
                return self._gateway.keyring.identify(token.strip().decode("latin-1"))
            if match is not None and (operation := match.methods.get(scope["method"])) and operation.takes_ticket:
                tickets = parse_qs(scope["query_string"].decode("latin-1")).get("ticket")
                if tickets:
                    return self._gateway.desk.redeem(tickets[0])
        except Unauthenticated as error:
            return error
        return Unauthenticated("send `Authorization: Bearer <API key or JWT>`")

    def _not_found(self, path: str) -> NotFound:
        if path == "/v1/ws":
            return NotFound("/v1/ws is a WebSocket endpoint: send an Upgrade request")
        return NotFound(f"no such path: {path[:200]!r}; see /openapi.json for the API")

    def _allows_origin(self, headers: dict[bytes, bytes]) -> bool:
        origin = headers.get(b"origin", b"").decode("latin-1")
        return self._gateway.desk.allowed_origin(origin, headers.get(b"host", b"").decode("latin-1"))

    # ---------------------------------------------------------------------------------------------------- answer

    async def _answer(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        answer: Answer | ASGIApp,
        told: tuple[Header, ...],
        match: Match[Operation] | None,
    ) -> None:
        if isinstance(answer, Answer):
            self.answers[scope["method"], "" if match is None else match.path, answer.status] += 1
            if not write_at_once(send, scope["method"], answer, told):
                await write(send, answer, told)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *told]
            await send(message)

        self.answers[scope["method"], "" if match is None else match.path, 200] += 1
        await answer(scope, receive, send_with_headers)


def _log_access(
    scope: Scope, answer: Answer | ASGIApp, match: Match[Operation] | None, account: Account | None, seconds: float
) -> None:
    """Logs the path of the route, not the path as sent: callers may put private data there."""
    who = account.who if account is not None else NOBODY
    trace_id = _trace_id(dict(scope["headers"]))
    log.info(
        "request",
        **({} if trace_id is None else {"trace_id": trace_id}),
        method=scope["method"],
        path="" if match is None else match.path,
        status=answer.status if isinstance(answer, Answer) else 200,
        seconds=round(seconds, 6),
        tenant=who.tenant or None,
        principal=who.principal or None,
        queue=account.queue if account is not None and account.queue and who.tenant else None,
        address=who.address,
    )


def _operation(method: str, match: Match[Operation]) -> Operation | None:
    """The operation for a method; None for OPTIONS. Raises the problem `method-not-allowed`."""
    operation = match.methods.get("GET" if method == "HEAD" else method)
    if operation is None and method != "OPTIONS":
        allowed = _allowed(match).decode()
        raise PushqError(
            f"{method} is not supported here; use {allowed}", code="method-not-allowed", headers=(("Allow", allowed),)
        )
    return operation


def _ends_by_itself(method: str, match: Match[Operation] | None) -> bool:
    """Whether the handler applies the timeout itself: publish and receive do, because other checks come before that of
    the header. True for a path that is not found, too."""
    if match is None:
        return True
    operation = match.methods.get(method)
    return operation is not None and operation.handler in (messages.publish, messages.receive)


def _allowed(match: Match[Any]) -> bytes:
    methods = [*match.methods, *(["HEAD"] if "GET" in match.methods else []), "OPTIONS"]
    return ", ".join(methods).encode()


def _who(scope: Scope, caller: Principal | Unauthenticated) -> Who:
    """The account a request is charged to: of an unauthenticated caller, its address alone."""
    client = scope.get("client")
    address = client[0] if client else ""
    return Who(caller.tenant, caller.id, address) if isinstance(caller, Principal) else Who(address=address)


def _note_account(caller: Principal | Unauthenticated) -> None:
    """Sets the tenant whose share the request's calls to other nodes take; None for an operator."""
    if (request := ASKED.get()) is not None and isinstance(caller, Principal):
        request.whose = None if caller.access.is_operator else caller.tenant


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _queue(match: Match[Operation] | None) -> str | None:
    return match.params[0] if match is not None and match.path.startswith("/v1/queues/{") else None


def _trace_id(headers: dict[bytes, bytes]) -> str | None:
    """The caller's trace id (W3C Trace Context), so that it finds the problem in its own logs."""
    if b"traceparent" not in headers:
        return None
    parts = headers[b"traceparent"].split(b"-")
    return parts[1].decode("latin-1") if len(parts) == 4 and len(parts[1]) == 32 and parts[1].isalnum() else None


def _cut_off(method: str, match: Match[Operation] | None) -> PushqError:
    """The error for a request that the shutdown no longer waits for."""
    operation = match.methods.get(method) if match is not None else None
    if method in READS or operation is None or operation.handler is messages.receive:
        return PushqError("the server is shutting down; nothing was changed", code="draining", retry_after_ms=1000)
    return OutcomeUnknown("the server shut down before the request finished; check its outcome, or retry")


def _our_mistake(scope: Scope) -> Answer:
    """Logs an unexpected exception; the caller gets only the trace id to find it by."""
    trace_id = secrets.token_hex(16)
    log.exception("request failed", method=scope["method"], path=scope["path"], trace_id=trace_id)
    return problem_answer(PushqError("internal error; search the log for the trace id"), trace_id)
